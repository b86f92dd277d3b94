"""Settings in, records of rounds out: the server of a federation, and its state."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import cvrcore
from cvrcore.aggregators import AGGREGATORS, Aggregator, ServerOptimiser, make_aggregator

from .algorithms import Resources, RoundUpdates, make_algorithm
from .availability import Availability
from .carried import Carried
from .checks import check_federation, check_fit
from .config import ConfigError, RunConfig
from .data import Federation, load_federation
from .deployed import Deployed
from .engines import Job, make_engine
from .evaluation import training_losses
from .flat import FlatModule, Layout, Vector
from .fleet import Fleet
from .history import TIMING, Record
from .local_work import LocalRound, LocalWork
from .meter import Meter
from .models import DEFAULT_MODEL, MODELS
from .optimiser import rate
from .origin import origin
from .own import Own, describe
from .plugins import MODELS_GROUP, load
from .policy import Policy, blur_of, model_guards
from .samples import ClientSamples
from .streams import Streams
from .training import Update
from .worth import ServerSamples, keep_back


class Server:
    """One federation, trained round by round; use it as a context manager.

    Parameters
    ----------
    config : RunConfig
    federation : Federation, optional
        Samples already at hand.
    folder : path, optional
        Where an aggregator may keep arrays that are too large for memory.
    own : Own, optional
        The caller's model, loss and metric.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation | None = None,
        folder: str | os.PathLike[str] | None = None,
        own: Own | None = None,
    ) -> None:
        self.config = config
        self._folder = folder
        self.streams = Streams(config.seed)
        theirs = federation is not None or own is not None
        if federation is None:
            seed = self.streams.integer("partition")
            federation = load_federation(**vars(config.data), seed=seed)
        if theirs:
            check_federation(federation)
        kept = np.empty(0, dtype=np.int64)
        if config.selection.server_samples:
            drawn = config.selection.server_samples, self.streams.generator("server")
            federation, kept = keep_back(federation, *drawn)
        self.samples = ClientSamples.of(federation)
        self.weights = federation.sizes.astype(np.float64)
        self.model, own = _chosen_model(config.model, federation, own)
        shape, n_classes = self.samples.in_shape, federation.n_classes
        self.job = Job(self.model, shape, n_classes, config.training, config.seed, own)
        self.objective = self.job.objective(self.samples.task)
        module = self.job.module()
        self.layout, self.carried = _layout(module, config)
        if theirs:
            check_fit(module, self.objective, self.samples)
        self._clock: dict[str, float] = {}
        #: The selector of the last round and its selection; None if the round was skipped.
        self.decision: tuple[cvrcore.Selector, cvrcore.Selection] | None = None
        self._own_samples: ServerSamples | None = None
        if kept.size:
            self._own_samples = ServerSamples(self.job, self.samples, federation, kept)

        self.engine = make_engine(config.engine, self.job, self.samples, self._work())
        try:
            self._prepare(federation)
        except BaseException:
            self.engine.close()
            raise

    def _prepare(self, federation: Federation) -> None:
        config = self.config
        self.algorithm = make_algorithm(
            config.algorithm,
            Resources(
                self.engine,
                self.samples,
                self.weights,
                self.layout,
                self.streams,
                self._initial_model,
                self._aggregator,
                config.training.momentum,
            ),
        )
        if self.carried.is_local and len(self.algorithm.models) > 1:
            raise ConfigError(
                "training.local must go with an algorithm of one model, got "
                f"{len(self.algorithm.models)} models of {config.algorithm.name!r}"
            )
        self.deployed = Deployed(
            config, self.algorithm, self.engine, self.samples, self.objective, self.carried
        )
        try:
            initial = self._watchable(self._initial_model(0))
        except ValueError as error:
            raise ConfigError(f"selection.layer {error}") from None
        self.policy = Policy(config.selection, federation, initial, self.streams, config.rounds)
        if "utilities" in self.policy.needs and self._own_samples is None:
            raise ConfigError(
                f"selection.server_samples must be positive with policy "
                f"{config.selection.policy!r}, which measures models on the server; try 500"
            )
        self.availability = Availability(config.availability, len(self.weights), self.streams)
        model_bytes = self.layout.size * self.algorithm.models.itemsize
        self.meter = Meter(len(self.weights), model_bytes)
        self.fleet: Fleet | None = None
        if config.fleet.enabled:
            facts = self.weights, config.training.epochs, model_bytes
            self.fleet = Fleet(config.fleet, *facts, self.streams)
        self.facts: Record = {
            "data": federation.record,
            "n_clients": len(self.weights),
            "n_samples": int(self.weights.sum()),
            "n_classes": federation.n_classes,
            "task": self.samples.task,
            "metric": self.objective.metric.name,
            "higher_is_better": self.objective.metric.higher_is_better,
            "model": self.model,
            "in_shape": list(self.samples.in_shape),
            "n_parameters": self.layout.n_parameters,
            "parameters": [list(pair) for pair in self.layout.entries()],
            "own": [] if self.job.own is None else self.job.own.names,
            "n_features": self.policy.n_features,
            "algorithm": config.algorithm.name,
            "policy": config.selection.policy,
            "warmup": self.policy.warmup,
            "origin": origin(),
        }

    # -- one round ---------------------------------------------------------------

    def round(self, t: int) -> Record:
        """Run round `t`, counted from 0, and return its record."""
        self._clock, self.decision = {}, None
        with self._timed("round"):
            reachable = self.availability.reachable(t) & (self.weights > 0)
            if self.fleet is not None:
                reachable &= self.fleet.online()
            record: Record = {"available": 0, "skipped": True}
            if reachable.any():
                record = self._train(t, reachable)
            elif self.fleet is not None:
                record |= self.fleet.advance()
            if (t + 1) % self.config.eval_every == 0 or t + 1 == self.config.rounds:
                with self._timed("evaluate"):
                    record |= self.deployed.evaluate()
        return {"round": t + 1, **record, TIMING: self._clock}

    def _train(self, t: int, reachable: np.ndarray) -> Record:
        selector, algorithm = self.policy.in_round(), self.algorithm
        lr = rate(self.config.training, t, self.config.rounds)
        statistic = selector.loss_statistic
        if statistic is None and self.config.record_losses:
            statistic = "mean"
        round = LocalRound(t, lr, statistic)
        work = LocalWork(self.engine, algorithm, self.carried, round)
        probed, losses = self._probe(selector, reachable, work)
        with self._timed("select"):
            selection = selector.select(reachable, losses, **self._context(selector))
        self.decision = selector, selection
        dropped = self.availability.dropped(t)[selection.clients]
        times = None
        trains_first = "probed_norms" in selector.needs
        if self.fleet is not None:
            sizes = algorithm.models_sent, algorithm.models_returned
            times = self.fleet.round(t, selection.clients, probed, *sizes, trains_first)
            dropped = dropped | times.lost
        clients = selection.clients[~dropped]
        with self._timed("train"):
            sent = algorithm.models_sent  # before the merge, which may change it
            starts, answers = work.train(clients)
        # A model that diverged counts as a failure: one NaN would stay in the average.
        valid = np.array([a is not None and _is_finite(a) for a in answers], bool)
        updates = [a for a, is_valid in zip(answers, valid, strict=True) if a and is_valid]
        reported, starts_reported = clients[valid], starts[valid]
        failed = np.setdiff1d(selection.clients, reported)
        with self._timed("select"):
            report = self._report(selector, reported, updates, starts_reported)
            if times is not None:
                report["durations"] = times.durations[np.isin(selection.clients, reported)]
            selector.observe(reported, failed=failed, **report)
        with self._timed("merge"):
            vectors = [update.vector for update in updates]
            steps = np.array([update.steps for update in updates], dtype=np.int64)
            hidden = self.carried.hide(algorithm.models, starts_reported, vectors)
            algorithm.merge(RoundUpdates(selection, reported, starts_reported, hidden, steps, lr))
            who = reported, starts_reported
            self.carried.average(algorithm.models, *who, vectors, self.weights)
            self.deployed.update()
        wants_losses = selector.loss_statistic is not None
        n_diverged = sum(a is not None for a in answers) - reported.size
        record = self.meter.round(
            selection,
            reachable,
            probed,
            reported,
            failed,
            sent,
            wants_losses,
            n_diverged,
            algorithm.models_returned,
            trains_first,
        )
        if self.fleet is not None and times is not None:
            record |= self.fleet.advance(times.seconds)
        record["sizes"] = self.weights[selection.clients].astype(np.int64).tolist()
        if trains_first:  # the clients that were asked have trained too
            trained = np.union1d(probed, selection.clients)
            record["samples"] = int(self.weights[trained].sum())
        if statistic is not None:
            record["losses"] = [update.loss for update in updates]
        record["selector_bytes"] = self.policy.nbytes
        if kept := algorithm.memory_bytes + self.deployed.nbytes:
            record["memory_bytes"] = kept
        if self.config.server.optimiser == "adaptive":
            record["server_lr"] = algorithm.server_lr
        if len(algorithm.models) > 1:
            record["starts"] = np.bincount(starts, minlength=len(algorithm.models)).tolist()
        return record

    def _probe(
        self, selector: cvrcore.Selector, reachable: np.ndarray, work: LocalWork
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the clients that the policy probes before it selects, and their losses.

        A policy that needs ``probed_norms`` gets the norms of their updates instead.
        """
        with self._timed("select"):
            probed = selector.probe(reachable)
        if probed is None:
            return np.empty(0, dtype=np.int64), None
        with self._timed("probe"):
            if "probed_norms" in selector.needs:
                return probed, work.norms(probed)
            model = self.algorithm.models
            if len(model) > 1:
                model = self.algorithm.consensus(self.algorithm.deployment())[None]
            losses = training_losses(self.engine, self.samples, model, probed)[:, 0]
        return probed, np.where(np.isfinite(losses), losses, np.nan)

    def _context(self, selector: cvrcore.Selector) -> dict[str, Any]:
        """Return what the policy must know of the model about to be sent."""
        if "sent" not in selector.needs:
            return {}
        model = self.algorithm.models[0]
        if len(self.algorithm.models) > 1:
            model = self.algorithm.consensus(self.algorithm.deployment())
        return {"sent": self.policy.watched(self._watchable(model))}

    def _report(
        self,
        selector: cvrcore.Selector,
        reported: np.ndarray,
        updates: list[Update],
        starts: np.ndarray,
    ) -> dict[str, Any]:
        """Return what the policy uses of the reporting clients: models, losses, signals."""
        report: dict[str, Any] = {}
        if self.policy.features is not None:
            models = [self._watchable(update.vector) for update in updates]
            sent = [self._watchable(model) for model in self.algorithm.models]
            received = [sent[start] for start in starts]
            if "updates" in selector.needs:
                report["updates"] = self.policy.changes(models, received, reported)
            else:
                report["models"] = self.policy.rows(models, received, reported)
        if "norms" in selector.needs:
            pairs = zip(updates, starts, strict=True)
            changes = [u.vector - self.algorithm.models[start] for u, start in pairs]
            report["norms"] = np.array([np.linalg.norm(c) for c in changes], dtype=np.float64)
        if "utilities" in selector.needs:
            assert self._own_samples is not None  # `_prepare` has checked it
            vectors = [update.vector for update in updates]
            report["utilities"] = self._own_samples.worth(
                self.algorithm.models[0], reported, vectors, self.weights
            )
        if selector.loss_statistic is not None:
            report["losses"] = np.array([u.loss for u in updates], dtype=np.float64)
        if self.config.simulate_time or "durations" in selector.needs:
            report["durations"] = self.weights[reported] * self.config.training.epochs
        return report

    # -- state -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            "policy": self.policy.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "carried": self.carried.state_dict(),
            "meter": self.meter.state_dict(),
            **({} if self.fleet is None else {"fleet": self.fleet.state_dict()}),
            **self.deployed.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.policy.load_state_dict(state["policy"])
        self.algorithm.load_state_dict(state["algorithm"])
        if "carried" in state:  # newer than the first release
            self.carried.load_state_dict(state["carried"])
        self.meter.load_state_dict(state["meter"])
        if self.fleet is not None:
            self.fleet.load_state_dict(state["fleet"])
        self.deployed.load_state_dict(state)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    # -- set-up ------------------------------------------------------------------

    def _aggregator(self) -> Aggregator:
        name, options = self.config.aggregator, dict(self.config.aggregator_options)
        kind = AGGREGATORS.get(name)
        if "folder" in options:  # a settings file of somebody else must not choose where to write
            raise ConfigError("aggregator: folder must not be set: rows go to the run's folder")
        if kind is not None and "folder" in inspect.signature(kind).parameters and self._folder:
            options = {"folder": self._folder, **options}
        if kind is not None and "coarse" in inspect.signature(kind).parameters:
            blur = blur_of(self.config.selection, self.streams)
            # What the policy may not see, the aggregator may not either.
            if not blur.is_identity and "features" not in options:
                options = {"noise": blur.noise, "coarse": blur.coarse, "seed": blur.seed, **options}
        try:
            options.setdefault("guards", model_guards(self.config.selection.options))
            return make_aggregator(name, server=self._optimiser(), **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"aggregator: {error}") from error

    def _optimiser(self) -> ServerOptimiser | None:
        """Return a new server optimiser, or None if the aggregated model is taken as it is."""
        options = dict(vars(self.config.server))
        kind, average = options.pop("optimiser"), options.pop("average")
        if kind == "adaptive":
            options["averaged"] = average > 0
        optimiser = ServerOptimiser(kind, **options)
        return None if optimiser.is_identity else optimiser

    def _initial_model(self, j: int) -> Vector:
        return FlatModule(self.job.module(j)).export()

    def _watchable(self, model: Vector) -> list[Vector]:
        """Return the parameters of which a policy watches the last layer."""
        return self.layout.within(self.config.selection.layer, model)

    def _work(self) -> float:
        config = self.config
        per_round = config.selection.n_select * config.training.epochs * self.weights.mean()
        return float(config.rounds * per_round * self.layout.size)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self._clock[name] = self._clock.get(name, 0.0) + spent


def _chosen_model(
    name: str | None, federation: Federation, own: Own | None
) -> tuple[str, Own | None]:
    """Return the name of the model for records, and what the caller or a package brings."""
    if own is not None and own.model is not None:
        return describe(own.model), own
    name = name or DEFAULT_MODEL.get(federation.name)
    if name is None:
        raise ConfigError(
            f"model must be given for the data set {federation.name!r}: an nn.Module or a "
            f"function that returns one (model=...), or one of {', '.join(MODELS)}"
        )
    if name in MODELS:
        return name, own
    factory = load(MODELS_GROUP, name, tuple(MODELS))
    return name, Own(factory, *(own.functions if own else (None, None)))


def _layout(module: torch.nn.Module, config: RunConfig) -> tuple[Layout, Carried]:
    try:
        layout = Layout.of(module)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        return layout, Carried(layout, config.training.local)
    except ValueError as error:
        raise ConfigError(f"training.local: {error}") from None


def _is_finite(update: Update) -> bool:
    """Return whether a client's model, and its loss if it reports one, are finite."""
    known = update.loss is None or bool(np.isfinite(update.loss))
    return known and bool(np.isfinite(update.vector).all())
