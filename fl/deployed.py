"""The server's models in; the models to deploy, their metrics and the best of them out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from cvrcore.aggregators import ModelAverage

from .algorithms import Algorithm
from .carried import Carried
from .config import ConfigError, RunConfig
from .engines import Engine
from .evaluation import Deployment, evaluate
from .flat import Vector
from .history import Record
from .objectives import Objective
from .samples import ClientSamples


class Deployed:
    """The models that clients would use: the server's, or the average of them round by round.

    Parameters
    ----------
    config : RunConfig
    algorithm : Algorithm
        Holds the server's models.
    engine : Engine
        Measures models.
    samples : ClientSamples
    objective : Objective
    carried : Carried
        What each client keeps to itself.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        engine: Engine,
        samples: ClientSamples,
        objective: Objective,
        carried: Carried,
    ) -> None:
        self._config, self._algorithm, self._engine = config, algorithm, engine
        self._samples, self._objective, self._carried = samples, objective, carried
        self._average: ModelAverage | None = None
        self._best: tuple[float, Vector] | None = None  # value and models of an evaluation
        if config.server.average:
            if len(algorithm.models) > 1:
                raise ConfigError(
                    "server.average must be 0 with an algorithm of several models, got "
                    f"{config.server.average:g} and {config.algorithm.name!r}"
                )
            self._average = ModelAverage(config.server.average)

    @property
    def nbytes(self) -> int:
        """Bytes that the average keeps between rounds."""
        return 0 if self._average is None else self._average.nbytes

    def update(self) -> None:
        """Take in the model that the round has made."""
        if self._average is not None:
            self._average.update([self._algorithm.models[0]])

    def models(self, which: str = "final") -> Vector:
        """Return the models to deploy now, or with "best" those of the best evaluation."""
        if which == "best" and self._best is not None:
            return self._best[1]
        if self._average is None or not self._average.count:
            return self._algorithm.models
        return np.stack(self._average.arrays)

    def evaluate(self) -> Record:
        """Return the metrics of the models to deploy, and keep these models if they are the best.

        Where an average is deployed, metrics called ``sent_...`` are those of the model itself.
        """
        sent = self._algorithm.deployment()
        models = self.models()
        metrics = self._measured(dataclasses.replace(sent, models=models))
        self._keep_best(metrics, models)
        if self._average is not None:
            metrics |= {f"sent_{name}": value for name, value in self._measured(sent).items()}
        return metrics

    def _measured(self, deployment: Deployment) -> Record:
        """Return the metrics of a deployment, and of one model for all where there are several."""
        if self._carried.is_local:
            deployment = dataclasses.replace(deployment, personal=self._carried.personal)
        rule = self._config.empty_test, self._objective.metric
        metrics: Record = dict(evaluate(self._engine, self._samples, deployment, *rule))
        n_models = len(self._algorithm.models)
        if n_models > 1:
            one = self._algorithm.consensus(deployment)[None]
            shared = Deployment(one, np.zeros_like(deployment.of_client))
            consensus = evaluate(self._engine, self._samples, shared, *rule)
            metrics |= {f"consensus_{name}": value for name, value in consensus.items()}
            has_samples = self._algorithm.resources.weights > 0
            counts = np.bincount(deployment.of_client[has_samples], minlength=n_models)
            metrics["cluster_sizes"] = counts.tolist()
        return {name: _finite(value) for name, value in metrics.items()}

    def _keep_best(self, metrics: Record, models: Vector) -> None:
        metric = self._objective.metric
        value = metrics.get(metric.name)
        if value is None:
            return
        sign = 1.0 if metric.higher_is_better else -1.0
        if self._best is None or sign * value > sign * self._best[0]:
            self._best = float(value), models.copy()

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the best models, as far as there are any."""
        state: dict[str, Any] = {}
        if self._average is not None:
            state["average"] = self._average.state_dict()
        if self._best and self._config.save_models:
            state["best"] = list(self._best)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; other entries of `state` are ignored.

        Raises
        ------
        ValueError
            If it is damaged, or of another run; nothing changes then.
        """
        average = None if self._average is None else self._loaded(self._average.decay, state)
        best = _best(state["best"], self._algorithm.models) if "best" in state else self._best
        self._average, self._best = average, best

    def _loaded(self, decay: float, state: dict[str, Any]) -> ModelAverage:
        """Return the average of a state."""
        if "average" not in state:
            raise ValueError(
                "average must be the state of a ModelAverage, got a state without one: it is of a "
                "run with server.average = 0"
            )
        average = ModelAverage(decay)
        average.load_state_dict(state["average"])
        shapes = [mean.shape for mean in average.arrays]
        if shapes not in ([], [self._algorithm.models[0].shape]):
            raise ValueError(f"average must be of one model of this run, got shapes {shapes}")
        return average


def _best(saved: Any, like: Vector) -> tuple[float, Vector]:
    """Return the value and the models of the best evaluation, models of the shape of `like`."""
    if not isinstance(saved, list | tuple) or len(saved) != 2:
        raise ValueError(f"best must be a value and models, got {saved!r:.80}")
    value, models = saved
    if type(value) is not float or not np.isfinite(value):
        raise ValueError(f"value of best must be a finite number, got {value!r:.80}")
    if not isinstance(models, np.ndarray) or models.dtype.kind != "f":
        got = getattr(models, "dtype", type(models).__name__)
        raise ValueError(f"models of best must be an array of floats, got {got}")
    if models.shape != like.shape:
        raise ValueError(f"models of best must have shape {like.shape}, got {models.shape}")
    return value, models.astype(like.dtype)


def _finite(value: Any) -> Any:
    """Return None for a metric that is not a number: JSON knows no NaN."""
    return None if isinstance(value, float) and not np.isfinite(value) else value
