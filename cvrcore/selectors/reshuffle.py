"""Random reshuffling: who has had its turn in, every client once before anyone twice out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..validation import Float, Mask, check_stored
from .base import Probe, Report, Selector
from .guards import Guards


class ReshuffleSelector(Selector):
    """Every client once before anyone twice, in a fresh random order each epoch [1]_.

    The clients whose turn is due are drawn uniformly. An absent client keeps its turn, one at
    most, and comes first when it is back. A round that ends one epoch begins the next: it
    takes all clients that are due and fills up from the others, nobody twice. A client's turn
    is used when its round is reported, whether it answered or failed; a round that is
    abandoned uses none.

    ``Selection.inclusion`` is exact given who has had its turn, and 0 for those who have: over
    an epoch everybody counts alike, but the step of a single round is not unbiased. Use the
    aggregators ``sizes`` or ``memory``, and not ``importance``.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.

    References
    ----------
    .. [1] Cho, Sharma, Joshi, Xu, Kale and Zhang, "On the convergence of federated averaging
       with cyclic client participation", ICML, 2023 (arXiv:2302.03109); random reshuffling of
       clients: Malinovsky, Horvath, Burlachenko and Richtarik, "Federated learning with
       regularized client participation", arXiv:2302.03662.

    Examples
    --------
    >>> selector = ReshuffleSelector(n_clients=6, n_select=2, seed=0)
    >>> seen = []
    >>> for _ in range(3):
    ...     picked = selector.select()
    ...     selector.observe(picked.clients)
    ...     seen += picked.clients.tolist()
    >>> sorted(seen)
    [0, 1, 2, 3, 4, 5]
    """

    name: ClassVar[str] = "reshuffle"

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self._turns = np.zeros(self.n_clients, dtype=np.int64)  # turns used

    @property
    def epoch(self) -> int:
        """Return how many epochs are complete: turns that every client has used."""
        return int(self._turns[self.weights > 0].min())

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        n_picked = min(self.n_select, ids.size)
        turns = self._turns[ids]
        last = turns.min()  # enough of them, as a rule: the middle of an epoch
        if np.count_nonzero(turns == last) < n_picked:
            last = np.partition(turns, n_picked - 1)[n_picked - 1]
        sure, tied = ids[turns < last], ids[turns == last]
        inclusion = np.zeros(self.n_clients)
        inclusion[tied] = (n_picked - sure.size) / tied.size
        clients = self._rng.choice(tied, size=n_picked - sure.size, replace=False)
        if sure.size:
            inclusion[sure] = 1.0
            clients = np.concatenate([self._rng.permutation(sure), clients])
        return Selection(
            clients=clients,
            probabilities=inclusion / n_picked,
            inclusion=inclusion,
            round=self.round,
        )

    def _learn(self, report: Report) -> None:
        self._turns[report.selection.clients] += 1
        # An epoch is under way at most two turns behind the furthest client: whoever was away
        # for longer has one turn due, not many.
        np.maximum(self._turns, self._turns.max() - 2, out=self._turns)

    def _grow(self, n_clients: int, added: Float) -> None:
        # Newcomers are due in the present epoch.
        start = np.full(added.size, self.epoch, dtype=np.int64)
        self._turns = np.concatenate([self._turns, start])

    def _learned(self) -> dict[str, Any]:
        return {"turns": self._turns.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._turns = check_stored(learned["turns"], "turns", self.n_clients, np.int64)
        if (self._turns < 0).any():
            raise ValueError(f"turns must be non-negative, got {self._turns.min()}")
