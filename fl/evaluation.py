"""Models in, their metrics over all clients out, from few long forward passes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from .engines.base import Engine, MeasureTask
from .flat import Vector
from .objectives import Metric, Objective
from .samples import ClientSamples
from .training import Losses

#: Test samples in one task: few enough to spread over workers, enough to be worth sending.
BLOCK = 1000
#: Clients evaluated at a time where each has a model of its own: they are held in memory.
PERSONAL_MODELS = 32


@dataclasses.dataclass(frozen=True)
class Deployment:
    """Which model each client would use.

    Attributes
    ----------
    models : ndarray of shape (n_models, n_parameters)
    of_client : ndarray of int64, shape (n_clients,)
        Row of `models` for each client.
    personal : callable, optional
        Takes a model and a client and returns the model as this client uses it.
    """

    models: Vector
    of_client: np.ndarray
    personal: Callable[[Vector, int], Vector] | None = None


def evaluate(
    engine: Engine,
    samples: ClientSamples,
    deployment: Deployment,
    empty: str = "skip",
    metric: Metric | None = None,
) -> dict[str, float]:
    """Return metrics of every client's model on that client's own test samples.

    Parameters
    ----------
    engine : Engine
    samples : ClientSamples
    deployment : Deployment
    empty : {"skip", "zero"}
        Clients without test samples are left out, or count as accuracy 0 (the authors').
        Where less is better they are always left out.
    metric : Metric, optional
        The metric of the run. Default: that of the samples' task.

    Returns
    -------
    dict
        ``accuracy`` is the mean over clients, each counting once; ``accuracy_weighted`` the
        share of all test samples; ``loss`` the mean over clients of their mean loss;
        ``worst_decile`` the mean over the worst tenth of the clients. In regression ``mse``
        and ``mse_weighted`` stand for accuracy; with another metric, its name. Empty when no
        client has a test sample.
    """
    metric = metric or Objective(samples.task).metric
    starts = samples.test_starts
    answers: list[Losses] = []
    for models, tasks in _test_work(starts, deployment):
        answers += engine.measure(models, tasks) if tasks else []
    if not answers:
        return {}
    losses = np.concatenate([answer.values for answer in answers]).astype(np.float64)
    filled = np.diff(starts) > 0
    client_losses = segment_means(losses, starts)[filled]
    hits = np.concatenate([answer.scores for answer in answers]).astype(np.float64)
    scores = segment_means(hits, starts)[filled]
    if empty == "zero" and metric.higher_is_better:
        scores = np.concatenate([scores, np.zeros(int((~filled).sum()))])
    sign = 1.0 if metric.higher_is_better else -1.0
    return {
        metric.name: float(scores.mean()),
        f"{metric.name}_weighted": float(hits.mean()),
        "loss": float(client_losses.mean()),
        "worst_decile": _worst(sign * scores) * sign,
    }


def training_losses(
    engine: Engine, samples: ClientSamples, models: Vector, clients: np.ndarray
) -> np.ndarray:
    """Return the mean training loss of each model on each of `clients`.

    Returns
    -------
    ndarray of float64, shape (len(clients), len(models))
        Every client must have training samples.
    """
    tasks = [
        MeasureTask(j, "train", *samples.train_range(int(client)))
        for client in clients
        for j in range(len(models))
    ]
    means = [answer.values.astype(np.float64).mean() for answer in engine.measure(models, tasks)]
    return np.array(means).reshape(len(clients), len(models))


def segment_means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the mean of each segment ``values[starts[k]:starts[k + 1]]``; 0 if empty."""
    sums = np.concatenate([[0.0], np.cumsum(values)])[starts]
    means: np.ndarray = np.diff(sums) / np.maximum(np.diff(starts), 1)
    return means


def _test_work(
    starts: np.ndarray, deployment: Deployment
) -> Iterator[tuple[Vector, list[MeasureTask]]]:
    """Cover the test samples by models and their tasks, in order."""
    if deployment.personal is None:
        yield deployment.models, _test_tasks(starts, deployment.of_client)
        return
    n_clients = len(deployment.of_client)
    for first in range(0, n_clients, PERSONAL_MODELS):
        clients = np.arange(first, min(first + PERSONAL_MODELS, n_clients))
        rows = deployment.models[deployment.of_client[clients]]
        models = [deployment.personal(row, int(k)) for row, k in zip(rows, clients, strict=True)]
        tasks = _test_tasks(starts[first : first + len(clients) + 1], clients - first)
        yield np.stack(models), tasks


def _test_tasks(starts: np.ndarray, of_client: np.ndarray) -> list[MeasureTask]:
    """Cover the test samples by tasks of one model each, in order."""
    tasks = []
    for model, run in itertools.groupby(range(len(of_client)), key=lambda k: int(of_client[k])):
        clients = list(run)
        begin, end = int(starts[clients[0]]), int(starts[clients[-1] + 1])
        tasks += [
            MeasureTask(model, "test", a, min(a + BLOCK, end)) for a in range(begin, end, BLOCK)
        ]
    return tasks


def _worst(scores: np.ndarray) -> float:
    """Return the mean of the lowest tenth, at least one."""
    return float(np.sort(scores)[: math.ceil(len(scores) / 10)].mean())
