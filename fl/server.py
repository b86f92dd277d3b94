"""The server of a federation: everything that one round needs, and its state."""

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
from cvrcore.aggregators import AGGREGATORS, Aggregator, make_aggregator

from .algorithms import Setting, make_algorithm
from .availability import Availability
from .config import ConfigError, RunConfig
from .data import Federation, load_federation
from .engines import Job, TrainTask, make_engine
from .evaluation import Deployment, evaluate, training_losses
from .flat import Layout, Vector
from .history import TIMING, Record
from .meter import Meter
from .models import DEFAULT_MODEL, build_model
from .policy import Policy
from .samples import ClientSamples
from .streams import Streams
from .training import Update


class Server:
    """One federation, ready to go round by round; use it as a context manager.

    Parameters
    ----------
    config : RunConfig
    federation : Federation, optional
        Samples already at hand.
    folder : path, optional
        Where an aggregator may keep what memory cannot hold.
    """

    def __init__(
        self,
        config: RunConfig,
        federation: Federation | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.config = config
        self._folder = folder
        self.streams = Streams(config.seed)
        federation = federation or _load(config, self.streams)
        self.samples = ClientSamples.of(federation)
        self.weights = federation.sizes.astype(np.float64)
        self.model = config.model or DEFAULT_MODEL[federation.name]
        self.layout = Layout.of(self._module(0))
        self._clock: dict[str, float] = {}

        job = Job(
            self.model,
            self.samples.in_shape,
            federation.n_classes,
            config.training,
            config.seed,
        )
        self.engine = make_engine(config.engine, job, self.samples, self._work())
        try:
            self._prepare(federation)
        except BaseException:
            self.engine.close()
            raise

    def _prepare(self, federation: Federation) -> None:
        config = self.config
        self.algorithm = make_algorithm(
            config.algorithm,
            Setting(
                engine=self.engine,
                samples=self.samples,
                weights=self.weights,
                layout=self.layout,
                streams=self.streams,
                fresh=self._fresh,
                aggregator=self._aggregator,
            ),
        )
        self.policy = Policy(
            config.selection, federation, self.layout.split(self._fresh(0)), self.streams
        )
        self.availability = Availability(config.availability, len(self.weights), self.streams)
        self.meter = Meter(len(self.weights), self.layout.size * self.algorithm.models.itemsize)
        self.facts: Record = {
            "data": federation.record,
            "n_clients": len(self.weights),
            "n_samples": int(self.weights.sum()),
            "n_classes": federation.n_classes,
            "model": self.model,
            "n_parameters": self.layout.size,
            "n_features": self.policy.n_features,
            "algorithm": config.algorithm.name,
            "policy": config.selection.policy,
        }

    # -- one round ---------------------------------------------------------------

    def round(self, t: int) -> Record:
        """Go through round `t`, counted from 0, and return its record."""
        self._clock = {}
        with self._timed("round"):
            here = self.availability.reachable(t) & (self.weights > 0)
            record = self._train(t, here) if here.any() else {"available": 0, "skipped": True}
            if (t + 1) % self.config.eval_every == 0 or t + 1 == self.config.rounds:
                with self._timed("evaluate"):
                    record |= self.evaluate()
        return {"round": t + 1, **record, TIMING: self._clock}

    def _train(self, t: int, here: np.ndarray) -> Record:
        selector, algorithm = self.policy.in_round(t), self.algorithm
        probed, losses = self._probe(selector, here)
        with self._timed("select"):
            selection = selector.select(here, losses)
        gone = self.availability.dropped(t)[selection.clients]
        clients = selection.clients[~gone]
        with self._timed("train"):
            sent, starts = algorithm.models_sent, algorithm.starts(clients, t)
            tasks = [
                TrainTask(int(k), t, int(start), algorithm.mu, selector.loss_statistic)
                for k, start in zip(clients, starts, strict=True)
            ]
            answers = self.engine.train(algorithm.models, tasks)
        # What diverged is as good as lost: one NaN in an average is NaN for ever.
        back = np.array([a is not None and _is_finite(a) for a in answers], bool)
        updates = [a for a, is_back in zip(answers, back, strict=True) if a and is_back]
        reported, vectors = clients[back], [update.vector for update in updates]
        failed = np.setdiff1d(selection.clients, reported)
        with self._timed("select"):
            news = self._news(selector, reported, updates, starts[back])
            selector.observe(reported, failed=failed, **news)
        with self._timed("merge"):
            algorithm.merge(selection, reported, starts[back], vectors)
        wants_losses = selector.loss_statistic is not None
        spoilt = sum(a is not None for a in answers) - reported.size
        record = self.meter.round(
            selection, here, probed, reported, failed, sent, wants_losses, spoilt
        )
        record["selector_bytes"] = self.policy.nbytes
        if algorithm.memory_bytes:
            record["memory_bytes"] = algorithm.memory_bytes
        if len(algorithm.models) > 1:
            record["starts"] = np.bincount(starts, minlength=len(algorithm.models)).tolist()
        return record

    def _probe(
        self, selector: cvrcore.Selector, here: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Ask the clients whose loss the policy wants to know first."""
        with self._timed("select"):
            asked = selector.probe(here)
        if asked is None:
            return np.empty(0, dtype=np.int64), None
        with self._timed("probe"):
            model = self.algorithm.models
            if len(model) > 1:
                model = self.algorithm.consensus(self.algorithm.deployment())[None]
            losses = training_losses(self.engine, self.samples, model, asked)[:, 0]
        return asked, np.where(np.isfinite(losses), losses, np.nan)

    def _news(
        self,
        selector: cvrcore.Selector,
        reported: np.ndarray,
        updates: list[Any],
        starts: np.ndarray,
    ) -> dict[str, Any]:
        """Return what the policy is told of those that came back."""
        news: dict[str, Any] = {}
        if self.policy.features is not None:
            models = [self.layout.split(update.vector) for update in updates]
            sent = [self.layout.split(model) for model in self.algorithm.models]
            news["models"] = self.policy.rows(models, [sent[start] for start in starts])
        if selector.loss_statistic is not None:
            news["losses"] = np.array([u.loss for u in updates], dtype=np.float64)
        if self.config.simulate_time:
            news["durations"] = self.weights[reported] * self.config.training.epochs
        return news

    def evaluate(self) -> Record:
        """Return the metrics of the present models."""
        deployment = self.algorithm.deployment()
        empty = self.config.empty_test
        metrics: Record = dict(evaluate(self.engine, self.samples, deployment, empty))
        n_models = len(self.algorithm.models)
        if n_models > 1:
            one = self.algorithm.consensus(deployment)[None]
            shared = Deployment(one, np.zeros_like(deployment.of_client))
            consensus = evaluate(self.engine, self.samples, shared, empty)
            metrics |= {f"consensus_{name}": value for name, value in consensus.items()}
            counts = np.bincount(deployment.of_client[self.weights > 0], minlength=n_models)
            metrics["cluster_sizes"] = counts.tolist()
        return {name: _finite(value) for name, value in metrics.items()}

    # -- state -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {
            "policy": self.policy.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "meter": self.meter.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.policy.load_state_dict(state["policy"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.meter.load_state_dict(state["meter"])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    # -- set-up ------------------------------------------------------------------

    def _aggregator(self) -> Aggregator:
        name, options = self.config.aggregator, dict(self.config.aggregator_options)
        kind = AGGREGATORS.get(name)
        if kind is not None and "folder" in inspect.signature(kind).parameters and self._folder:
            options = {"folder": self._folder, **options}
        try:
            return make_aggregator(name, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"aggregator: {error}") from error

    def _fresh(self, j: int) -> Vector:
        parameters = [p.detach().reshape(-1) for p in self._module(j).parameters()]
        vector: Vector = torch.cat(parameters).numpy()
        return vector

    def _module(self, j: int) -> torch.nn.Module:
        seed = self.streams.sequence("init", j)
        return build_model(self.model, self.samples.in_shape, self.samples.n_classes, seed)

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


def _load(config: RunConfig, streams: Streams) -> Federation:
    data = config.data
    return load_federation(
        data.dataset,
        n_clients=data.n_clients,
        partition=data.partition,
        alpha=data.alpha,
        shards_per_client=data.shards_per_client,
        test_fraction=data.test_fraction,
        min_size=data.min_size,
        data_dir=data.data_dir,
        download=data.download,
        seed=streams.integer("partition"),
        options=dict(data.options),
    )


def _finite(value: Any) -> Any:
    """Return None for a metric that is not a number: JSON knows no NaN."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _is_finite(update: Update) -> bool:
    """Return whether a client's model, and the loss it reports if it does, are numbers."""
    known = update.loss is None or bool(np.isfinite(update.loss))
    return known and bool(np.isfinite(update.vector).all())
