"""FedCVR-Bolt: coalitions, variance reduction and a Boltzmann draw, kept up to date."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

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
    check_vector,
)
from ..affinity import KERNELS, check_gamma
from ..allocation import PLACES, SIZE_LAWS, expected_distances
from ..clustering import trivial_partition
from ..counting import COUNTS
from ..covariance import PREDICTORS, cosine_coefficients, representatives
from ..estimator import Estimator
from ..memory import UNLIMITED
from ..partition import Problem
from ..plan import Plan, make_plan
from ..sampling import LAWS, SCORES
from ..selection import Selection, draw_selection
from ..store import STORES
from ..threads import Chunks, begin, occupied
from .base import Probe, Report, Selector
from .locking import serialised
from .planned import make_partition, make_store
from .uniform import uniform_selection

#: The paper's text made finite, and what the authors' published scripts compute.
PRESETS: Final = {"paper": "regression", "scripts": "cosine"}
_WORTH_A_THREAD: Final = 100_000  # entries of all rows; a step of fewer ends before one wakes up
_SQUARED: Final = float(np.sqrt(np.finfo(np.float32).max))  # the most that float32 can square


class CoalitionSelector(Selector):
    """The FedCVR-Bolt server: what it keeps between rounds, and the fast path.

    A round costs O(P K D) for the affinity, at most about ten products of K x K with K x P
    for the eigenvectors, and O(K D) for the scores; no K x K matrix per coordinate is formed
    unless that is the smaller form. The mathematics is that of the stateless functions.

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
    within : {"boltzmann", "argmax", "uniform", "size", "neyman"}
        Law inside a coalition: Eq. (11), Eq. (10), or neither; in proportion to samples, or
        to samples times the distance of the client's last row from its coalition's mean.
        The last two are ours, see `cvrcore.allocation`; "neyman" is meant for rows of
        updates, as `cvrcore.features.FeatureMap.updates` makes them.
    rate : "decay" or float
        Step of the covariance: 1 / (s + 2) in main round s, or a constant in (0, 1).
    recluster_every : int, default=1
        Main rounds that coalitions are kept.
    store : {"auto", "dense", "factored", "window", "none"}
        Form of the covariance, see `cvrcore.store.CovarianceStore`. "none" keeps what
        scores need and no more, for the cosine predictor; "auto" chooses it there.
    window : int, optional
        Rounds that the covariance's predictor remembers; scores remember all. Default: all
        where memory allows.
    clustering : {"auto", "exact", "nystrom"}
        Spectral clustering of the whole affinity, or through `n_landmarks` landmarks;
        "auto" takes the first up to 12,000 clients, where memory allows.
    eigensolver : {"auto", "direct"}
        "auto" iterates from what is near, the last round's vectors or clients' principal
        coordinates, in float32; "direct" asks LAPACK (beyond 1,500 clients ARPACK) in float64
        each time coalitions are made. Landmarks, which are few, are solved directly anyway.
    n_landmarks : int, optional
        Default: 500, or twice n_select if that is more.
    landmarks : {"uniform", "kmeans++"}
        How landmarks are drawn among the clients.
    memory_limit : float, optional
        Bytes that the selector may take; see `plan`. Default: half of what is free.
    n_coalitions : int, {"eigengap", "silhouette"}, optional
        Coalitions, from 2 to P: a number, or found anew whenever they are made, see
        `cvrcore.counting` (up to the sizes of "exact" clustering). Default: P, as in the
        paper.
    places : {"even", "neyman"}
        Who gets the places that are left when there are fewer coalitions than P: those with
        most clients to spare, or those where chance does most harm.

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
        window: int | None = None,
        clustering: str = "auto",
        eigensolver: str = "auto",
        n_landmarks: int | None = None,
        landmarks: str = "uniform",
        memory_limit: float | None = None,
        n_coalitions: int | str | None = None,
        places: str = "even",
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
        self.within = check_choice(within, "within", (*LAWS, *SIZE_LAWS))
        self.rate: str | float = (
            check_choice(rate, "rate", ("decay",))
            if isinstance(rate, str)
            else check_number(rate, "rate", above=0, below=1)
        )
        self.recluster_every = check_count(recluster_every, "recluster_every")
        self.store = check_choice(store, "store", STORES)
        self.places = check_choice(places, "places", PLACES)
        self.n_coalitions: int | str | None = n_coalitions
        if isinstance(n_coalitions, str):
            check_choice(n_coalitions, "n_coalitions", COUNTS)
        elif n_coalitions is not None:
            self.n_coalitions = check_count(n_coalitions, "n_coalitions", 1, self.n_select)
        if self.store == "none" and self.predictor == "regression":
            raise ValueError("store must not be 'none' with predictor 'regression': it reads C")

        self.window, self.clustering, self.memory_limit = window, clustering, memory_limit
        self.n_landmarks, self.landmarks, self.eigensolver = n_landmarks, landmarks, eigensolver
        self._plan = self._make_plan(self.n_clients, self.store, window, clustering, n_landmarks)
        self._initial, self._rows = self._initial_rows(initial)
        shape = (self.n_clients, self.n_features)
        kept = make_store(self._plan, *shape, self.dtype)
        self._settled = Estimator(*shape, self.dtype, kept)
        self._learning: Chunks | None = None  # a step of it that is under way
        rule = (self.kernel, self.gamma, self.eigensolver, self.n_coalitions)
        self._partition = make_partition(self._plan, self.n_clients, *rule)
        self._labels: Ids | None = None
        self._age = 0  # main rounds since the coalitions were made

    def _make_plan(
        self,
        n_clients: int,
        store: str,
        window: int | None,
        clustering: str,
        n_landmarks: int | None,
    ) -> Plan:
        return make_plan(
            n_clients,
            self.n_features,
            self.n_select,
            dtype=self.dtype.name,
            predictor=self.predictor,
            store=store,
            window=window,
            clustering=clustering,
            eigensolver=self.eigensolver,
            n_landmarks=n_landmarks,
            landmarks=self.landmarks,
            recluster_every=self.recluster_every,
            memory_limit=self.memory_limit,
        )

    def _decided(self) -> dict[str, Any]:
        """Return what the plan chose, so that it need not be chosen again."""
        plan = self._plan
        return {
            "store": plan.store,
            "window": plan.window,
            "clustering": "auto" if plan.clustering == "plane" else plan.clustering,
            "n_landmarks": max(plan.n_landmarks, self.n_select),
        }

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
        return self._estimator.scores.copy()

    @property
    @serialised
    def updates(self) -> int:
        """Return how many main rounds have reached the covariance."""
        return self._estimator.updates

    @property
    @serialised
    def dropped(self) -> float:
        """Return the share of the covariance's weight that its window has let go of."""
        store = self._estimator.store
        return 0.0 if store is None else store.history.dropped

    def plan(self) -> Plan:
        """Return the means this selector takes, what they need and what they cost."""
        return self._plan

    @serialised
    def covariance(self) -> Float:
        """Return C as a dense array (D, K, K): large; for inspection and tests."""
        if self._estimator.store is None:
            raise ValueError("covariance is not stored: pass store='dense' or 'factored'")
        return self._estimator.store.dense()

    # -- one round --------------------------------------------------------------

    @property
    def _estimator(self) -> Estimator:
        """What is known of the covariance, once the step under way has ended."""
        if self._learning is not None:
            self._learning.finish()
            self._learning = None
        return self._settled

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if self.round < self.warmup:
            return uniform_selection(eligible, self.n_select, self._rng, self.round, warmup=True)
        with occupied:  # before the step under way looks for help
            labels = self._coalitions()
        return draw_selection(
            labels,
            self._estimator.scores,
            eligible,
            self.n_select,
            self._rng,
            score=self.score,
            within=self.within,
            temperature=self.temperature,
            round=self.round,
            weights=self.weights,
            distances=self._distances(labels),
            places=self.places,
        )

    def _distances(self, labels: Ids) -> Float | None:
        """Return what Neyman's rules go by, if one of them is asked for."""
        if "neyman" not in (self.within, self.places):
            return None
        known = (self._rows != self._initial).any(axis=1)
        return expected_distances(self._rows, labels, self.weights, known)

    def _most(self) -> int:
        """Return how many coalitions there may be, and are unless they are counted."""
        if isinstance(self.n_coalitions, int):
            return min(self.n_coalitions, self.n_select)
        return self.n_select

    def _fits(self, labels: Ids) -> bool:
        """Return whether a partition has as many coalitions as there should be."""
        n_found, most = int(labels.max()) + 1, self._most()
        return n_found <= most if isinstance(self.n_coalitions, str) else n_found == most

    def _coalitions(self) -> Ids:
        """Return this round's partition, made anew when it is due; Algorithm 1, lines 3-5."""
        last, most = self._labels, self._most()
        if last is not None and not self._fits(last):
            last = None  # somebody changed n_select
        if last is not None and self._age < self.recluster_every:
            return last
        labels = trivial_partition(self.n_clients, most)
        if labels is None:
            # Rows are all it takes: the step under way goes on beside it.
            labels = self._partition.make(Problem(self._rows, most, self._rng, last, self.round))
        self._labels, self._age = labels, 0
        return labels

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        assert report.models is not None
        estimator, coalitions = self._estimator, report.selection.coalitions
        if coalitions is None:  # warm-up: no coalitions, no residual
            self._replace_rows(report.clients, report.models)
            return
        # First drawn first, so that a coalition's representative is its first that reported.
        reported = np.zeros(self.n_clients, dtype=bool)
        reported[report.clients] = True
        drawn = report.selection.clients
        first = representatives(drawn[reported[drawn]], coalitions)
        cosines = (
            cosine_coefficients(self._rows, first[coalitions])
            if self.predictor == "cosine"
            else None
        )
        self._replace_rows(report.clients, report.models)
        rate = 1.0 / (estimator.updates + 2) if self.rate == "decay" else float(self.rate)
        alpha = self.weights / self.weights.sum()
        step = estimator.step(self._rows, coalitions, first, alpha, rate, cosines)
        if self._rows.size < _WORTH_A_THREAD:
            step()
        else:  # nobody asks for scores before the next round
            self._learning = begin(step)
        self._age += 1

    def _replace_rows(self, clients: Ids, models: Float) -> None:
        self._rows[clients] = models
        self._partition.touch(clients)

    # -- checks, growth and state -----------------------------------------------

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float:
        shape = (n_reported, self.n_features)
        return check_matrix(models, "models", shape, self.dtype, self._limit())

    def _limit(self) -> float:
        """Return what float32 can square and sum: no network holds more, nothing undoes it."""
        return _SQUARED / max(self.n_clients, self.n_features)

    def _check_learnable(self, report: Report) -> None:
        if report.models is None and report.clients.size:
            raise ValueError(f"models of the {report.clients.size} clients are required, got None")

    def _initial_rows(self, initial: ArrayLike | None) -> tuple[Float, Float]:
        """Return the row that newcomers get, and the rows of all clients."""
        shape = (self.n_clients, self.n_features)
        if initial is None:
            return np.zeros(self.n_features, self.dtype), np.zeros(shape, self.dtype)
        if np.ndim(initial) == 2:
            rows = check_matrix(initial, "initial", shape, self.dtype, self._limit()).copy()
            return rows.mean(axis=0), rows
        rule = (self.n_features, self.dtype, self._limit())
        row = check_vector(initial, "initial", *rule).copy()
        return row, np.tile(row, (self.n_clients, 1))

    def _grow(self, n_clients: int, added: Float) -> None:
        plan = self._make_plan(n_clients, **self._decided())  # before anything changes
        rows = np.concatenate([self._rows, np.tile(self._initial, (added.size, 1))])
        self._estimator.grow(n_clients, float(self.weights.sum()), float(added.sum()))
        self._partition.reset(n_clients)
        self._rows, self._plan, self._labels = rows, plan, None

    def _config(self) -> dict[str, Any]:
        names = "n_features warmup preset predictor kernel gamma temperature score within rate"
        config = {name: getattr(self, name) for name in names.split()}
        # Left out while they are the paper's: older versions read such a state too.
        if self.n_coalitions is not None:
            counted = isinstance(self.n_coalitions, str)
            config["n_coalitions"] = self.n_coalitions if counted else self._most()
        if self.places != "even":
            config["places"] = self.places
        if self.eigensolver != "auto":
            config["eigensolver"] = self.eigensolver
        return {
            **config,
            **self._decided(),
            "dtype": self.dtype.name,
            "initial": self._initial.copy(),
            "recluster_every": self.recluster_every,
            "landmarks": self.landmarks,
            # What has been decided holds wherever this is loaded: see `_restore`.
            "memory_limit": float(UNLIMITED),
        }

    def _learned(self) -> dict[str, Any]:
        return {
            "rows": self._rows.copy(),
            "labels": None if self._labels is None else self._labels.copy(),
            "age": self._age,
            "memory_limit": self.memory_limit,
            **self._estimator.state(),
            **self._partition.state(),
        }

    def __getstate__(self) -> dict[str, Any]:
        """End the step under way, so that a selector can be copied and sent to a process."""
        with self._lock:
            self._estimator.check_whole()
            return super().__getstate__()

    def _restore(self, learned: dict[str, Any]) -> None:
        rows = check_matrix(learned["rows"], "rows", self._rows.shape, self.dtype)
        self._rows = rows.copy()
        self._estimator.restore(learned)
        self._partition.restore(learned)
        self._age = check_count(learned["age"], "age", minimum=0)
        if learned["labels"] is not None:
            self._labels = check_labels(learned["labels"], self.n_clients, "labels").copy()
        limit = learned.get("memory_limit")
        self.memory_limit = None if limit is None else check_number(limit, "memory_limit", above=0)
