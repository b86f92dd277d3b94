"""`Selection`: one round's decision as plain data, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .validation import Float, Ids

_OPTIONAL = ("counts", "expected", "sent")  # not stored where they are None
_ARRAYS = ("clients", "coalitions", "scores", "probabilities", "inclusion", *_OPTIONAL)


class _Lazy:
    """A field that may be given as a function; the function is called at the first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> Float | None:
        if owner is None:
            return None  # the default of the field
        value: Float | Callable[[], Float] | None = owner.__dict__[self.name]
        if callable(value):
            value = owner.__dict__[self.name] = value()
        return value

    def __set__(self, owner: Any, value: Float | Callable[[], Float] | None) -> None:
        owner.__dict__[self.name] = value


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The clients that a policy picked in one round, and why.

    Attributes
    ----------
    clients : ndarray of int64, shape (m,)
        Distinct ids, m = min(n_select, eligible) unless the policy's `size_rule` says
        otherwise, coalition by coalition where there are any, in the order drawn inside each.
    coalitions : ndarray of int64, shape (n_clients,), or None
        Coalition of every client, ``0 .. P - 1``; None in warm-up and for policies
        without coalitions.
    scores : ndarray of float64, shape (n_clients,), or None
        The numbers that the policy ranks by; for FedCVR-Bolt the variance reduction v_k,
        Eq. (9).
    probabilities : ndarray of float64, shape (n_clients,), or None
        Law of the first draw. With coalitions it is pi_p(k), Eq. (11), and sums to 1 in
        each coalition that has an eligible client; otherwise it sums to 1.
    inclusion : ndarray of float64, shape (n_clients,), or None
        Probability of being among the m clients at all: by a formula or, where the policy's
        docstring says so, by the estimate of `cvrcore.draws.inclusion`. None where the policy
        cannot state it. It may be given as a function without arguments, which is called at the
        first read.
    round : int
        Index of the round, from 0.
    warmup : bool
        Whether the round belongs to the policy's uniform warm-up.
    counts : ndarray of int64, shape (m,), or None
        How often each of `clients` was drawn, at least once, by a policy that draws with
        replacement; aggregators weigh a report by it. None: every client once.
    expected : ndarray of float64, shape (n_clients,), or None
        The expected count of every client, given with `counts`; it may exceed 1, where
        `inclusion` is the probability of a count above 0.
    sent : ndarray of shape (n_features,), or None
        What `select` was told of the model sent, kept for policies that need it.

    Examples
    --------
    >>> import cvrcore
    >>> picked = cvrcore.make_selector("uniform", n_clients=5, n_select=2, seed=0).select()
    >>> len(picked), picked.round, picked.inclusion
    (2, 0, array([0.4, 0.4, 0.4, 0.4, 0.4]))
    """

    clients: Ids
    coalitions: Ids | None = None
    scores: Float | None = None
    probabilities: Float | None = None
    inclusion: _Lazy = _Lazy()  # noqa: RUF009 - a descriptor, not a default
    round: int = 0
    warmup: bool = False
    counts: Ids | None = None
    expected: Float | None = None
    sent: Float | None = None

    @property
    def times_drawn(self) -> Ids:
        """Return how often each of `clients` was drawn: `counts`, or ones."""
        return np.ones(len(self), dtype=np.int64) if self.counts is None else self.counts

    def __len__(self) -> int:
        """Return the number of clients picked."""
        return int(self.clients.shape[0])

    def __getstate__(self) -> dict[str, Any]:
        """Compute `inclusion` first: a function cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def without_lazy(self) -> Selection:
        """Return the same arrays; `inclusion` is None where it has not been computed yet."""
        if not callable(vars(self)["inclusion"]):
            return self  # it is frozen
        return self.changed(inclusion=None)

    def changed(self, **fields: Any) -> Selection:
        """Return a selection with other fields; `inclusion` stays lazy, unlike in `replace`."""
        return _made(vars(self) | fields)

    def copied(self) -> Selection:
        """Return a selection whose arrays are the caller's own."""
        return _made(self._copied_fields())

    def plain(self) -> dict[str, Any]:
        """Return copies of all fields; `inclusion` is None where it has not been computed.

        Fields that earlier releases did not have are left out where they are None.
        """
        fields = self.without_lazy()._copied_fields()
        return {k: v for k, v in fields.items() if k not in _OPTIONAL or v is not None}

    def _copied_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = dict(vars(self))
        for name in _ARRAYS:
            if isinstance(fields[name], np.ndarray):
                fields[name] = fields[name].copy()
        return fields

    def __repr__(self) -> str:
        """Show the round, the clients and, if there are any, their coalitions."""
        kind = ", warm-up" if self.warmup else ""
        text = f"Selection(round={self.round}{kind}, clients={self.clients.tolist()}"
        if self.coalitions is not None:
            sizes = np.bincount(self.coalitions)
            text += f", {sizes.size} coalitions of {sizes.min()}-{sizes.max()} clients"
        if self.scores is not None and np.isfinite(self.scores).any():
            known = self.scores[np.isfinite(self.scores)]  # a client without a score has NaN
            text += f", scores {known.min():.4g}..{known.max():.4g}"
            text += f" of {known.size} clients" if known.size < self.scores.size else ""
        return text + ")"


def _made(fields: dict[str, Any]) -> Selection:
    """Return a selection of all fields; the constructor of a frozen class sets them one by one."""
    selection = object.__new__(Selection)
    selection.__dict__.update(fields)
    return selection
