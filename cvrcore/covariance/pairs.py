"""Who predicts whom: labels and the clients that reported in, pairs of clients out.

The representative of a coalition predicts the rows of the other clients of that coalition:
Algorithm 1, line 13. Each such pair asks for one entry C_kj per coordinate; an LRU cache keeps
the sums over rounds that such entries are made of.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..runtime.sizes import CACHED_PAIRS
from ..validation import Float, Ids

PREDICTORS: Final = ("regression", "cosine")


def representatives(clients: Ids, coalitions: Ids) -> Ids:
    """Return the representative of each coalition: its first of `clients`, or -1."""
    found = np.full(int(coalitions.max()) + 1, -1, dtype=np.int64)
    # Written backwards, so that the first client of a coalition is written last.
    found[coalitions[clients[::-1]]] = clients[::-1]
    return found


def cosine_coefficients(previous: Float, representative: Ids) -> Float:
    """Return the cosine of each client's last row with its representative's; 0 for zero rows."""
    others = previous[representative]
    dots = np.einsum("kd,kd->k", previous, others, dtype=np.float64)
    norms = np.sqrt(np.einsum("kd,kd->k", previous, previous, dtype=np.float64))
    product = norms * norms[representative]
    return np.where(product > 0, dots / np.where(product > 0, product, 1.0), 0.0)


class Pairs(NamedTuple):
    """Clients k that are predicted, and the representative j of each."""

    clients: Ids
    groups: Ids  # the coalition of each
    representatives: Ids  # of each coalition, or -1
    unpredicted: Ids  # representatives, and clients of coalitions without one

    @classmethod
    def of(cls, coalitions: Ids, first: Ids) -> Pairs:
        """Pair each client with the representative `first` of its coalition, in order of id."""
        clients, groups = np.empty_like(coalitions), np.empty_like(coalitions)
        n_found = dispatch.pair_clients(coalitions, first, clients, groups)
        unpredicted = first[first >= 0]
        if unpredicted.size < first.size:
            orphans = (first[coalitions] < 0).nonzero()[0]
            unpredicted = np.concatenate([unpredicted, orphans])
        return cls(clients[:n_found], groups[:n_found], first, unpredicted)

    @property
    def others(self) -> Ids:
        """Return the representative of each client."""
        return self.representatives[self.groups]


class PairCache:
    """``sum_s r_s[k] r_s[j]`` of pairs that were asked for before, each up to some round.

    A client meets the same few representatives again and again while coalitions are stable.
    The cache keeps the sum of a pair, so that only the rounds since are added. A sum is found
    from either client of its pair. Each client has a fixed number of places; a new pair evicts
    the least recently used sum of its first client.

    Parameters
    ----------
    n_clients, n_features : int
    dtype : float32 or float64
    """

    def __init__(self, n_clients: int, n_features: int, dtype: Any) -> None:
        shape = (n_clients, CACHED_PAIRS)
        self.values = np.empty((n_clients * CACHED_PAIRS, n_features), dtype=dtype)
        self.others = np.full(shape, -1, dtype=np.int64)  # the other client of each sum, or -1
        self.reached = np.zeros(shape, dtype=np.int64)  # rounds in each sum
        self._used = np.zeros(shape, dtype=np.int64)  # round of the last use of each sum
        self._places = np.empty(0, dtype=np.int64)  # in `values`, of each pair of the last lookup
        self._partners = np.empty(0, dtype=np.int64)  # the other client of the sum at each place
        self._missing = np.empty(0, dtype=bool)  # pairs that were not in the cache

    def lookup(self, pairs: Pairs, n_rounds: int) -> Ids:
        """Find or make a place for each pair; return how many rounds each sum holds.

        The caller continues the sums in place. Until `commit` they count as not cached, so
        that an interrupted round leaves no sum of unknown length.
        """
        clients, others = pairs.clients, pairs.others
        self._places, reached = np.empty_like(clients), np.empty_like(clients)
        held = (self.others, self._used, self.reached)
        dispatch.lookup_pairs(*held, clients, others, n_rounds, self._places, reached)
        self._partners = clients + others - self._places // CACHED_PAIRS
        self._missing = reached == 0
        return reached

    def borrow(self, start: int, stop: int, initial: float) -> Ids:
        """Return the places in `values` of pairs `start` .. `stop` - 1 of the last `lookup`.

        Sums that were not in the cache begin at `initial`.
        """
        places = self._places[start:stop]
        self.values[places[self._missing[start:stop]]] = initial
        return places

    def commit(self, start: int, stop: int, n_rounds: int) -> None:
        """Mark sums of pairs `start` .. `stop` - 1 as continued up to `n_rounds` rounds."""
        places = self._places[start:stop]
        self.others.ravel()[places] = self._partners[start:stop]
        self.reached.ravel()[places] = n_rounds
