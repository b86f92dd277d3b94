"""Selection policies, one file each, found by name; other packages may add theirs."""

from __future__ import annotations

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
    try:
        selector = cls(n_clients=n_clients, n_select=n_select, **options)
    except TypeError as error:
        if "unexpected keyword" in str(error) or "missing" in str(error):
            raise TypeError(f"{name}: {error}") from None
        raise
    if settings:
        selector.guard(**settings)
    return selector
