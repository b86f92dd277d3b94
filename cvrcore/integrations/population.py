"""Population: clients by the framework's ids in, their slots and the selector for them out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import FeatureMap, Model
from ..ids import IdMap
from ..selectors.base import Selector
from ..validation import check_choice
from .clients import ClientInfo
from .policy import Policy

logger = logging.getLogger(__name__)


class Population:
    """All clients that were ever registered, and the selector that has a slot for each.

    Parameters
    ----------
    policy : Policy
        Builds the selector for the first clients, or holds a ready one.
    features : FeatureMap or "update", optional
        What the policy watches of a model, see `Roster`.
    n_features : int, optional
        Watch only that many coordinates of the last layer.
    feature_seed : int
        Draws those coordinates.

    Attributes
    ----------
    selector : Selector or None
        None until the first clients are registered.
    ids : IdMap
    features : FeatureMap or None
    """

    def __init__(
        self,
        policy: Policy,
        features: FeatureMap | str | None = None,
        n_features: int | None = None,
        feature_seed: int = 0,
    ) -> None:
        self._policy = policy
        self.selector: Selector | None = policy.ready
        if isinstance(features, str):
            check_choice(features, "features", ("update",))
        self._updates = isinstance(features, str)
        self.features = None if isinstance(features, str) else features
        self._n_features, self._feature_seed = n_features, feature_seed
        self._initial: np.ndarray | None = None  # the row of a client that was never seen
        self.ids = IdMap()

    @property
    def watches(self) -> bool:
        """Whether the policy watches models."""
        return self._policy.wants("n_features")

    @property
    def wants_label_counts(self) -> bool:
        """Whether the policy needs the class counts of each client."""
        return self._policy.wants("label_counts")

    @property
    def loss_statistic(self) -> str | None:
        """The loss that clients must report: None, "mean" or "rms"."""
        return self._policy.kind.loss_statistic

    def watch(self, model: Model) -> None:
        """Choose the watched coordinates by the first model, if the policy watches any."""
        if self.watches and self.features is None:
            self.features = FeatureMap.last_layer(model, self._n_features, self._feature_seed)
        if self.features is None:
            return
        # The row of a client never seen: that of the first model; for updates the zeros that
        # are the policy's default.
        first = self.selector is None and self._initial is None
        if first and self._policy.wants("initial") and not self._updates:
            self._initial = self.features.extract(model)
        wanted = getattr(self.selector, "n_features", self.features.n_features)
        if wanted != self.features.n_features:
            raise ValueError(
                f"features must give the {wanted} coordinates of the selector, "
                f"got {self.features.n_features}: pass n_features= or a FeatureMap"
            )

    def register(self, clients: Mapping[Any, ClientInfo]) -> dict[Any, str]:
        """Give slots to clients that connect for the first time, in the order of their ids.

        Slots depend on which clients come first: where that differs from run to run, register
        all clients that are known beforehand.

        Returns
        -------
        dict
            The reason for each client that was refused; it gets no slot.
        """
        refused = {id: why for id, info in clients.items() if (why := self._objection(info))}
        accepted = sorted((id for id in clients if id not in refused), key=_order)
        for id, why in refused.items():
            logger.warning("client %r is refused: %s", id, why)
        if accepted and self.selector is None:
            self._build({id: clients[id] for id in accepted})
        elif accepted:
            self._extend({id: clients[id] for id in accepted})
        return refused

    def _objection(self, info: ClientInfo) -> str | None:
        """Return why a client cannot be registered, or None."""
        if not np.isfinite(info.weight) or info.weight < 0:
            return f"its number of samples must be finite and non-negative, got {info.weight!r}"
        known = info.label_counts is not None or "label_counts" in self._policy.options
        if self.wants_label_counts and not known:
            return f"policy {self._policy.kind.name!r} wants its label counts"
        return None

    def _build(self, clients: dict[Any, ClientInfo]) -> None:
        """Build the selector for the first clients."""
        defaults: dict[str, Any] = {}
        if self.wants_label_counts:
            defaults["label_counts"] = [info.label_counts for info in clients.values()]
        if self.watches and self.features is not None:
            defaults["n_features"] = self.features.n_features
        if self._initial is not None:
            defaults["initial"] = self._initial
        self.selector = self._policy.build([info.weight for info in clients.values()], **defaults)
        self.ids = IdMap(clients)

    def _extend(self, clients: dict[Any, ClientInfo]) -> None:
        """Give slots to more clients; the selector grows when no slot is free."""
        selector = self.selector
        assert selector is not None
        ids = self.ids
        if not len(ids) and all(_is_slot(id, selector.n_clients) for id in clients):
            ids = IdMap(range(selector.n_clients))
        added = [id for id in clients if id not in ids]
        beyond = added[max(selector.n_clients - len(ids), 0) :]
        if beyond:
            extra = {}
            if self.wants_label_counts:
                extra["label_counts"] = [clients[id].label_counts for id in beyond]
            weights = [clients[id].weight for id in beyond]
            selector.resize(selector.n_clients + len(beyond), weights, **extra)
        ids.slots(added)
        self.ids = ids


def _order(id: Any) -> tuple[bool, Any]:
    """Order ids: numbers by size, then strings."""
    return isinstance(id, str), id


def _is_slot(id: Any, n_clients: int) -> bool:
    return isinstance(id, int) and 0 <= id < n_clients
