"""Assertions of the checks: an outcome in, one sentence on what was expected and found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..selection import Selection
from ..selectors.base import Selector


class CheckFailed(AssertionError):
    """The policy under test breaks a promise."""


def require(kept: Any, promise: str) -> None:
    """Fail the check, with `promise` as its message, unless `kept`."""
    if not kept:
        raise CheckFailed(promise)


def valid(picked: Any, eligible: Any, n_select: int, round: int, rule: str = "fixed") -> None:
    """Fail unless a Selection holds distinct eligible clients, as many as `rule` says."""
    require(isinstance(picked, Selection), f"select must return a Selection, got {picked!r}")
    clients = picked.clients
    require(
        isinstance(clients, np.ndarray) and clients.dtype == np.int64 and clients.ndim == 1,
        f"Selection.clients must be an int64 array of shape (m,), got {clients!r}",
    )
    require(
        np.unique(clients).size == clients.size,
        f"Selection.clients must be distinct, got {clients.tolist()}",
    )
    inside = (clients >= 0) & (clients < eligible.size)
    require(
        inside.all(), f"Selection.clients must be in 0..{eligible.size - 1}, got {clients.tolist()}"
    )
    require(
        eligible[clients].all(),
        f"Selection.clients must be available and of positive weight, got {clients.tolist()} "
        f"where only {np.flatnonzero(eligible).tolist()} are",
    )
    wanted = min(n_select, int(np.count_nonzero(eligible)))
    if rule == "fixed":
        require(
            clients.size == wanted,
            f"min(n_select, eligible) = {wanted} clients must be picked, got {clients.size}: "
            "declare another size_rule if the design says so",
        )
    counted(picked, n_select if rule == "at-most" else None)
    require(
        picked.round == round,
        f"Selection.round must be the selector's round {round}, got {picked.round}",
    )


def counted(picked: Selection, n_draws: int | None) -> None:
    """Fail unless `counts` fit the clients and, if given, sum to `n_draws`."""
    counts = picked.counts
    if counts is None:
        require(n_draws is None, "a policy of size_rule 'at-most' must state Selection.counts")
        return
    require(
        counts.dtype == np.int64 and counts.shape == picked.clients.shape and (counts >= 1).all(),
        f"Selection.counts must be int64, one count of at least 1 for each client, got {counts!r}",
    )
    require(
        n_draws is None or counts.sum() == n_draws,
        f"Selection.counts must sum to the {n_draws} draws of a round, got {counts.sum()}",
    )
    require(picked.expected is not None, "Selection.expected must be given with counts, got None")


def refused(selector: Selector, call: Callable[[], Any], rule: str) -> None:
    """Make a call that breaks a rule: it must raise, and must not change the state."""
    before = selector.state_dict()
    try:
        call()
    except (TypeError, ValueError):
        found = difference(selector.state_dict(), before)
        require(
            found is None,
            f"a rejected call ({rule}) must leave the state as it was, but {found}: check in "
            "_check_learnable, change in _learn",
        )
        return
    raise CheckFailed(f"{rule} must be refused with ValueError or TypeError")


def difference(a: Any, b: Any, path: str = "state") -> str | None:
    """Return where two nested states first differ, bit by bit, or None."""
    if type(a) is not type(b):
        return f"{path} is {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return f"{path} has the keys {sorted(a)} and {sorted(b)}"
        return _first(difference(a[key], b[key], f"{path}[{key!r}]") for key in a)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f"{path} has {len(a)} and {len(b)} items"
        pairs = enumerate(zip(a, b, strict=True))
        return _first(difference(x, y, f"{path}[{i}]") for i, (x, y) in pairs)
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        equal = same and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        return None if equal else f"{path} is {_short(a)} and {_short(b)}"
    same = a == b or (a != a and b != b)
    return None if same else f"{path} is {a!r} and {b!r}"


def _first(found: Any) -> str | None:
    return next((text for text in found if text is not None), None)


def _short(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)} {np.array2string(array, threshold=6, edgeitems=2)}"
