"""What the server learns of the residuals' covariance: scores, and predictions.

Algorithm 1, lines 6 and 13 to 18, kept up to date in O(K D) a round besides the entries of C
that the predictor asks for. Clients are worked on in chunks that stay in cache; chunks
depend on the size of the problem alone, so the number of threads changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _backend
from ._validation import Float, Ids, check_count, check_matrix, check_number, check_vector
from .pairs import Pairs
from .scores import DIAGONAL_FLOOR, score_moments
from .store import CovarianceStore, Slot
from .threads import run_spans

#: ``predict(start, stop, news)`` writes the residuals of some pairs, and adds their sums.
Predict = Callable[[int, int, tuple[Any, ...]], None]


class Estimator:
    """``C alpha``, ``diag C`` and the scores v they give; C itself in a store, if at all.

    Parameters
    ----------
    n_clients, n_features : int
    dtype : float32 or float64
    store : CovarianceStore or None
        None, where no entry of C is ever asked for: the cosine predictor.
    """

    def __init__(
        self, n_clients: int, n_features: int, dtype: Any, store: CovarianceStore | None
    ) -> None:
        self.n_clients, self.n_features, self.dtype = n_clients, n_features, np.dtype(dtype)
        self.store = store
        self.updates = 0  # steps taken, s
        self.ones = 1.0  # weight of C(1) in C
        self.moment = np.ones((n_clients, n_features), dtype=dtype)
        self.diagonal = np.ones((n_clients, n_features), dtype=dtype)
        self.floor = np.full(n_features, DIAGONAL_FLOOR)
        self.scores = np.full(n_clients, float(n_features))
        self._spare: Float | None = None  # the residual, where no store keeps it
        self._torn = False  # whether a step was begun and not ended

    def step(
        self,
        rows: Float,
        coalitions: Ids,
        first: Ids,
        alpha: Float,
        rate: float,
        previous: Float | None = None,
    ) -> Callable[[], None]:
        """Prepare one step with this round's residuals, Algorithm 1, lines 14 and 17.

        What it returns takes the step. All that is large and stays is allocated before that.

        Parameters
        ----------
        rows : array of shape (n_clients, n_features)
            After the round.
        coalitions : int64 array of shape (n_clients,)
        first : int64 array of shape (n_coalitions,)
            The representative of each coalition, or -1.
        alpha : float64 array of shape (n_clients,)
        rate : float
        previous : float64 array of shape (n_clients,), optional
            Cosine of each client's row with its representative's before the round: the
            predictor is then this scalar instead of C_kj / C_jj.
        """
        self.check_whole()
        pairs = Pairs.of(coalitions, first)
        if self.store is not None and previous is None:
            self.store.ask(pairs)
        slot = self._open(rate)
        chunk = self._chunk()
        n_chunks = max(1, -(-pairs.clients.size // chunk))
        sums = np.zeros((n_chunks, 2, self.n_features))
        predict = self._regression(rows, pairs) if previous is None else _scaling(pairs, previous)

        def residuals(start: int, stop: int) -> None:
            which = (rows, pairs.clients[start:stop], pairs.groups[start:stop])
            where = (slot.weight, slot.block, slot.place)
            predict(start, stop, (*which, *where, alpha, chunk, sums[start // chunk :]))

        def take() -> None:
            run_spans(residuals, pairs.clients.size, chunk)
            # Only now: in a full window the place held a residual of representatives till here.
            slot.block[slot.place, pairs.alone] = 0.0
            self._advance(slot, rate, sums[0] if n_chunks == 1 else sums.sum(axis=0))

        return take

    def _regression(self, rows: Float, pairs: Pairs) -> Predict:
        """Predict clients by regression on their representatives, Eq. (13)."""
        store = self.store
        assert store is not None
        slopes, variances = np.empty((2, pairs.first.size, self.n_features), dtype=self.dtype)
        known = (self.diagonal, rows, pairs.first, self.floor)
        _backend.regression_slopes(*known, slopes, variances)
        learned = (*store.leads(pairs.first), store.unit, slopes, variances, self.diagonal)

        def predict(start: int, stop: int, news: tuple[Any, ...]) -> None:
            asked = store.read(pairs, start, stop)
            _backend.regression_residual(*asked, *learned, *news)
            store.keep(start, stop)

        return predict

    def _advance(self, slot: Slot, rate: float, sums: Float) -> None:
        """Bring moments and scores up to date with the residual in `slot`."""
        projection, squares = sums
        keep, gain = 1.0 - rate, rate / slot.weight**2
        self._torn = True  # until everything that follows is done
        self.floor = keep * self.floor + gain * DIAGONAL_FLOOR / self.n_clients * squares
        step, floor = (a.astype(self.dtype) for a in (gain * projection, self.floor))

        def advance(start: int, stop: int) -> None:
            _backend.advance_moments(
                self.moment,
                self.diagonal,
                slot.block,
                slot.place,
                step,
                keep,
                gain,
                floor,
                start,
                stop,
                self.scores,
            )

        run_spans(advance, self.n_clients, self._chunk())
        if self.store is not None:
            self.store.close(slot)
        self.ones *= keep
        self.updates += 1
        self._torn = False

    def check_whole(self) -> None:
        """Refuse to go on from a step that was cut off in the middle, by lack of memory say."""
        if self._torn:
            raise RuntimeError(
                "an earlier observe was cut off in the middle: load the last saved state"
            )

    def _open(self, rate: float) -> Slot:
        if self.store is not None:
            return self.store.open(rate)
        if self._spare is None:
            self._spare = np.empty((1, self.n_clients, self.n_features), dtype=self.dtype)
        return Slot(self._spare, 0, 1.0, 1.0)

    def _chunk(self) -> int:
        """Return the clients of one task: a megabyte of entries, but eight tasks if many.

        Tasks of less than 40,000 entries cost more than they save, and so do hundreds of tasks.
        """
        few, many = 40_000 // self.n_features, 131_072 // self.n_features
        return max(1, few, min(many, self.n_clients // 8), self.n_clients // 64)

    def grow(self, n_clients: int, total: float, added: float) -> None:
        """Add clients: their residual has been 0, their row of C is that of the fading ones.

        `total` is the weight before, `added` that of the newcomers.
        """
        shape = (n_clients - self.n_clients, self.n_features)
        share = total / (total + added)
        faded = self.moment * share + self.ones * (1.0 - share)
        fresh = np.full(shape, self.ones)
        moment = np.concatenate([faded, fresh]).astype(self.dtype)
        diagonal = np.concatenate([self.diagonal, fresh]).astype(self.dtype)
        scores, floor = score_moments(moment, diagonal), np.empty_like(self.floor)
        _backend.diagonal_floor(diagonal, DIAGONAL_FLOOR, floor)
        if self.store is not None:
            self.store.grow(n_clients)
        # Nothing below allocates: either all of it grows or none.
        self.moment, self.diagonal, self.scores, self.floor = moment, diagonal, scores, floor
        self.n_clients, self._spare = n_clients, None

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        self.check_whole()
        return {
            "updates": self.updates,
            "ones": self.ones,
            "moment": self.moment.copy(),
            "diagonal": self.diagonal.copy(),
            "floor": self.floor.copy(),
            "scores": self.scores.copy(),
            "covariance": None if self.store is None else self.store.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        shape = (self.n_clients, self.n_features)
        self.moment = check_matrix(state["moment"], "moment", shape, self.dtype).copy()
        self.diagonal = check_matrix(state["diagonal"], "diagonal", shape, self.dtype).copy()
        self.floor = check_vector(state["floor"], "floor", self.n_features).copy()
        self.scores = check_vector(state["scores"], "scores", self.n_clients).copy()
        self.updates = check_count(state["updates"], "updates", minimum=0)
        self.ones = check_number(state["ones"], "ones", minimum=0, maximum=1)
        if self.store is not None:
            self.store.restore(state["covariance"])


def _scaling(pairs: Pairs, cosines: Float) -> Predict:
    """Predict clients by one scalar a pair: the cosine of its last rows."""
    coefficients, others = cosines[pairs.clients], pairs.others

    def predict(start: int, stop: int, news: tuple[Any, ...]) -> None:
        rows, clients, _, *rest = news
        which = (coefficients[start:stop], rows, clients, others[start:stop])
        _backend.scaled_residual(*which, *rest)

    return predict
