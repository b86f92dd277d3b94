"""Data sets as federations: samples, and the clients that hold them."""

from .federation import DataError, Federation
from .loading import DATASETS, load_federation

__all__ = ["DATASETS", "DataError", "Federation", "load_federation"]
