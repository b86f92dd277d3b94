"""State of `CoalitionSelector`: its plan, checks, growth, and what a file holds of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..clustering.partitions import Partition
from ..covariance.estimator import Estimator
from ..guards import Guards
from ..runtime.memory import UNLIMITED
from ..runtime.plan import Plan, make_plan
from ..runtime.threads import serialised
from ..validation import (
    Float,
    Ids,
    check_count,
    check_ids,
    check_labels,
    check_matrix,
    check_number,
    check_shape,
    check_vector,
)
from .base import Selector
from .options import Rule, Solver
from .warmup import auto_warmup, check_warmup, log_warmup


def largest_entry(n_clients: int, n_features: int) -> float:
    """Return the largest entry whose squares float32 can sum over clients or coordinates."""
    return float(np.sqrt(np.finfo(np.float32).max)) / max(n_clients, n_features)


class CoalitionState(Selector):
    """The arrays that FedCVR-Bolt keeps between rounds."""

    n_features: int
    dtype: np.dtype[Any]
    warmup: int  # rounds
    _auto: bool  # whether `warmup` is computed
    _n_rounds: int | None  # rounds that the caller announced
    preset: str
    predictor: str
    rule: Rule
    solver: Solver
    _plan: Plan
    _largest: float  # entry of a row that is accepted
    _initial: Float  # row of clients that have not been seen
    _rows: Float  # last observed row of each client, (n_clients, n_features)
    _estimator: Estimator
    _partition: Partition
    _labels: Ids | None  # the present coalitions
    _age: int  # main rounds since they were made

    # -- reading ----------------------------------------------------------------

    @property
    @serialised
    def rows(self) -> Float:
        """Return a copy of the last observed coordinates of each client, (K, D)."""
        return self._rows.copy()

    @serialised
    def rows_of(self, clients: ArrayLike) -> Float:
        """Return a copy of the last observed coordinates of some clients, one row each."""
        rows: Float = self._rows[check_ids(clients, "clients", self.n_clients)]
        return rows

    @serialised
    def seen(self, clients: ArrayLike | None = None) -> Ids:
        """Return the clients, by default of all, whose row is no longer the initial one."""
        if clients is None:
            return np.flatnonzero((self._rows != self._initial).any(axis=1))
        ids = check_ids(clients, "clients", self.n_clients)
        return ids[(self._rows[ids] != self._initial).any(axis=1)]

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
        """Return the share of the covariance's weight that its window has overwritten."""
        store = self._estimator.store
        return 0.0 if store is None else store.log.dropped

    @property
    def kernel(self) -> str:
        """Return the kernel of the influence."""
        return self.rule.kernel

    @property
    def gamma(self) -> float | str:
        """Return gamma of that kernel."""
        return self.rule.gamma

    @property
    def recluster_every(self) -> int:
        """Return, or set between rounds, for how many main rounds coalitions are kept."""
        return self.solver.recluster_every

    @recluster_every.setter
    def recluster_every(self, rounds: int) -> None:
        self.solver = dataclasses.replace(self.solver, recluster_every=rounds)

    def plan(self) -> Plan:
        """Return the methods that this selector uses, their memory and their work."""
        return self._plan

    @serialised
    def covariance(self) -> Float:
        """Return C as a dense array (D, K, K): large; for inspection and tests."""
        if self._estimator.store is None:
            raise ValueError("covariance is not stored: pass store='dense' or 'factored'")
        return self._estimator.store.dense()

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the keywords of the constructor, fields of its options objects included."""
        import inspect

        named = [name for name in inspect.signature(cls).parameters if name != "options"]
        kinds = (Rule, Solver, Guards)
        return named + [field.name for kind in kinds for field in dataclasses.fields(kind)]

    # -- plan and checks ----------------------------------------------------------

    def _make_plan(self, n_clients: int, solver: Solver) -> Plan:
        return make_plan(
            n_clients,
            self.n_features,
            self.n_select,
            dtype=self.dtype.name,
            predictor=self.predictor,
            store=solver.store,
            window=solver.window,
            clustering=solver.clustering,
            eigensolver=solver.eigensolver,
            n_landmarks=solver.n_landmarks,
            landmarks=solver.landmarks,
            recluster_every=solver.recluster_every,
            memory_limit=solver.memory_limit,
        )

    def _decided(self) -> dict[str, Any]:
        """Return what the plan decided, so that it need not be decided again."""
        plan = self._plan
        return {
            "store": plan.store,
            "window": plan.window,
            "clustering": "auto" if plan.clustering == "plane" else plan.clustering,
            "n_landmarks": max(plan.n_landmarks, self.n_select),
        }

    # -- checks, growth and state -----------------------------------------------

    def _set_warmup(self, wanted: Any, n_rounds: Any, named_preset: bool) -> None:
        self._n_rounds = None if n_rounds is None else check_count(n_rounds, "n_rounds")
        given = check_warmup(wanted, named_preset)
        self._auto = given is None
        self.warmup = self._auto_warmup(self.weights) if given is None else given
        log_warmup(self.name, self.warmup, self._auto, self._n_rounds)

    def _auto_warmup(self, weights: Float) -> int:
        n_clients = int(np.count_nonzero(weights))  # a client without samples is never picked
        return auto_warmup(n_clients, self.n_select, self._n_rounds)

    def _initial_rows(self, initial: ArrayLike | None) -> tuple[Float, Float]:
        """Return the row of clients that join later, and the rows of all clients."""
        shape = (self.n_clients, self.n_features)
        if initial is None:
            return np.zeros(self.n_features, self.dtype), np.zeros(shape, self.dtype)
        if np.ndim(initial) == 2:
            rows = check_matrix(initial, "initial", shape, self.dtype, self._largest).copy()
            return rows.mean(axis=0), rows
        rule = (self.n_features, self.dtype, self._largest)
        row = check_vector(initial, "initial", *rule).copy()
        return row, np.tile(row, (self.n_clients, 1))

    def _unseen_row(self) -> Float:
        return self._initial

    def _grow(self, n_clients: int, added: Float) -> None:
        plan = self._make_plan(n_clients, dataclasses.replace(self.solver, **self._decided()))
        if self._journal is not None:
            self._estimator.enlist(self._journal)
            self._partition.enlist(self._journal)
        rows = np.concatenate([self._rows, np.tile(self._initial, (added.size, 1))])
        self._estimator.grow(n_clients, float(self.weights.sum()), float(added.sum()))
        self._partition.reset(n_clients)
        self._rows, self._plan, self._labels = rows, plan, None
        self._largest = largest_entry(n_clients, self.n_features)
        if self._auto and self.round < self.warmup:  # a warm-up that is over stays over
            self.warmup = self._auto_warmup(np.concatenate([self.weights, added]))

    def _forget(self, client: int) -> None:
        """Erase the row of a client and its part of C; coalitions are made again."""
        rows = self._rows.copy()
        rows[client] = self._initial
        self._estimator.forget(client, float(self.weights[client] / self.weights.sum()))
        self._partition.reset(self.n_clients)
        self._rows, self._labels = rows, None

    def _config(self) -> dict[str, Any]:
        rule, solver = self.rule, self.solver
        config: dict[str, Any] = {
            "n_features": self.n_features,
            "warmup": self.warmup,
            "preset": self.preset,
            "predictor": self.predictor,
            "kernel": rule.kernel,
            "gamma": rule.gamma,
            "temperature": rule.temperature,
            "score": rule.score,
            "within": rule.within,
            "rate": rule.rate,
        }
        # Left out while they are the paper's: older versions read such a state too.
        if rule.n_coalitions is not None:
            counted = isinstance(rule.n_coalitions, str)
            config["n_coalitions"] = (
                rule.n_coalitions if counted else min(int(rule.n_coalitions), self.n_select)
            )
        if rule.places != "even":
            config["places"] = rule.places
        if rule.balance is not None:
            config["balance"] = rule.balance
        if solver.eigensolver != "auto":
            config["eigensolver"] = solver.eigensolver
        return {
            **config,
            **self._decided(),
            "dtype": self.dtype.name,
            "initial": self._initial.copy(),
            "recluster_every": solver.recluster_every,
            "landmarks": solver.landmarks,
            # The plan's decisions hold wherever the state is loaded: see `_restore`.
            "memory_limit": float(UNLIMITED),
        }

    def _learned(self) -> dict[str, Any]:
        # `_config` has the number of rounds: older versions read it, and no later rule moves it.
        auto = {"auto_warmup": True, "n_rounds": self._n_rounds} if self._auto else {}
        return {
            **auto,
            "rows": self._rows.copy(),
            "labels": None if self._labels is None else self._labels.copy(),
            "age": self._age,
            "memory_limit": self.solver.memory_limit,
            **self._estimator.state(),
            **self._partition.state(),
        }

    @serialised
    def __getstate__(self) -> dict[str, Any]:
        """Refuse to copy a selector whose last `observe` was interrupted."""
        self._estimator.check_whole()
        return super().__getstate__()

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        super()._check_sizes(config, learned)
        n_clients = config["n_clients"]
        n_features = check_count(config["n_features"], "n_features")
        if config.get("initial") is not None:
            check_shape(config["initial"], "initial", (n_features,))
        for name in ("rows", "moment", "diagonal"):
            check_shape(learned[name], name, (n_clients, n_features))
        if config.get("n_landmarks") is not None:
            check_count(config["n_landmarks"], "n_landmarks", 0, n_clients)
        if config.get("store") == "dense":
            n_pairs = n_clients * (n_clients + 1) // 2
            check_shape(learned["covariance"]["base"], "base", (n_pairs, n_features))

    def _restore(self, learned: dict[str, Any]) -> None:
        rows = check_matrix(learned["rows"], "rows", self._rows.shape, self.dtype)
        self._rows = rows.copy()
        self._estimator.restore(learned)
        self._partition.restore(learned)
        self._age = check_count(learned["age"], "age", minimum=0)
        if learned["labels"] is not None:
            self._labels = check_labels(learned["labels"], self.n_clients, "labels").copy()
        if learned.get("auto_warmup"):
            n_rounds = learned["n_rounds"]
            self._n_rounds = None if n_rounds is None else check_count(n_rounds, "n_rounds")
            self._auto = True
        limit = learned.get("memory_limit")
        limit = None if limit is None else check_number(limit, "memory_limit", above=0)
        self.solver = dataclasses.replace(self.solver, memory_limit=limit)
