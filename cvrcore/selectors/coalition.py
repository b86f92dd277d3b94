"""FedCVR-Bolt: coalitions, variance reduction and a Boltzmann draw, kept up to date."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from .. import _backend
from .._validation import (
    Float,
    Ids,
    Mask,
    check_choice,
    check_count,
    check_dtype,
    check_labels,
    check_matrix,
    check_number,
    check_stored,
    check_vector,
)
from ..affinity import KERNELS, Affinity, check_gamma
from ..clustering import Effort, plane_coalitions, spectral_coalitions, trivial_partition
from ..covariance import PREDICTORS, cosine_coefficients, representatives
from ..sampling import LAWS, SCORES
from ..scores import DIAGONAL_FLOOR, score_moments
from ..selection import Selection, draw_selection
from ..spectral import Basis
from ..store import STORES, CovarianceStore
from ..threads import single_blas_thread
from .base import Probe, Report, Selector
from .locking import serialised
from .uniform import uniform_selection

#: The paper's text made finite, and what the authors' published scripts compute.
PRESETS: Final = {"paper": "regression", "scripts": "cosine"}
_COLD: Final = Effort(restarts=10)  # k-means when no earlier partition is known


def warm_effort(n_clients: int, updates: int) -> Effort:
    """Return how hard k-means tries besides starting from the last round's partition.

    A swap now and then leaves a poor optimum. Fewer where there are many clients: one
    round's partition is the next one's start, and without any swap the mean inertia is
    already below that of ten restarts.
    """
    often = min(400 // n_clients, 6)
    return Effort(restarts=0, swaps=often if often else int(updates % 4 == 0))


class CoalitionSelector(Selector):
    """The FedCVR-Bolt server: what it keeps between rounds, and the fast path.

    A round costs O(P K D) for the affinity, about ten products of K x K with K x P for the
    eigenvectors, and O(K D) for the scores; no K x K matrix per coordinate is formed unless
    that is the smaller form. The mathematics is that of the stateless functions.

    Parameters
    ----------
    n_clients, n_features, n_select : int
        K clients, D watched coordinates, P clients a round and as many coalitions.
    weights : array-like of shape (n_clients,), optional
        Raw sample counts n_k.
    warmup : int, default=30
        First rounds, drawn uniformly; rows are recorded, C is not touched.
    seed : int, SeedSequence or None
    initial : array-like of shape (n_features,) or (n_clients, n_features), optional
        Rows of clients not seen yet: the initial model. Default: zeros.
    dtype : {"float64", "float32"}
        Storage of rows, scores' moments and covariance.
    preset : {"paper", "scripts"}
        The predictor: regression coefficients C_kj / C_jj, or cosines of the last rows.
    predictor : {"regression", "cosine"}, optional
        Overrides the preset's.
    kernel, gamma
        See `cvrcore.influence`.
    temperature : float, default=1.0
    score : {"raw", "zscore", "log"}
        See `cvrcore.sampling.transform_scores`; "raw" is the paper's.
    within : {"boltzmann", "argmax", "uniform"}
        Law inside a coalition: Eq. (11), Eq. (10), or neither.
    rate : "decay" or float
        Step of the covariance: 1 / (s + 2) in main round s, or a constant in (0, 1).
    recluster_every : int, default=1
        Main rounds that coalitions are kept.
    store : {"auto", "dense", "factored", "none"}
        Form of the covariance, see `cvrcore.store.CovarianceStore`. "none" keeps what
        scores need and no more, for the cosine predictor; "auto" chooses it there.

    Examples
    --------
    >>> import cvrcore, numpy as np
    >>> selector = cvrcore.CoalitionSelector(
    ...     n_clients=20, n_features=5, n_select=4, warmup=2, seed=0
    ... )
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(5):
    ...     picked = selector.select()
    ...     selector.observe(picked.clients, rng.normal(size=(len(picked), 5)))
    >>> len(picked.clients), picked.warmup
    (4, False)
    """

    name = "fedcvr-bolt"

    def __init__(
        self,
        n_clients: int,
        n_features: int,
        n_select: int,
        weights: ArrayLike | None = None,
        warmup: int = 30,
        seed: int | np.random.SeedSequence | None = None,
        initial: ArrayLike | None = None,
        dtype: Any = "float64",
        *,
        preset: str = "paper",
        predictor: str | None = None,
        kernel: str = "rbf",
        gamma: float | str = 1.0,
        temperature: float = 1.0,
        score: str = "raw",
        within: str = "boltzmann",
        rate: str | float = "decay",
        recluster_every: int = 1,
        store: str = "auto",
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed)
        self.n_features = check_count(n_features, "n_features")
        self.warmup = check_count(warmup, "warmup", minimum=0)
        self.dtype = check_dtype(dtype)
        self.preset = check_choice(preset, "preset", PRESETS)
        self.predictor = check_choice(
            PRESETS[preset] if predictor is None else predictor, "predictor", PREDICTORS
        )
        self.kernel = check_choice(kernel, "kernel", KERNELS)
        self.gamma = check_gamma(gamma, self.kernel)
        self.temperature = check_number(temperature, "temperature", above=0)
        self.score = check_choice(score, "score", SCORES)
        self.within = check_choice(within, "within", LAWS)
        self.rate: str | float = (
            check_choice(rate, "rate", ("decay",))
            if isinstance(rate, str)
            else check_number(rate, "rate", above=0, below=1)
        )
        self.recluster_every = check_count(recluster_every, "recluster_every")
        self.store = check_choice(store, "store", STORES)
        if self.store == "none" and self.predictor == "regression":
            raise ValueError("store must not be 'none' with predictor 'regression': it reads C")

        self._initial, self._rows = self._initial_rows(initial)
        self.updates = 0  # main rounds that reached the covariance, s
        self._ones = 1.0  # weight of C(1) in C; kept here too for store="none"
        self._moment = np.ones((self.n_clients, self.n_features), dtype=self.dtype)
        self._diagonal = np.ones((self.n_clients, self.n_features), dtype=self.dtype)
        self._floor = np.full(self.n_features, DIAGONAL_FLOOR)
        self._scores = np.full(self.n_clients, float(self.n_features))
        keep = "none" if self.store == "auto" and self.predictor == "cosine" else self.store
        self._covariance = (
            None
            if keep == "none"
            else CovarianceStore(self.n_clients, self.n_features, keep, self.dtype)
        )
        self._affinity: Affinity | None = None
        self._stale = np.zeros(self.n_clients, dtype=bool)  # rows newer than the affinity's
        self._labels: Ids | None = None
        self._age = 0  # main rounds since the coalitions were made
        self._basis: Basis | None = None

    # -- reading ----------------------------------------------------------------

    @property
    @serialised
    def rows(self) -> Float:
        """Return a copy of the last observed coordinates of each client, (K, D)."""
        return self._rows.copy()

    @property
    @serialised
    def scores(self) -> Float:
        """Return a copy of the variance reduction v of each client, Eq. (9)."""
        return self._scores.copy()

    @serialised
    def covariance(self) -> Float:
        """Return C as a dense array (D, K, K): large; for inspection and tests."""
        if self._covariance is None:
            raise ValueError("covariance is not stored: pass store='dense' or 'factored'")
        return self._covariance.dense()

    # -- one round --------------------------------------------------------------

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if self.round < self.warmup:
            return uniform_selection(eligible, self.n_select, self._rng, self.round, warmup=True)
        return draw_selection(
            self._coalitions(),
            self._scores,
            eligible,
            self.n_select,
            self._rng,
            score=self.score,
            within=self.within,
            temperature=self.temperature,
            round=self.round,
        )

    def _coalitions(self) -> Ids:
        """Return this round's partition, made anew when it is due; Algorithm 1, lines 3-5."""
        last = self._labels
        if last is not None and int(last.max()) + 1 != self.n_select:
            last = None  # somebody changed n_select
        if last is not None and self._age < self.recluster_every:
            return last
        start, effort = np.empty(0, dtype=np.int64), _COLD
        if last is not None and self._basis is not None:  # without one they were dealt at random
            start = last
            if 4 * int(self._stale.sum()) <= self.n_clients:
                effort = warm_effort(self.n_clients, self.updates)
        labels = trivial_partition(self.n_clients, self.n_select)
        if labels is None and self.n_features <= 2:
            labels = plane_coalitions(self._rows, self.n_select, self._rng, _COLD)
        if labels is None:
            with single_blas_thread():  # once for all the small products inside
                labels, self._basis = spectral_coalitions(
                    self._fresh_affinity(), self.n_select, self._rng, effort, start, self._basis
                )
        self._labels, self._age = labels, 0
        return labels

    def _fresh_affinity(self) -> Affinity:
        if self._affinity is None:
            self._affinity = Affinity(self._rows, self.kernel, self.gamma)
        elif self._stale.any():
            ids = np.flatnonzero(self._stale)
            self._affinity.update(ids, self._rows[ids])
        self._stale[:] = False
        return self._affinity

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        assert report.models is not None
        coalitions = report.selection.coalitions
        if coalitions is None:  # warm-up: no coalitions, no residual
            self._replace_rows(report.clients, report.models)
            return
        # First drawn first, so that a coalition's representative is its first that reported.
        reported = np.zeros(self.n_clients, dtype=bool)
        reported[report.clients] = True
        drawn = report.selection.clients
        representative = representatives(drawn[reported[drawn]], coalitions)
        coefficients = (
            cosine_coefficients(self._rows, representative) if self.predictor == "cosine" else None
        )
        self._replace_rows(report.clients, report.models)
        self._step(self._residual(representative, coefficients))
        self._age += 1

    def _replace_rows(self, clients: Ids, models: Float) -> None:
        self._rows[clients] = models
        self._stale[clients] = True

    def _residual(self, representative: Ids, coefficients: Float | None) -> Float:
        """Return ``delta = theta - theta_bar``, Algorithm 1, line 14."""
        residual = np.empty_like(self._rows)
        if coefficients is not None:
            _backend.scaled_residual(coefficients, self._rows, representative, residual)
            return residual
        assert self._covariance is not None
        _backend.regression_residual(
            self._covariance.entries(representative),
            self._covariance.scale,
            self._diagonal,
            self._floor,
            self._rows,
            representative,
            residual,
        )
        return residual

    def _step(self, residual: Float) -> None:
        """Take one step of the covariance and of the scores, Algorithm 1, lines 6 and 17."""
        rate = 1.0 / (self.updates + 2) if self.rate == "decay" else float(self.rate)
        if self._covariance is not None:
            self._covariance.append(residual, rate)
        alpha = self.weights / self.weights.sum()
        _backend.advance_scores(
            self._moment,
            self._diagonal,
            residual,
            alpha,
            rate,
            DIAGONAL_FLOOR,
            self._floor,
            self._scores,
        )
        self._ones *= 1.0 - rate
        self.updates += 1

    # -- checks, growth and state -----------------------------------------------

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float:
        return self._check_range(
            check_matrix(models, "models", (n_reported, self.n_features), self.dtype), "models"
        )

    def _check_range(self, rows: Float, name: str) -> Float:
        """Refuse what float32 could not square and sum: no network holds it, nothing undoes it."""
        limit = float(np.sqrt(np.finfo(np.float32).max)) / max(self.n_clients, self.n_features)
        peak = float(np.abs(rows).max()) if rows.size else 0.0
        if peak > limit:
            raise ValueError(f"{name} must stay within {limit:.3g}, got {peak:.3g}")
        return rows

    def _check_learnable(self, report: Report) -> None:
        if report.models is None and report.clients.size:
            raise ValueError(f"models of the {report.clients.size} clients are required, got None")

    def _initial_rows(self, initial: ArrayLike | None) -> tuple[Float, Float]:
        """Return the row that newcomers get, and the rows of all clients."""
        shape = (self.n_clients, self.n_features)
        if initial is None:
            return np.zeros(self.n_features, self.dtype), np.zeros(shape, self.dtype)
        if np.ndim(initial) == 2:
            rows = check_matrix(initial, "initial", shape, self.dtype).copy()
            self._check_range(rows, "initial")
            return rows.mean(axis=0), rows
        row = check_vector(initial, "initial", self.n_features, self.dtype).copy()
        self._check_range(row, "initial")
        return row, np.tile(row, (self.n_clients, 1))

    def _grow(self, n_clients: int, added: Float) -> None:
        n_new, total = added.size, self.weights.sum()
        grown = total + added.sum()
        rows = np.tile(self._initial, (n_new, 1))
        # A joiner's residual has been 0 so far: its row of C is that of the fading ones.
        self._moment = np.concatenate(
            [
                self._moment * (total / grown) + self._ones * added.sum() / grown,
                np.full((n_new, self.n_features), self._ones),
            ]
        ).astype(self.dtype)
        self._diagonal = np.concatenate(
            [self._diagonal, np.full((n_new, self.n_features), self._ones)]
        ).astype(self.dtype)
        self._rows = np.concatenate([self._rows, rows])
        _backend.diagonal_floor(self._diagonal, DIAGONAL_FLOOR, self._floor)
        self._scores = score_moments(self._moment, self._diagonal)
        if self._covariance is not None:
            self._covariance.grow(n_clients)
        self._stale = np.zeros(n_clients, dtype=bool)
        self._affinity = self._labels = self._basis = None

    def _config(self) -> dict[str, Any]:
        names = "n_features warmup preset predictor kernel gamma temperature score within rate"
        config = {name: getattr(self, name) for name in names.split()}
        return {
            **config,
            "dtype": self.dtype.name,
            "initial": self._initial.copy(),
            "recluster_every": self.recluster_every,
            "store": self.store,
        }

    def _learned(self) -> dict[str, Any]:
        basis = None if self._basis is None else dataclasses.asdict(self._basis)
        return {
            "rows": self._rows.copy(),
            "updates": self.updates,
            "ones": self._ones,
            "moment": self._moment.copy(),
            "diagonal": self._diagonal.copy(),
            "floor": self._floor.copy(),
            "scores": self._scores.copy(),
            "covariance": None if self._covariance is None else self._covariance.state(),
            "affinity": None if self._affinity is None else self._affinity.state(),
            "stale": self._stale.copy(),
            "labels": None if self._labels is None else self._labels.copy(),
            "age": self._age,
            "basis": basis,
        }

    def _restore(self, learned: dict[str, Any]) -> None:
        shape = self._rows.shape
        for name in ("rows", "moment", "diagonal"):
            array = check_matrix(learned[name], name, shape, self.dtype)
            setattr(self, f"_{name}", array.copy())
        self._floor = check_vector(learned["floor"], "floor", self.n_features).copy()
        self._scores = check_vector(learned["scores"], "scores", self.n_clients).copy()
        self.updates = check_count(learned["updates"], "updates", minimum=0)
        self._ones, self._age = float(learned["ones"]), int(learned["age"])
        if self._covariance is not None:
            self._covariance.restore(learned["covariance"])
        self._stale = check_stored(learned["stale"], "stale", self.n_clients, bool)
        if learned["labels"] is not None:
            self._labels = check_labels(learned["labels"], self.n_clients, "labels").copy()
            if int(self._labels.max()) + 1 != self.n_select:
                raise ValueError(f"labels must name {self.n_select} coalitions")
        if learned["basis"] is not None:
            self._basis = Basis(**copy.deepcopy(learned["basis"]))
        if learned["affinity"] is not None:
            self._affinity = Affinity.restored(learned["affinity"], self.kernel, self.gamma)
