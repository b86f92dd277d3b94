"""The covariance between rounds: residuals in, entries of C out, in the form that suits K.

Sums over rounds run in the order of rounds whatever the form, so that in float64 a store
that changes its form, caches or is loaded from a file returns the same bits. Only a window
that has overwritten residuals approximates.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.sizes import caches_pairs
from ..validation import Float, Ids, check_number, check_shape
from .packed import PackedCovariance
from .pairs import PairCache, Pairs
from .residual_log import BLOCK, ResidualLog

_NO_IDS: Final = np.empty(0, dtype=np.int64)


class ResidualTarget(NamedTuple):
    """Where the residual of a step goes: ``block[place] = weight * residual``."""

    block: Float
    place: int
    weight: float
    scale: float  # of the store, after the step


class PairSums(NamedTuple):
    """Entries of C of some pairs, up to the residuals of the last block of the log.

    ``sums[places[i]]`` of pair i lacks the residuals ``begin[i] .. n_used - 1`` of `block`.
    """

    initial: float  # value of each sum, if `sums` is empty
    sums: Float
    places: Ids  # empty: the i-th sum is the i-th pair's
    block: Float
    n_used: int
    begin: Ids  # empty: 0 for all pairs


class CovarianceStore:
    """C^d for every d: ``C = scale * (ones + sum_s r_s r_s^T)``.

    "factored" keeps the log of residuals: O(K t D) memory. "dense" keeps the sums of all
    pairs, see `PackedCovariance`. "auto" begins factored and becomes dense when that takes
    less memory, after K / 2 rounds, or less time, when few sums can be continued from the
    cache of pairs; or it keeps a window of the last rounds, where neither fits.

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
        self.packed: PackedCovariance | None = None
        self.log = ResidualLog(n_clients, n_features, dtype, window)
        self._streamed = 0.0  # moving average of residual rows read in a round
        self._begin = _NO_IDS  # rounds in the cached sum of each pair
        self._no_block = np.empty((1, 1, n_features), dtype=dtype)
        self._no_sums = np.empty((0, n_features), dtype=dtype)
        self._cache: PairCache | None = None
        self._next_packed: PackedCovariance | None = None  # the form after the next `close`
        if kind == "dense":
            self.packed = PackedCovariance(*self._size, self.ones)

    @property
    def _size(self) -> tuple[int, int, Any]:
        return self.n_clients, self.n_features, self.dtype

    @property
    def form(self) -> str:
        """Return the present form: "dense", "factored" or "window"."""
        if self.packed is not None:
            return "dense"
        return "window" if self.log.wrapped else "factored"

    @property
    def nbytes(self) -> int:
        """Return the bytes held."""
        dense = 0 if self.packed is None else self.packed.nbytes
        cached = 0 if self._cache is None else self._cache.values.nbytes
        return dense + cached + self.log.nbytes

    def enlist(self, journal: Journal) -> None:
        """Note everything that `grow` changes: it replaces every array."""
        journal.references(self)
        journal.references(self.log)

    def note_step(self, journal: Journal) -> None:
        """Note what a step changes before its first write to something that counts."""
        journal.values(self, _streamed=self._streamed, _next_packed=None, _cache=None)

    # -- one round --------------------------------------------------------------

    def prepare(self, pairs: Pairs) -> None:
        """Look up the cached sums of the pairs that `read` is going to ask for."""
        self._begin = _NO_IDS
        if self.packed is not None or self.log.wrapped:
            return
        if self._cache is None and caches_pairs(self.log.window) and self.log.count >= BLOCK // 2:
            self._cache = PairCache(*self._size)
        if self._cache is not None:
            self._begin = self._cache.lookup(pairs, self.log.count)
        n_read = self.log.count * pairs.clients.size - int(self._begin.sum())
        self._streamed += 0.125 * (n_read - self._streamed)

    @property
    def unit(self) -> float:
        """Return the factor from entries that `read` returns to C; a window stands for all."""
        return self.scale * self.log.represented if self.log.wrapped else self.scale

    def _initial(self) -> float:
        """Return the value at which sums of pairs begin."""
        return self.ones / self.log.represented if self.log.wrapped else self.ones

    def read(self, pairs: Pairs, start: int, stop: int) -> PairSums:
        """Return ``C_kj / unit`` of pairs `start` .. `stop` - 1, less the last block's part.

        The prediction kernel reads the last block of a client anyway and adds that part in
        the same pass. Then comes `commit`.
        """
        begin, initial = self._begin[start:stop], self._initial()
        *earlier, (block, n_used) = self.log.parts() or [(self._no_block, 0)]
        clients, others = pairs.clients[start:stop], pairs.others[start:stop]
        places = _NO_IDS
        if self.packed is not None:
            sums = self.packed.read(clients, others)
        elif self._cache is not None:
            sums, places = self._cache.values, self._cache.borrow(start, stop, initial)
        elif earlier:
            sums = np.full((stop - start, self.n_features), initial, self.dtype)
        else:
            sums = self._no_sums
        for part, n in earlier:
            if not begin.size or begin.min() < n:
                dispatch.add_products(part, n, clients, others, begin, sums, places)
            begin = begin - n
        return PairSums(initial, sums, places, block, n_used, begin)

    def commit(self, start: int, stop: int) -> None:
        """Mark the sums that `read` returned as complete up to the last residual."""
        if self._cache is not None:
            self._cache.commit(start, stop, self.log.count)

    def reserve(self, n_rounds: int) -> None:
        """Allocate and touch the memory that so many more rounds need.

        On a virtual host the first touch of a page may take longer than the round itself.
        """
        if self.packed is not None:
            return
        self.log.reserve(n_rounds)
        if self._cache is None and caches_pairs(self.log.window):
            self._cache = PairCache(*self._size)
            self._cache.values[:] = 0.0

    def overwrites(self, rate: float) -> bool:
        """Return whether the step of `open` and `read` overwrites residuals that count."""
        full = self.packed is None and self.log.count == self.log.window
        return full or self._rescales(rate)

    def _rescales(self, rate: float) -> bool:
        least = 1e-60 if self.dtype == np.float64 else 1e-12
        return self.scale * (1.0 - rate) < least

    def open(self, rate: float) -> ResidualTarget:
        """Return where to write the residual of the step ``C <- (1 - rate) C + rate r r^T``."""
        if self._rescales(rate):
            self._rescale()
        scale = self.scale * (1.0 - rate)
        dense_next = self.packed is None and self.kind == "auto" and self._dense_pays()
        self._next_packed = PackedCovariance(*self._size, self.ones) if dense_next else None
        weight = float(np.sqrt(rate / scale))
        # A decaying rate has weight 1 up to rounding: then nothing needs scaling.
        block, index = (self.log if self.packed is None else self.packed).target()
        return ResidualTarget(block, index, 1.0 if abs(weight - 1.0) < 1e-12 else weight, scale)

    def close(self, target: ResidualTarget) -> None:
        """Take the step whose residual was written to `target`."""
        self.scale = target.scale
        if self.packed is not None:
            self.packed.push()
            return
        self.log.push(target.weight**2)
        if self.log.wrapped or self._next_packed is not None:
            self._cache = None
        if self._next_packed is not None:
            self._next_packed.absorb(self.log.parts())
            self.packed, self._next_packed = self._next_packed, None
            self.log = ResidualLog(*self._size)

    # -- everything at once -------------------------------------------------------

    def dense(self) -> Float:
        """Return C as an array of shape (n_features, n_clients, n_clients), float64."""
        rows, columns = np.tril_indices(self.n_clients)
        if self.packed is not None:
            lower = self.packed.read(rows, columns).astype(np.float64)
        else:
            lower = np.full((rows.size, self.n_features), self._initial())
            for block, used in self.log.parts():
                for s in range(used):
                    step = block[s].astype(np.float64)
                    lower += step[rows] * step[columns]
        full = np.empty((self.n_features, self.n_clients, self.n_clients))
        full[:, rows, columns] = full[:, columns, rows] = self.unit * lower.T
        return full

    def column(self, client: int) -> Float:
        """Return the entries C_kj of one client j with all clients k, (n_clients, n_features)."""
        if self.packed is not None:
            clients = np.arange(self.n_clients)
            entries = self.packed.read(clients, np.full_like(clients, client)).astype(np.float64)
        else:
            entries = np.full((self.n_clients, self.n_features), self._initial())
            for block, used in self.log.parts():
                for s in range(used):
                    step = block[s].astype(np.float64)
                    entries += step * step[client]
        return np.asarray(self.unit * entries)

    def forget(self, client: int) -> None:
        """Erase the residuals of one client: they count as 0."""
        if self.packed is not None:
            self.packed.forget(client, self.ones)
        self.log.forget(client)
        self._cache = None

    def grow(self, n_clients: int) -> None:
        """Add clients, whose residuals have been 0 so far."""
        if self.packed is not None:
            self.packed = self.packed.grown(n_clients, self.ones)
        self.log.grow(n_clients)
        self.n_clients, self._cache = n_clients, None

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        kept = {"scale": self.scale, "ones": self.ones, "streamed": self._streamed}
        if self.packed is not None:
            return {**kept, **self.packed.state()}
        return {**kept, "base": None, **self.log.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""
        self.scale = check_number(state["scale"], "scale", above=0, maximum=1)
        self.ones = check_number(state["ones"], "ones", minimum=0, maximum=1)
        self._streamed = check_number(state.get("streamed", 0.0), "streamed", minimum=0)
        dense, self.packed, self._cache = self.packed, None, None
        self.log = ResidualLog(*self._size, self.log.window)
        if state["base"] is None:
            self.log.restore(state)
        else:
            n_pairs = self.n_clients * (self.n_clients + 1) // 2
            check_shape(state["base"], "base", (n_pairs, self.n_features))
            self.packed = dense or PackedCovariance(*self._size, self.ones)
            self.packed.restore(state)

    # -- its form -----------------------------------------------------------------

    def _dense_pays(self) -> bool:
        """Return whether the dense form takes less memory, or less time, than the log.

        A fold costs about as much as K^2 / 12 residual rows read, measured at K = 100 and 1000.
        """
        smaller = 2 * self.log.count >= self.n_clients
        return self.may_be_dense and (smaller or 12 * self._streamed >= self.n_clients**2)

    def _rescale(self) -> None:
        """Bring scale back to 1 before it underflows (a constant rate gets there)."""
        if self.packed is not None:
            self.packed.scale(self.scale)
        self.log.scale(float(np.sqrt(self.scale)))
        self.ones *= self.scale
        self.scale, self._cache = 1.0, None
