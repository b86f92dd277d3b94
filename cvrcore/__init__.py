"""Client selection for federated learning: NumPy in, NumPy out.

`CoalitionSelector` is FedCVR-Bolt with its state; `select` and the functions beside it are
Algorithm 1 of the paper, line by line and stateless. `make_selector` finds every policy by
name. Public names are imported when they are first used, so that ``import cvrcore`` stays
light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import aggregators, features
    from .advice import Recommendation, recommend
    from .algorithm import (
        boltzmann,
        coalitions,
        influence,
        select,
        update_covariance,
        variance_reduction,
    )
    from .compilation import compile
    from .guards import Guards, Incident
    from .ids import IdMap
    from .runtime.config import show_config
    from .runtime.plan import Plan, make_plan
    from .selection import Selection
    from .selectors import make_selector
    from .selectors.base import Selector
    from .selectors.coalition import CoalitionSelector
    from .selectors.options import Rule, Solver

__version__ = "0.2.0"


__all__ = [
    "CoalitionSelector",
    "Guards",
    "IdMap",
    "Incident",
    "Plan",
    "Recommendation",
    "Rule",
    "Selection",
    "Selector",
    "Solver",
    "aggregators",
    "boltzmann",
    "coalitions",
    "compile",
    "features",
    "influence",
    "make_plan",
    "make_selector",
    "recommend",
    "select",
    "show_config",
    "update_covariance",
    "variance_reduction",
]

#: The module that defines each public name; "" for a public module.
_HOMES = {
    "CoalitionSelector": "selectors.coalition",
    "Guards": "guards",
    "IdMap": "ids",
    "Incident": "guards",
    "Plan": "runtime.plan",
    "Recommendation": "advice",
    "Selection": "selection",
    "Selector": "selectors.base",
    "Rule": "selectors.options",
    "Solver": "selectors.options",
    "aggregators": "",
    "boltzmann": "algorithm",
    "coalitions": "algorithm",
    "compile": "compilation",
    "features": "",
    "influence": "algorithm",
    "make_plan": "runtime.plan",
    "make_selector": "selectors",
    "recommend": "advice",
    "select": "algorithm",
    "show_config": "runtime.config",
    "update_covariance": "algorithm",
    "variance_reduction": "algorithm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    module = import_module(f".{home or name}", __name__)
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
