"""The paper's tables and figures: each experiment by name, run, resumed and drawn."""

from __future__ import annotations

from .experiment import Plan
from .runner import NAMES, reproduce

__all__ = ["NAMES", "Plan", "reproduce"]
