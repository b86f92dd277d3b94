"""Selection policies: a name and options in, a selector out; packages may register more."""

from __future__ import annotations

import re
from typing import Any

from ..guards import SETTINGS, Guards, as_guards
from .base import Selector
from .registry import BUILT_IN, POLICIES, PolicyError, policy_class, refuse_unknown

__all__ = [
    "BUILT_IN",
    "POLICIES",
    "PolicyError",
    "Selector",
    "gathered_guards",
    "make_selector",
    "policy_class",
]


def make_selector(name: str, n_clients: int, n_select: int, **options: Any) -> Selector:
    """Build the selection policy called `name`.

    Parameters
    ----------
    name : str
        One of `POLICIES`: built in, or registered by an installed package in the entry-point
        group ``cvrcore.selectors``.
    n_clients, n_select : int
        Number of clients, and number of clients to pick each round.
    **options
        ``weights``, ``seed``, ``tags`` (see `Selector.set_tags`), ``guards`` (an object,
        "recommended", or single fields of `Guards`, such as ``max_share=1.25``) and the
        policy's own arguments; an unknown option
        is an error.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("uniform", n_clients=100, n_select=10, seed=0)
    >>> len(selector.select())
    10
    """
    cls = policy_class(name)
    tags = options.pop("tags", None)
    guards = gathered_guards(options)
    _check_names(name, cls, options)
    try:
        selector = cls(n_clients=n_clients, n_select=n_select, **options)
    except TypeError as error:
        if "missing" in str(error):
            absent = " and ".join(re.findall(r"'(\w+)'", str(error)))
            raise TypeError(f"{absent} must be given to {name}, got nothing") from None
        raise
    if tags is not None:
        selector.set_tags(tags)
    if guards != Guards():
        selector.guard(guards)
    return selector


def gathered_guards(options: dict[str, Any]) -> Guards:
    """Remove the guards from `options`, an object or single fields, and return them.

    Examples
    --------
    >>> options = {"max_share": 1.25, "penalty": 1.0}
    >>> gathered_guards(options).max_share, options
    (1.25, {'penalty': 1.0})
    """
    given = options.pop("guards", None)
    fields = {key: options.pop(key) for key in SETTINGS if key in options}
    if given is None:
        return Guards(**fields)
    guards = as_guards(given)
    if fields:
        name = next(iter(fields))
        raise TypeError(f"{name} must be given once: in guards= or as {name}=, not both")
    return guards


def _check_names(name: str, cls: type[Selector], options: dict[str, Any]) -> None:
    """Raise TypeError for an option that the policy does not have."""
    known = cls.option_names()
    if known is not None:
        unknown = {option: None for option in options if option not in known}
        refuse_unknown(name, unknown, [*known, *SETTINGS])
