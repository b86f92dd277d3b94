"""Client selection for federated learning."""

from .selection import Selection
from .selectors import make_selector
from .selectors.base import Selector

__version__ = "0.1.0"

__all__ = ["Selection", "Selector", "make_selector"]
