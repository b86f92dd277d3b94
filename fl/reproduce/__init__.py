"""The former home of `fl.experiments.reproduce`; kept for code that imports it from here."""

from ..experiments import NAMES, reproduce
from ..experiments import Request as Plan

__all__ = ["NAMES", "Plan", "reproduce"]
