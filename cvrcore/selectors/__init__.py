"""Selection policies, one file each, found by name."""

from __future__ import annotations

import importlib
from typing import Any

from .base import Selector

#: Name of each policy and where its class lives; imported when asked for.
POLICIES = {
    "uniform": "cvrcore.selectors.uniform:UniformSelector",
    "power-of-choice": "cvrcore.selectors.power_of_choice:PowerOfChoiceSelector",
    "active": "cvrcore.selectors.active:ActiveSelector",
    "oort": "cvrcore.selectors.oort:OortSelector",
    "fedcbs": "cvrcore.selectors.class_balanced:ClassBalancedSelector",
    "fedcvr-bolt": "cvrcore.selectors.coalition:CoalitionSelector",
}


def policy_class(name: str) -> type[Selector]:
    """Return the class of the policy called `name`."""
    if name not in POLICIES:
        known = ", ".join(repr(policy) for policy in sorted(POLICIES))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    module, _, attribute = POLICIES[name].partition(":")
    found: type[Selector] = getattr(importlib.import_module(module), attribute)
    return found


def make_selector(name: str, n_clients: int, n_select: int, **options: Any) -> Selector:
    """Build the selection policy called `name`.

    Parameters
    ----------
    name : str
        One of `POLICIES`.
    n_clients, n_select : int
        Clients in all, and to pick each round.
    **options
        ``weights``, ``seed`` and the policy's own arguments; an unknown one is an error.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("uniform", n_clients=100, n_select=10, seed=0)
    >>> len(selector.select())
    10
    """
    cls = policy_class(name)
    try:
        return cls(n_clients=n_clients, n_select=n_select, **options)
    except TypeError as error:
        if "unexpected keyword" in str(error) or "missing" in str(error):
            raise TypeError(f"{name}: {error}") from None
        raise
