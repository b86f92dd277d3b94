"""Settings and federation in, the selector of each round out: warm-up, then the policy."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cvrcore
from cvrcore.features import FeatureMap, Model
from cvrcore.head import Blur, HeadMap
from cvrcore.selectors import gathered_guards, policy_class

from .config import ConfigError, SelectionConfig
from .data import Federation
from .flat import Vector
from .streams import Streams

Rows = NDArray[np.floating[Any]]


def model_guards(options: Mapping[str, Any]) -> cvrcore.Guards:
    """Return the guards of a selector's options as far as they hold for whole models too.

    A number for ``max_norm`` is about the watched coordinates alone; a multiple of the median
    fits both.
    """
    guards = gathered_guards(dict(options))
    if isinstance(guards.max_norm, str):
        return guards
    return dataclasses.replace(guards, max_norm=None)


def blur_of(config: SelectionConfig, streams: Streams) -> Blur:
    """Return the noise and coarseness of head features, the same for all that use them."""
    return Blur(config.noise, config.coarse, streams.integer("selection", 2))


class Policy:
    """Chooses the selector of each round.

    A policy is given the facts of the federation that its constructor names:
    ``n_features`` and ``initial`` (what it watches of the models), ``label_counts`` and
    ``n_rounds``.

    Parameters
    ----------
    config : SelectionConfig
    federation : Federation
    initial : list of arrays
        The initial model.
    streams : Streams
    n_rounds : int, optional
        Rounds of the run, for policies whose plan depends on them.

    Attributes
    ----------
    features : FeatureMap, HeadMap or None
        What the policy watches of each model, if it watches any.
    """

    def __init__(
        self,
        config: SelectionConfig,
        federation: Federation,
        initial: list[Vector],
        streams: Streams,
        n_rounds: int | None = None,
    ) -> None:
        self.features: FeatureMap | HeadMap | None = None
        self._streams = streams
        self._weights = federation.sizes.astype(np.float64)
        self._warmup = config.shared_warmup
        self._of_updates = config.features == "update"
        self._blur = blur_of(config, streams)
        kind = policy_class(config.policy)
        names = inspect.signature(kind).parameters
        options: dict[str, Any] = {}
        if "n_features" in names or kind.needs & {"models", "updates", "sent"}:
            if getattr(kind, "watches", "") == "head":  # as it is: lengths matter to it
                if not self._blur.is_identity:
                    raise ConfigError(
                        f"selection.noise and selection.coarse must be left out with policy "
                        f"{config.policy!r}, which needs the lengths of head updates"
                    )
                self.features = HeadMap(initial, normalised=False)
            elif config.features == "head":
                self.features = HeadMap(initial)
            else:
                seed = streams.integer("selection", 0)
                self.features = FeatureMap.last_layer(initial, config.n_features, seed)
                if "initial" in names and config.features == "model":
                    options["initial"] = self.features.extract(initial)
        if self.features is not None and "n_features" in names:
            options["n_features"] = self.features.n_features
        if "label_counts" in names:
            # Regression has no classes: one class for all makes every client balanced.
            counts = federation.label_counts if federation.n_classes else federation.sizes[:, None]
            options["label_counts"] = counts
        if "n_rounds" in names:
            options["n_rounds"] = n_rounds
        options |= dict(config.options)
        self._uniform: cvrcore.Selector | None = None
        if self._warmup and "warmup" in names:
            options["warmup"] = self._warmup  # the policy's own warm-up makes the same draws
        elif self._warmup and config.policy != "uniform":
            self._uniform = self._make("uniform", config.n_select, {})
        # A policy that follows a uniform selector has its own stream: no draw is repeated.
        key = () if self._uniform is None else (1,)
        self._chosen = self._make(config.policy, config.n_select, options, key)

    @property
    def n_features(self) -> int | None:
        """Number of coordinates watched, or None."""
        return None if self.features is None else self.features.n_features

    @property
    def needs(self) -> frozenset[str]:
        """What the policy cannot do without."""
        return self._chosen.needs

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that its selectors hold at present."""
        return self._chosen.nbytes + (0 if self._uniform is None else self._uniform.nbytes)

    @property
    def warmup(self) -> int:
        """Uniform first rounds: those that all policies share, or the policy's own."""
        return self._warmup or int(getattr(self._chosen, "warmup", 0))

    def watched(self, model: Model) -> Rows:
        """Return the watched coordinates of one model."""
        if not isinstance(self.features, FeatureMap):
            raise ConfigError(
                f"selection.features must be 'model' or 'update' with {self._chosen.name}, which "
                "watches the model sent, got 'head'"
            )
        row: Rows = self.features.extract(model)
        return row

    def updates(self, models: Sequence[Model], sent: Sequence[Model]) -> Rows:
        """Return the watched coordinates of what models changed of those sent."""
        assert self.features is not None
        if isinstance(self.features, HeadMap):
            rows: Rows = np.zeros((len(models), self.features.n_features))
            for row, model, own in zip(rows, models, sent, strict=True):
                row[:] = self.features.updates([model], own)[0]
            return rows
        changes: Rows = self.features.extract_all(models) - self.features.extract_all(sent)
        return changes

    def changes(self, models: Sequence[Model], sent: Sequence[Model], clients: Rows) -> Rows:
        """Return the watched coordinates of changes; head features blurred as the settings say."""
        found = self.updates(models, sent)
        return self._blur(found, clients) if isinstance(self.features, HeadMap) else found

    def rows(self, models: Sequence[Model], sent: Sequence[Model], clients: Rows) -> Rows:
        """Return the watched coordinates of models, or of what they changed of those sent."""
        if not isinstance(self.features, FeatureMap) or self._of_updates:
            return self.changes(models, sent, clients)
        watched: Rows = self.features.extract_all(models)
        return watched

    def in_round(self) -> cvrcore.Selector:
        """Return the selector of the next round.

        A round in which no client was reachable does not count towards the warm-up.
        """
        if self._uniform is not None and self._uniform.round < self._warmup:
            return self._uniform
        return self._chosen

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        uniform = None if self._uniform is None else self._uniform.state_dict()
        return {"chosen": self._chosen.state_dict(), "uniform": uniform}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._chosen.load_state_dict(state["chosen"])
        if self._uniform is not None:
            self._uniform.load_state_dict(state["uniform"])

    def _make(
        self, name: str, n_select: int, options: dict[str, Any], key: tuple[int, ...] = ()
    ) -> cvrcore.Selector:
        try:
            return cvrcore.make_selector(
                name,
                n_clients=len(self._weights),
                n_select=n_select,
                weights=self._weights,
                seed=self._streams.sequence("selection", *key),
                **options,
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"selection: {error}") from error
