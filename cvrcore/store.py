"""The covariance between rounds, in the form that suits its size.

Sums over rounds run in the order of rounds whatever the form, so that in float64 a store
that switches, caches or is loaded from a file returns the same bits. Only a window, once it
has dropped something, approximates.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from . import _backend
from ._validation import Float, Ids, check_number
from .history import BLOCK, History
from .pairs import PairCache, Pairs
from .triangles import Triangles

STORES: Final = ("auto", "dense", "factored", "window", "none")
_NEAR: Final = 16_000_000  # bytes of a residual up to which its rows are near each other
_FIRST: Final = np.empty(0, dtype=np.int64)  # as they come, from the first residual on


class Slot(NamedTuple):
    """Where the residual of a step goes: ``block[place] = weight * residual``."""

    block: Float
    place: int
    weight: float
    scale: float  # of the store, after the step


class Entries(NamedTuple):
    """Entries of C but for the residuals of one block, to be added from `begin` of each pair."""

    start: float  # what each is so far, if `sums` is empty
    sums: Float  # what each is so far
    places: Ids  # which of them is each pair's; empty: as they were asked for
    block: Float
    used: int
    begin: Ids  # empty: from the first


class CovarianceStore:
    """C^d for every d: ``C = scale * (ones + sum_s r_s r_s^T)``.

    "factored" keeps the residuals: O(K t D) memory. "dense" keeps the sums, of all pairs, see
    `cvrcore.triangles`. "auto" begins factored and becomes dense when that is smaller, after
    K / 2 rounds, or sooner when little of what is asked for can be continued from an earlier
    answer; or it keeps a window of the last rounds, where neither fits.

    Parameters
    ----------
    n_clients, n_features : int
    kind : {"auto", "dense", "factored", "window"}
    dtype : float32 or float64
    window : int, optional
        Residuals kept; the mean over them stands for the older ones. Default: all.
    may_be_dense : bool
        Whether "auto" has the memory to become dense.
    """

    def __init__(
        self,
        n_clients: int,
        n_features: int,
        kind: str,
        dtype: Any,
        window: int | None = None,
        may_be_dense: bool = True,
    ) -> None:
        self.n_clients, self.n_features = n_clients, n_features
        self.kind, self.dtype = kind, np.dtype(dtype)
        self.may_be_dense = may_be_dense
        self.scale = 1.0
        self.ones = 1.0  # share of C(1), all ones, in units of scale
        self.triangles: Triangles | None = None
        self.history = History(n_clients, n_features, dtype, window)
        self._streamed = 0.0  # residuals read in a round, of all clients, on average
        self._begin = _FIRST
        self._nothing = np.empty((1, 1, n_features), dtype=dtype)  # stands for no block at all
        self._none = np.empty((0, n_features), dtype=dtype)
        self._cache: PairCache | None = None
        self._room: Triangles | None = None  # what the next `close` makes the store dense with
        if kind == "dense":
            self.triangles = Triangles(*self._size, self.ones)

    @property
    def _size(self) -> tuple[int, int, Any]:
        return self.n_clients, self.n_features, self.dtype

    @property
    def form(self) -> str:
        """Return "dense", "factored" or "window": what the store is at present."""
        if self.triangles is not None:
            return "dense"
        return "window" if self.history.wrapped else "factored"

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        dense = 0 if self.triangles is None else self.triangles.nbytes
        cached = 0 if self._cache is None else self._cache.values.nbytes
        return dense + cached + self.history.nbytes

    def __getstate__(self) -> dict[str, Any]:
        """End the fold under way, so that a store can be copied and sent to a process."""
        self._settle()
        return self.__dict__.copy()

    # -- one round --------------------------------------------------------------

    def ask(self, pairs: Pairs) -> None:
        """Prepare to `read` entries of these pairs."""
        self._settle()
        self._begin = _FIRST
        if self.triangles is not None or self.history.wrapped:
            return
        pays = PairCache.pays(self.history.window) and self.history.count >= BLOCK // 2
        if self._cache is None and pays:
            self._cache = PairCache(*self._size)
        if self._cache is not None:
            self._begin = self._cache.take(pairs, self.history.count)
        fresh = self.history.count * pairs.clients.size - int(self._begin.sum())
        self._streamed += 0.125 * (fresh - self._streamed)

    @property
    def unit(self) -> float:
        """Return what entries that are `read` count in; a window's stand for all rounds."""
        return self.scale * self.history.stands_for if self.history.wrapped else self.scale

    def _start(self) -> float:
        """Return what entries that are `read` begin with."""
        return self.ones / self.history.stands_for if self.history.wrapped else self.ones

    def read(self, pairs: Pairs, start: int, stop: int) -> Entries:
        """Return ``C_kj / unit`` of pairs `start` .. `stop` - 1.

        All but the sum over the last block of residuals: who goes through a client's history
        anyway adds it on the way. Then comes `keep`.
        """
        begin, ones = self._begin[start:stop], self._start()
        *parts, (block, used) = self.history.parts() or [(self._nothing, 0)]
        part, places = pairs.part(start, stop), _FIRST
        clients, others = part.clients, part.others
        if self.triangles is not None:
            sums = self.triangles.read(clients, others)
            return Entries(ones, sums, places, block, used, begin)
        if self._cache is None and not parts:
            return Entries(ones, self._none, places, block, used, begin)
        if self._cache is not None:
            sums, places = self._cache.values, self._cache.lend(start, stop, ones)
        else:
            sums = np.full((stop - start, self.n_features), ones, self.dtype)
        for earlier, n in parts:
            if not begin.size or begin.min() < n:
                _backend.add_history(earlier, n, clients, others, begin, sums, places)
            begin = begin - n
        return Entries(ones, sums, places, block, used, begin)

    def leads(self, first: Ids) -> tuple[Float, Ids]:
        """Return residuals that hold those of representatives, of the last block, and where.

        Copies of them, if many others lie between: what is read for every client is then one
        piece of memory.
        """
        *_, (block, used) = self.history.parts() or [(self._nothing, 0)]
        if block[0].nbytes <= _NEAR:
            return block, first
        return np.take(block[:used], first, axis=1), np.arange(first.size)

    def keep(self, start: int, stop: int) -> None:
        """Take note that to what `read` gave the rest was added: it is continued another time."""
        if self._cache is not None:
            self._cache.keep(start, stop, self.history.count)

    def reserve(self, n_rounds: int) -> None:
        """Take the memory that so many more rounds will need, so that none waits for it.

        Rounds touch new memory while clients train; who has no clients to wait for, and on a
        virtual host, may wait longer for it than for all the rest.
        """
        if self.triangles is not None:
            return
        self.history.reserve(n_rounds)
        if self._cache is None and PairCache.pays(self.history.window):
            self._cache = PairCache(*self._size)
            self._cache.values[:] = 0.0

    def open(self, rate: float) -> Slot:
        """Return where to write the residual of the step ``C <- (1 - rate) C + rate r r^T``."""
        self._settle()
        scale = self.scale * (1.0 - rate)
        if scale < (1e-60 if self.dtype == np.float64 else 1e-12):
            self._rescale()
            scale = 1.0 - rate
        dense_next = self.triangles is None and self.kind == "auto" and self._dense_pays()
        self._room = Triangles(*self._size) if dense_next else None
        weight = float(np.sqrt(rate / scale))
        # A decaying rate has weight 1 up to rounding: then there is nothing to scale.
        block, index = (self.history if self.triangles is None else self.triangles).slot()
        return Slot(block, index, 1.0 if abs(weight - 1.0) < 1e-12 else weight, scale)

    def close(self, slot: Slot) -> None:
        """Take the step whose residual was written into `slot`."""
        self.scale = slot.scale
        if self.triangles is not None:
            self.triangles.push()
            return
        self.history.push(slot.weight**2)
        if self.history.wrapped or self._room is not None:
            self._cache = None
        if self._room is not None:
            self.triangles, self._room = self._room, None
            self.triangles.absorb(self.history.parts(), self.ones)
        elif self._cache is not None:
            self._cache.advance(self.history.parts(), self.history.count, self._start())

    # -- everything at once -------------------------------------------------------

    def entries(self, representative: Ids) -> Float:
        """Return ``C_kj / scale`` for each client k and its representative j, who has none.

        Rows of clients without one, and of representatives, mean nothing.
        """
        n_clients = self.n_clients
        coalitions = np.where(representative < 0, n_clients, representative)
        pairs = Pairs.of(coalitions, np.append(np.arange(n_clients), -1))
        self.ask(pairs)
        asked = self.read(pairs, 0, pairs.clients.size)
        found, places = asked.sums, asked.places
        if not found.size:
            found = np.full((pairs.clients.size, self.n_features), asked.start, self.dtype)
        which = (pairs.clients, pairs.others, asked.begin)
        _backend.add_history(asked.block, asked.used, *which, found, places)
        self.keep(0, pairs.clients.size)
        found = found[places] if places.size else found
        out = np.empty((self.n_clients, self.n_features))
        out[pairs.clients] = found * (self.unit / self.scale)
        return out

    def append(self, residual: Float, rate: float) -> None:
        """Take one step: ``C <- (1 - rate) C + rate r r^T``."""
        slot = self.open(rate)
        slot.block[slot.place] = residual * self.dtype.type(slot.weight)
        self.close(slot)

    def dense(self) -> Float:
        """Return C as an array of shape (n_features, n_clients, n_clients), float64."""
        self._settle()
        rows, columns = np.tril_indices(self.n_clients)
        if self.triangles is not None:
            packed = self.triangles.read(rows, columns).astype(np.float64)
        else:
            packed = np.full((rows.size, self.n_features), self._start())
            for block, used in self.history.parts():
                for s in range(used):
                    step = block[s].astype(np.float64)
                    packed += step[rows] * step[columns]
        full = np.empty((self.n_features, self.n_clients, self.n_clients))
        full[:, rows, columns] = full[:, columns, rows] = self.unit * packed.T
        return full

    def grow(self, n_clients: int) -> None:
        """Add clients, whose residual has been 0 so far."""
        self._settle()
        if self.triangles is not None:
            self.triangles = self.triangles.grown(n_clients, self.ones)
        self.history.grow(n_clients)
        self.n_clients, self._cache = n_clients, None

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        self._settle()
        kept = {"scale": self.scale, "ones": self.ones, "streamed": self._streamed}
        if self.triangles is not None:
            return {**kept, **self.triangles.state()}
        return {**kept, "base": None, **self.history.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self._settle()
        self.scale = check_number(state["scale"], "scale", above=0, maximum=1)
        self.ones = check_number(state["ones"], "ones", minimum=0, maximum=1)
        self._streamed = check_number(state.get("streamed", 0.0), "streamed", minimum=0)
        self.triangles = self._cache = None
        self.history = History(*self._size, self.history.window)
        if state["base"] is None:
            self.history.restore(state)
        else:
            self.triangles = Triangles(*self._size, self.ones)
            self.triangles.restore(state)

    # -- its form -----------------------------------------------------------------

    def _dense_pays(self) -> bool:
        """Return whether folding costs less memory, or less time, than what is done now.

        A fold costs about K^2 / 12 residuals read, measured at K = 100 and 1000.
        """
        smaller = 2 * self.history.count >= self.n_clients
        return self.may_be_dense and (smaller or 12 * self._streamed >= self.n_clients**2)

    def _settle(self) -> None:
        """End what was begun in the last round, if anything was."""
        if self._cache is not None:
            self._cache.settle()
        if self.triangles is None:
            return
        self.triangles.settle()
        if self.history.count:  # all of it is in there by now
            self.history = History(*self._size)

    def _rescale(self) -> None:
        """Bring scale back to 1 before it underflows (a constant rate gets there)."""
        if self.triangles is not None:
            self.triangles.scale(self.scale)
        self.history.scale(float(np.sqrt(self.scale)))
        self.ones *= self.scale
        self.scale, self._cache = 1.0, None
        self._begin = _FIRST  # what was found in the cache is gone
