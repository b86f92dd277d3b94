"""Pairs of a client and its representative: which entries of C a round asks for."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from . import _backend
from ._validation import Float, Ids
from .sampling import sort_by_label


class Pairs(NamedTuple):
    """Clients k whose C_kj is wanted, j the representative of their coalition."""

    clients: Ids
    groups: Ids  # the coalition of each
    first: Ids  # the representative of each coalition, or -1
    alone: Ids  # clients without a representative, and representatives

    @classmethod
    def of(cls, coalitions: Ids, first: Ids, together: bool = False) -> Pairs:
        """Pair each client that has a representative, and is none, with it.

        In the order of ids, or those of one coalition `together`.
        """
        clients, groups = np.empty_like(coalitions), np.empty_like(coalitions)
        n_found = _backend.pair_clients(coalitions, first, clients, groups)
        clients, groups = clients[:n_found], groups[:n_found]
        alone = first[first >= 0]
        if alone.size < first.size:
            alone = np.concatenate([alone, (first[coalitions] < 0).nonzero()[0]])
        if together:
            order, _, _ = sort_by_label(groups, np.ones(n_found, dtype=bool), first.size)
            clients, groups = clients[order], groups[order]
        return cls(clients, groups, first, alone)

    @property
    def others(self) -> Ids:
        """Return the representative of each."""
        return self.first[self.groups]

    def part(self, start: int, stop: int) -> Pairs:
        """Return pairs `start` .. `stop` - 1."""
        return self._replace(clients=self.clients[start:stop], groups=self.groups[start:stop])


class PairCache:
    """Sums of pairs asked for before, to be continued from where they stopped.

    A client meets the same few representatives again and again while coalitions are
    stable; the sum over a long history is then done once. The oldest sum makes place.
    """

    SLOTS: Final = 24

    def __init__(self, n_clients: int, n_features: int, dtype: Any) -> None:
        self.values = np.empty((n_clients, self.SLOTS, n_features), dtype=dtype)
        self.others = np.full((n_clients, self.SLOTS), -1, dtype=np.int64)
        self.reached = np.zeros((n_clients, self.SLOTS), dtype=np.int64)
        self._slot = np.empty(0, dtype=np.int64)
        self._known = np.empty(0, dtype=bool)

    def find(self, pairs: Pairs) -> Ids:
        """Look pairs up; return how many rounds each sum holds."""
        match = self.others[pairs.clients] == pairs.others[:, None]
        self._known = match.any(axis=1)
        oldest = self.reached[pairs.clients].argmin(axis=1)
        self._slot = np.where(self._known, match.argmax(axis=1), oldest)
        return np.where(self._known, self.reached[pairs.clients, self._slot], 0)

    def read(self, clients: Ids, start: int, stop: int, fresh: float, out: Float) -> None:
        """Write known sums, or `fresh`, of pairs `start` .. `stop` - 1 of the last `find`."""
        known = self._known[start:stop]
        out[:] = fresh
        out[known] = self.values[clients[known], self._slot[start:stop][known]]

    def write(
        self, clients: Ids, others: Ids, start: int, stop: int, n_rounds: int, sums: Float
    ) -> None:
        """Keep the sums of pairs `start` .. `stop` - 1 of the last `find`."""
        slot = self._slot[start:stop]
        self.values[clients, slot] = sums
        self.others[clients, slot] = others
        self.reached[clients, slot] = n_rounds
