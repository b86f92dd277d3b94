"""What the server learns of C: rows and labels of a round in, scores v of all clients out.

Algorithm 1, lines 6 and 13 to 18, kept up to date in O(K D) a round besides the entries of C
that the predictor asks for. Clients are worked on in chunks that stay in cache; chunks
depend on the size of the problem alone, so the number of threads changes no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import run_chunks
from ..validation import Float, Ids, check_count, check_matrix, check_number, check_vector
from .pairs import Pairs
from .scores import DIAGONAL_FLOOR, score_moments
from .store import CovarianceStore, ResidualTarget

#: Largest residual in float32: its square, over the smallest scale of a store, is finite.
LARGEST_SINGLE = 1e12


class RegressionTask(NamedTuple):
    """One chunk of pairs, as the kernel `regression_residual` takes it; Eq. (13).

    The kernel completes the entries C_kj, predicts the rows, writes residuals to `target` and
    adds their sums to `totals`.
    """

    initial: float  # PairSums
    sums: Float
    places: Ids
    block: Float
    n_used: int
    begin: Ids
    unit: float  # from sums to entries of C
    representatives: Ids  # of each coalition, or -1
    slopes: Float  # theta_j / C_jj of each coalition, (n_coalitions, n_features)
    variances: Float  # C_jj of each coalition
    diagonal: Float  # C_kk of each client, (n_clients, n_features)
    rows: Float  # theta of each client after the round
    clients: Ids  # the pairs: clients that are predicted ...
    groups: Ids  # ... and their coalitions
    target: Float  # (capacity, n_clients, n_features)
    place: int  # residual k goes to target[place, k]
    weight: float
    alpha: Float  # (n_clients,)
    totals: Float  # (2, n_features): sums of alpha_k r_k and of r_k^2 are added


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
        self._residual: Float | None = None  # room for one residual, where no store holds it
        self._interrupted = False  # whether a step was begun and did not end

    def enlist(self, journal: Journal) -> None:
        """Note everything that `grow` changes: it replaces every array."""
        journal.references(self)
        if self.store is not None:
            self.store.enlist(journal)

    def step(
        self,
        rows: Float,
        coalitions: Ids,
        first: Ids,
        alpha: Float,
        rate: float,
        cosines: Float | None = None,
        journal: Journal | None = None,
    ) -> None:
        """Take one step with this round's residuals, Algorithm 1, lines 14 and 17.

        Parameters
        ----------
        rows : array of shape (n_clients, n_features)
            After the round.
        coalitions : int64 array of shape (n_clients,)
        first : int64 array of shape (n_coalitions,)
            The representative of each coalition, or -1.
        alpha : float64 array of shape (n_clients,)
        rate : float
        cosines : float64 array of shape (n_clients,), optional
            Cosine of each client's row with its representative's before the round: the
            predictor is then this scalar instead of C_kj / C_jj.
        journal : Journal, optional
            Of the running verb. Up to its first write to moments, or to residuals that count,
            the step can be undone; moments are too large to copy in every round.
        """
        self.check_whole()
        if journal is not None:
            self._note(journal)
        pairs = Pairs.of(coalitions, first)
        self._interrupted = self.store is not None and self.store.overwrites(rate)
        target = self._open(rate)
        if cosines is None:
            sums = self._regression_residuals(rows, pairs, alpha, target)
        else:
            sums = self._scaled_residuals(rows, pairs, alpha, target, cosines)
        # Last: in a full window this place holds the representatives' residuals until now.
        target.block[target.place, pairs.unpredicted] = 0.0
        self._advance(target, rate, self._bounded(target, alpha, sums))

    def _note(self, journal: Journal) -> None:
        updates = self.updates
        journal.whole_if(lambda: not self._interrupted and self.updates == updates)
        if self.store is not None:
            self.store.note_step(journal)

    def _regression_residuals(
        self, rows: Float, pairs: Pairs, alpha: Float, target: ResidualTarget
    ) -> Float:
        """Predict clients by regression on their representatives, Eq. (13); return the sums."""
        store = self.store
        assert store is not None
        store.prepare(pairs)
        first, n_features = pairs.representatives, self.n_features
        slopes, variances = np.empty((2, first.size, n_features), dtype=self.dtype)
        known = (self.diagonal, rows, first, self.floor)
        dispatch.regression_slopes(*known, slopes, variances)
        chunk, totals = self._totals(pairs)

        def predict(start: int, stop: int) -> None:
            task = RegressionTask(
                *store.read(pairs, start, stop),
                unit=store.unit,
                representatives=first,
                slopes=slopes,
                variances=variances,
                diagonal=self.diagonal,
                rows=rows,
                clients=pairs.clients[start:stop],
                groups=pairs.groups[start:stop],
                target=target.block,
                place=target.place,
                weight=target.weight,
                alpha=alpha,
                totals=totals[start // chunk],
            )
            dispatch.regression_residual(task)
            store.commit(start, stop)

        run_chunks(predict, pairs.clients.size, chunk)
        return totals.sum(axis=0)

    def _scaled_residuals(
        self, rows: Float, pairs: Pairs, alpha: Float, target: ResidualTarget, cosines: Float
    ) -> Float:
        """Predict clients by one scalar a pair, the cosine of last rows; return the sums."""
        chunk, totals = self._totals(pairs)
        others = pairs.others

        def predict(start: int, stop: int) -> None:
            clients = pairs.clients[start:stop]
            which = (cosines[clients], rows, clients, others[start:stop])
            where = (target.weight, target.block, target.place)
            dispatch.scaled_residual(*which, *where, alpha, totals[start // chunk])

        run_chunks(predict, pairs.clients.size, chunk)
        return totals.sum(axis=0)

    def _totals(self, pairs: Pairs) -> tuple[int, Float]:
        """Return the pairs of one chunk, and room for the sums of each chunk."""
        chunk = self._chunk()
        n_chunks = max(1, -(-pairs.clients.size // chunk))
        return chunk, np.zeros((n_chunks, 2, self.n_features))

    def _bounded(self, target: ResidualTarget, alpha: Float, sums: Float) -> Float:
        """Clip residuals of float32 whose squares, or sums of squares, would overflow."""
        most = LARGEST_SINGLE * target.weight
        if self.dtype != np.float32 or sums[1].max() <= most**2:
            return sums
        residual = target.block[target.place]
        np.nan_to_num(residual, copy=False, posinf=most, neginf=-most)
        np.clip(residual, -most, most, out=residual)
        wide = residual.astype(np.float64)
        return np.stack([alpha @ wide, np.square(wide).sum(axis=0)])

    def _advance(self, target: ResidualTarget, rate: float, sums: Float) -> None:
        """Bring moments and scores up to date with the residual in `target`."""
        projection, squares = sums
        keep, gain = 1.0 - rate, rate / target.weight**2
        self._interrupted = True  # until everything that follows has ended
        self.floor = keep * self.floor + gain * DIAGONAL_FLOOR / self.n_clients * squares
        step, floor = (a.astype(self.dtype) for a in (gain * projection, self.floor))

        def advance(start: int, stop: int) -> None:
            residual = (target.block, target.place)
            rates = (step, keep, gain, floor)
            moments = (self.moment, self.diagonal)
            dispatch.advance_moments(*moments, *residual, *rates, start, stop, self.scores)

        run_chunks(advance, self.n_clients, self._chunk())
        if self.store is not None:
            self.store.close(target)
        self.ones *= keep
        self.updates += 1
        self._interrupted = False

    def check_whole(self) -> None:
        """Refuse to go on after a step that was interrupted, by lack of memory for example."""
        if self._interrupted:
            raise RuntimeError(
                "an earlier observe was cut off in the middle: load the last saved state"
            )

    def _open(self, rate: float) -> ResidualTarget:
        if self.store is not None:
            return self.store.open(rate)
        if self._residual is None:
            self._residual = np.empty((1, self.n_clients, self.n_features), dtype=self.dtype)
        return ResidualTarget(self._residual, 0, 1.0, 1.0)

    def _chunk(self) -> int:
        """Return the clients of one task: a megabyte of entries, but eight tasks if many.

        Tasks of less than 40,000 entries cost more than they save, and so do hundreds of tasks.
        """
        few, many = 40_000 // self.n_features, 131_072 // self.n_features
        return max(1, few, min(many, self.n_clients // 8), self.n_clients // 64)

    def grow(self, n_clients: int, total: float, added: float) -> None:
        """Add clients: their residual has been 0, their row of C is that of the fading ones.

        `total` is the weight of the clients before, `added` that of the new clients.
        """
        shape = (n_clients - self.n_clients, self.n_features)
        share = total / (total + added)
        faded = self.moment * share + self.ones * (1.0 - share)
        fresh = np.full(shape, self.ones)
        moment = np.concatenate([faded, fresh]).astype(self.dtype)
        diagonal = np.concatenate([self.diagonal, fresh]).astype(self.dtype)
        scores, floor = score_moments(moment, diagonal), np.empty_like(self.floor)
        dispatch.diagonal_floor(diagonal, DIAGONAL_FLOOR, floor)
        if self.store is not None:
            self.store.grow(n_clients)
        # Nothing below allocates: either everything grows or nothing.
        self.moment, self.diagonal, self.scores, self.floor = moment, diagonal, scores, floor
        self.n_clients, self._residual = n_clients, None

    def forget(self, client: int, share: float) -> None:
        """Erase one client: as if its residual had always been 0, and its weight were 0.

        `share` is the client's share of the weights. Without a store of C, or with a window that
        has overwritten residuals, its part of the other clients' sums ``C alpha`` cannot be told
        apart; it stays, or what the window lacks of it does.
        """
        self.check_whole()
        moment = self.moment.astype(np.float64)
        if self.store is not None and share < 1.0:
            moment = (moment - share * self.store.column(client)) / (1.0 - share)
        diagonal = self.diagonal.copy()
        moment[client] = diagonal[client] = self.ones
        moment = moment.astype(self.dtype)
        scores, floor = score_moments(moment, diagonal), np.empty_like(self.floor)
        dispatch.diagonal_floor(diagonal, DIAGONAL_FLOOR, floor)
        self._interrupted = True
        if self.store is not None:
            self.store.forget(client)
        self.moment, self.diagonal, self.scores, self.floor = moment, diagonal, scores, floor
        self._residual = None
        self._interrupted = False

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
        """Restore from `state`."""
        shape = (self.n_clients, self.n_features)
        self.moment = check_matrix(state["moment"], "moment", shape, self.dtype).copy()
        self.diagonal = check_matrix(state["diagonal"], "diagonal", shape, self.dtype).copy()
        self.floor = check_vector(state["floor"], "floor", self.n_features).copy()
        self.scores = check_vector(state["scores"], "scores", self.n_clients).copy()
        if (self.floor < 0).any() or (self.diagonal < 0).any():
            raise ValueError("floor and diagonal must be non-negative: they hold variances")
        self.updates = check_count(state["updates"], "updates", 0, 2**53)
        self.ones = check_number(state["ones"], "ones", minimum=0, maximum=1)
        if self.store is not None:
            self.store.restore(state["covariance"])
