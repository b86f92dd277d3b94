"""Selection policies, one file each, found by name; other packages may add theirs."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from .base import Selector
from .guards import SETTINGS
from .registry import BUILT_IN, POLICIES, PolicyError, policy_class

__all__ = ["BUILT_IN", "POLICIES", "PolicyError", "Selector", "make_selector", "policy_class"]


def make_selector(name: str, n_clients: int, n_select: int, **options: Any) -> Selector:
    """Build the selection policy called `name`.

    Parameters
    ----------
    name : str
        One of `POLICIES`: ours, or one that an installed package registers in the
        entry-point group ``cvrcore.selectors``.
    n_clients, n_select : int
        Clients in all, and to pick each round.
    **options
        ``weights``, ``seed``, settings of `Guards` (``max_share=1.25``) and the policy's
        own arguments; an unknown one is an error.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("uniform", n_clients=100, n_select=10, seed=0)
    >>> len(selector.select())
    10
    """
    cls = policy_class(name)
    settings = {key: options.pop(key) for key in SETTINGS if key in options}
    _check_names(name, cls, options)
    try:
        selector = cls(n_clients=n_clients, n_select=n_select, **options)
    except TypeError as error:
        if "missing" in str(error):
            raise TypeError(f"{name}: {error}") from None
        raise
    if settings:
        selector.guard(**settings)
    return selector


def _check_names(name: str, cls: type[Selector], options: dict[str, Any]) -> None:
    """Refuse an option that the policy does not have, and name the one most like it."""
    known = inspect.signature(cls).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, [*known, *SETTINGS], n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{option} is not an option of {name}{hint}")
