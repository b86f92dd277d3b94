"""FedCVR-Bolt: coalitions, variance reduction and a Boltzmann draw, kept up to date.

Reports of clients in, selections out. `select` is Algorithm 1, lines 3 to 9; `observe` is
lines 11 to 18. The mathematics is that of the stateless functions of `cvrcore.algorithm`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..clustering.partitions import Problem, trivial_partition
from ..covariance.estimator import Estimator
from ..covariance.pairs import cosine_coefficients, representatives
from ..draws.allocation import expected_distances
from ..draws.coalition_draw import draw_selection
from ..guards import Guards, as_guards
from ..runtime.journal import Journal
from ..selection import Selection
from ..validation import (
    Float,
    Ids,
    Mask,
    check_choice,
    check_count,
    check_dtype,
    check_matrix,
)
from .base import Probe, Report
from .coalition_state import CoalitionState, largest_entry
from .options import PRESETS, Rule, Solver, gathered
from .planned import make_partition, make_store
from .registry import refuse_unknown
from .resolution import warn_if_unresolved
from .uniform import uniform_selection


class CoalitionSelector(CoalitionState):
    """One client from each coalition of clients with similar models: FedCVR-Bolt.

    This is the server: the state that it keeps between rounds, and the fast path. A round costs
    O(P K D) for the affinity, at most about ten products of K x K with K x P for the
    eigenvectors, and O(K D) for the scores; no K x K matrix per coordinate is formed unless that
    is the smaller form.

    Parameters
    ----------
    n_clients, n_features, n_select : int
        K clients, D watched coordinates, P clients a round and as many coalitions.
    weights : array-like of shape (n_clients,), optional
        Raw sample counts n_k.
    warmup : int or "auto", optional
        First rounds, drawn uniformly; rows are recorded, C is not touched. "auto" ends when 95 %
        of the clients can be expected to have been seen, at round 30 at the latest, see
        `cvrcore.selectors.warmup.auto_warmup`. Default: "auto"; 30 if `preset` is given. The
        attribute `warmup` is the number of rounds.
    seed : int, SeedSequence or None
    initial : array-like of shape (n_features,) or (n_clients, n_features), optional
        Rows of clients not seen yet: the initial model. Default: zeros.
    dtype : {"float64", "float32"}
        Storage of rows, scores' moments and covariance. A warning is logged, once, if reported
        rows differ by less than float32 resolves.
    preset : {"paper", "scripts"}, optional
        The predictor: regression coefficients C_kj / C_jj, or cosines of the last rows. Default:
        the paper's predictor. A preset that is given also sets the paper's warm-up of 30 rounds.
    n_rounds : int, optional
        Rounds that you will run, if you know: a warm-up of "auto" takes at most a third of them,
        and a longer warm-up that leaves no round to the policy is reported in the log.
    rule : Rule, optional
        What is computed: kernel, temperature, law inside a coalition and so on.
    solver : Solver, optional
        How it is computed: clustering, store of the covariance, memory limit and so on.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients. Default: none.
    **options
        Fields of `Rule`, `Solver` and `Guards` one by one: ``temperature=0.5``.

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
    needs = frozenset({"models"})
    any_size = False
    asynchronous = False

    def __init__(
        self,
        n_clients: int,
        n_features: int,
        n_select: int,
        weights: ArrayLike | None = None,
        warmup: int | str | None = None,
        seed: int | np.random.SeedSequence | None = None,
        initial: ArrayLike | None = None,
        dtype: Any = "float64",
        *,
        preset: str | None = None,
        n_rounds: int | None = None,
        rule: Rule | None = None,
        solver: Solver | None = None,
        guards: Guards | str | None = None,
        **options: Any,
    ) -> None:
        self.rule = gathered("rule", rule, Rule, options)
        self.solver = gathered("solver", solver, Solver, options)
        if isinstance(guards, str):
            guards = as_guards(guards)
        guards = gathered("guards", guards, Guards, options)
        if options:
            refuse_unknown(self.name, options, self.option_names())
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.n_features = check_count(n_features, "n_features")
        self._set_warmup(warmup, n_rounds, named_preset=preset is not None)
        self.dtype = check_dtype(dtype)
        self._warned = self.dtype != np.float32  # of rows that float32 cannot tell apart
        self.preset = check_choice("paper" if preset is None else preset, "preset", PRESETS)
        self.predictor = self.rule.predictor or PRESETS[self.preset]
        if isinstance(self.rule.n_coalitions, int):
            check_count(self.rule.n_coalitions, "n_coalitions", 1, self.n_select)
        if self.solver.store == "none" and self.predictor == "regression":
            raise ValueError("store must not be 'none' with predictor 'regression': it reads C")
        self._plan = self._make_plan(self.n_clients, self.solver)
        self._largest = largest_entry(self.n_clients, self.n_features)
        self._initial, self._rows = self._initial_rows(initial)
        shape = (self.n_clients, self.n_features)
        self._estimator = Estimator(*shape, self.dtype, make_store(self._plan, *shape, self.dtype))
        how = (self.rule.kernel, self.rule.gamma, self.solver.eigensolver, self.rule.n_coalitions)
        self._partition = make_partition(self._plan, self.n_clients, *how)
        self._labels = None
        self._age = 0

    # -- one round --------------------------------------------------------------

    def _enlist(self, journal: Journal) -> None:
        """Note references; arrays and the random stream are noted before they change."""
        journal.references(self)
        if self._gate is not None:
            self._gate.enlist(journal)

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if self._journal is not None:
            self._journal.generator(self._rng)
        if self.round < self.warmup:
            return uniform_selection(eligible, self.n_select, self._rng, self.round, warmup=True)
        labels = self._coalitions()
        return draw_selection(
            labels,
            self._estimator.scores,
            eligible,
            self.n_select,
            self._rng,
            score=self.rule.score,
            within=self.rule.within,
            temperature=self.rule.temperature,
            round=self.round,
            weights=self.weights,
            distances=self._distances(labels),
            places=self.rule.places,
            balance=self.rule.balance,
            rows=self._rows,
        )

    def _distances(self, labels: Ids) -> Float | None:
        """Return the distances that Neyman's rules need, if one of them is asked for."""
        if "neyman" not in (self.rule.within, self.rule.places):
            return None
        known = (self._rows != self._initial).any(axis=1)
        return expected_distances(self._rows, labels, self.weights, known)

    def _most(self) -> int:
        """Return how many coalitions there may be, and are unless they are counted."""
        if isinstance(self.rule.n_coalitions, int):
            return min(self.rule.n_coalitions, self.n_select)
        return self.n_select

    def _fits(self, labels: Ids) -> bool:
        """Return whether a partition has as many coalitions as there should be."""
        n_found, most = int(labels.max()) + 1, self._most()
        return n_found <= most if isinstance(self.rule.n_coalitions, str) else n_found == most

    def _coalitions(self) -> Ids:
        """Return this round's partition, recomputed when it is due; Algorithm 1, lines 3 to 5."""
        last, most = self._labels, self._most()
        if last is not None and not self._fits(last):
            last = None  # n_select has changed since
        if last is not None and self._age < self.solver.recluster_every:
            return last
        labels = trivial_partition(self.n_clients, most)
        if labels is None:
            if self._journal is not None:
                self._partition.enlist(self._journal)
            given = (self._rows, most, self._rng, last, self.round, self._journal)
            labels = self._partition.make(Problem(*given))
        self._labels, self._age = labels, 0
        return labels

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        assert report.models is not None
        if not self._warned:
            self._warned = warn_if_unresolved(report.models)
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
        decay = self.rule.rate == "decay"
        rate = 1.0 / (estimator.updates + 2) if decay else float(self.rule.rate)
        alpha = self.weights / self.weights.sum()
        estimator.step(self._rows, coalitions, first, alpha, rate, cosines, self._journal)
        self._age += 1

    def _replace_rows(self, clients: Ids, models: Float) -> None:
        if self._journal is not None:
            self._journal.rows(clients, self._rows)
        self._rows[clients] = models
        self._partition.touch(clients, self._journal)

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float:
        shape = (n_reported, self.n_features)
        return check_matrix(models, "models", shape, self.dtype, self._largest)

    def _check_learnable(self, report: Report) -> None:
        if report.models is None and report.clients.size:
            raise ValueError(f"models of the {report.clients.size} clients are required, got None")
