"""Client selection for federated learning: NumPy in, NumPy out.

`CoalitionSelector` is FedCVR-Bolt with its state; `select` and the functions beside it are
Algorithm 1 of the paper, line by line and stateless. `make_selector` finds every policy by
name.
"""

from importlib import import_module
from typing import Any

from . import features
from .affinity import influence
from .clustering import coalitions
from .covariance import update_covariance
from .diagnostics import show_config
from .ids import IdMap
from .plan import Plan, make_plan
from .sampling import boltzmann
from .scores import variance_reduction
from .selection import Selection, select
from .selectors import make_selector
from .selectors.base import Selector
from .selectors.coalition import CoalitionSelector
from .selectors.guards import Guards, Incident

__version__ = "0.1.0"

__all__ = [
    "CoalitionSelector",
    "Guards",
    "IdMap",
    "Incident",
    "Plan",
    "Selection",
    "Selector",
    "aggregators",
    "boltzmann",
    "coalitions",
    "features",
    "influence",
    "make_plan",
    "make_selector",
    "select",
    "show_config",
    "update_covariance",
    "variance_reduction",
]


def __getattr__(name: str) -> Any:
    if name == "aggregators":  # imported when asked for: many never do
        return import_module(".aggregators", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
