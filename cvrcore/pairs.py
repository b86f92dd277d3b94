"""Pairs of a client and its representative: which entries of C a round asks for."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ._validation import Float, Ids
from .sampling import sort_by_label


class Pairs(NamedTuple):
    """Clients k whose C_kj is wanted, with their representative j, equal j together."""

    clients: Ids
    others: Ids
    alone: Ids  # clients without a representative, and representatives

    @classmethod
    def of(cls, representative: Ids) -> Pairs:
        """Pair each client that has a representative, and is none, with it."""
        n_clients = representative.size
        paired = (representative >= 0) & (representative != np.arange(n_clients))
        clients, _, _ = sort_by_label(representative, paired, n_clients)
        return cls(clients, representative[clients], (~paired).nonzero()[0])


class PairCache:
    """Sums of pairs asked for before, to be continued from where they stopped.

    A client meets the same few representatives again and again while coalitions are
    stable; the sum over a long history is then done once. The oldest sum makes place.
    """

    SLOTS: Final = 24

    def __init__(self, n_clients: int, n_features: int) -> None:
        self.values = np.empty((n_clients, self.SLOTS, n_features))
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
