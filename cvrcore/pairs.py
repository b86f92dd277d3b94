"""Pairs of a client and its representative: which entries of C a round asks for."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from . import _backend
from ._validation import Float, Ids
from .threads import Chunks, begin_chunks


class Pairs(NamedTuple):
    """Clients k whose C_kj is wanted, j the representative of their coalition."""

    clients: Ids
    groups: Ids  # the coalition of each
    first: Ids  # the representative of each coalition, or -1
    alone: Ids  # clients without a representative, and representatives

    @classmethod
    def of(cls, coalitions: Ids, first: Ids) -> Pairs:
        """Pair each client that has a representative, and is none, with it, by id."""
        clients, groups = np.empty_like(coalitions), np.empty_like(coalitions)
        n_found = _backend.pair_clients(coalitions, first, clients, groups)
        clients, groups = clients[:n_found], groups[:n_found]
        alone = first[first >= 0]
        if alone.size < first.size:
            alone = np.concatenate([alone, (first[coalitions] < 0).nonzero()[0]])
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
    stable; the sum over a long history is then done once, whoever of the two represents the
    other: it is kept with either. While most pairs are known, sums are also continued every
    few rounds, all at once and while clients train: residuals are then read once for all
    pairs of a coalition. While nearly all are known, so are made the others of coalitions
    that are small enough: somebody will ask for them some day. The sum least asked for makes
    place.
    """

    SLOTS: Final = 24
    _MOST, _NEARLY_ALL = 0.5, 0.8  # shares of pairs that are known
    _EVERY: Final = 8  # rounds
    _LATELY: Final = 64  # rounds; a sum not asked for in them waits until it is
    _TASK: Final = 64  # clients whose sums are one task

    @staticmethod
    def pays(window: int | None) -> bool:
        """Return whether a history of so many residuals is long enough to keep sums of it."""
        return window is None or window >= 64

    def __init__(self, n_clients: int, n_features: int, dtype: Any) -> None:
        self.values = np.empty((n_clients * self.SLOTS, n_features), dtype=dtype)
        self.others = np.full((n_clients, self.SLOTS), -1, dtype=np.int64)
        self.reached = np.zeros((n_clients, self.SLOTS), dtype=np.int64)  # rounds in each sum
        self._asked = np.zeros((n_clients, self.SLOTS), dtype=np.int64)  # round of the last time
        self._places = np.empty(0, dtype=np.int64)  # in `values`, of each pair
        self._fellows = np.empty(0, dtype=np.int64)  # with whom the sum there is
        self._fresh = np.empty(0, dtype=bool)  # pairs of which no sum was known
        self._share = 0.0  # of pairs that are known, on average
        self._groups = np.zeros(n_clients, dtype=np.int64)  # coalition of each client, lately
        self._continuing: tuple[Chunks, Ids, Ids, int] | None = None

    def take(self, pairs: Pairs, n_rounds: int) -> Ids:
        """Look pairs up; return how many rounds each sum holds.

        They may be changed from here on, and count as not known until `keep`.
        """
        clients, others = pairs.clients, pairs.others
        self._places, begin = np.empty_like(clients), np.empty_like(clients)
        known = (self.others, self._asked, self.reached)
        _backend.take_pairs(*known, clients, others, n_rounds, self._places, begin)
        self._fellows = clients + others - self._places // self.SLOTS
        self._fresh = begin == 0
        n_known = clients.size - np.count_nonzero(self._fresh)
        self._share += 0.125 * (n_known / max(clients.size, 1) - self._share)
        chosen = (pairs.first >= 0).nonzero()[0]
        self._groups[pairs.first[chosen]] = chosen
        self._groups[clients] = pairs.groups
        return begin

    def lend(self, start: int, stop: int, fresh: float) -> Ids:
        """Return where in `values` sums are, of pairs `start` .. `stop` - 1 of the last `take`.

        Those not known are `fresh`.
        """
        places = self._places[start:stop]
        self.values[places[self._fresh[start:stop]]] = fresh
        return places

    def keep(self, start: int, stop: int, n_rounds: int) -> None:
        """Take note of how many rounds the sums lent hold by now."""
        places = self._places[start:stop]
        self.others.ravel()[places] = self._fellows[start:stop]
        self.reached.ravel()[places] = n_rounds

    def advance(self, parts: list[tuple[Float, int]], n_rounds: int, fresh: float) -> None:
        """Begin to continue sums up to `n_rounds` residuals, if it is time and worth it.

        `settle` ends it, and comes before anything else. Till then they count as not known.
        """
        if n_rounds % self._EVERY or self._share < self._MOST:
            return
        if self._share > self._NEARLY_ALL:
            self._complete(n_rounds, fresh)
        clients = np.argsort(self._groups, kind="stable")  # those of a coalition together
        lately = (self.others >= 0) & (self._asked > n_rounds - self._LATELY)
        counts = np.count_nonzero(lately[clients], axis=1)
        rows, slots = lately[clients].nonzero()
        clients, limits = clients[rows], np.append(0, np.cumsum(counts))
        places = clients * self.SLOTS + slots
        others, begin = self.others.ravel()[places], self.reached.ravel()[places]
        self.others.ravel()[places] = -1

        def add(start: int, stop: int) -> None:
            some = slice(limits[start], limits[stop])
            first = begin[some]
            for block, used in parts:
                if first.size and first.min() < used:
                    which = (clients[some], others[some], first)
                    _backend.add_history(block, used, *which, self.values, places[some])
                first = first - used

        begun = begin_chunks(add, counts.size, self._TASK)
        self._continuing = begun, places, others, n_rounds

    def _complete(self, n_rounds: int, fresh: float) -> None:
        """Add sums, of no residual yet, of pairs that are not known in small coalitions."""
        sizes = np.bincount(self._groups)
        fellows = (self.others >= 0) & (self._groups[self.others] == self._groups[:, None])
        n_known = np.bincount(self._groups, np.count_nonzero(fellows, axis=1))
        missing = (2 * n_known < sizes * (sizes - 1)) & (sizes <= self.SLOTS + 1)
        position = np.empty_like(self._groups)  # of a client in its coalition
        for group in missing.nonzero()[0].tolist():
            members = (self._groups == group).nonzero()[0]
            position[members] = np.arange(members.size)
            known = np.eye(members.size, dtype=bool)
            rows, slots = fellows[members].nonzero()
            known[rows, position[self.others[members[rows], slots]]] = True
            # By turns with the one and with the other: places are for half of the fellows.
            low, high = np.triu(~(known | known.T)).nonzero()
            turned = (low + high) % 2 == 1
            owners, others = np.where(turned, high, low), np.where(turned, low, high)
            for owner in np.unique(owners).tolist():
                client, new = int(members[owner]), members[others[owners == owner]]
                free = (~fellows[client]).nonzero()[0]
                chosen = free[np.argsort(self._asked[client, free], kind="stable")][: new.size]
                self.others[client, chosen] = new[: chosen.size]
                self.reached[client, chosen], self._asked[client, chosen] = 0, n_rounds
                self.values[client * self.SLOTS + chosen] = fresh

    def settle(self) -> None:
        """End what `advance` began. What is cut off stays unknown."""
        if self._continuing is None:
            return
        begun, places, others, n_rounds = self._continuing
        self._continuing = None
        begun.finish()
        self.others.ravel()[places] = others
        self.reached.ravel()[places] = n_rounds
