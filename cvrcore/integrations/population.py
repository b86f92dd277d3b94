"""Population: clients by the framework's ids in, their slots and the selector for them out."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..features import FeatureMap, Model
from ..head import HeadMap
from ..ids import IdMap
from ..selectors.base import Selector
from ..validation import check_choice
from .clients import ClientInfo, NeverReportedError
from .policy import Policy
from .untrusted import MAX_COUNT, as_number, brief, check_label_counts

logger = logging.getLogger(__name__)


class Population:
    """All clients that were ever registered, and the selector that has a slot for each.

    Parameters
    ----------
    policy : Policy
        Builds the selector for the first clients, or holds a ready one.
    features : FeatureMap, "update" or "head", optional
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
            check_choice(features, "features", ("update", "head"))
        self._updates, self._head = features == "update", features == "head"
        self.features: FeatureMap | HeadMap | None = None
        if not isinstance(features, str):
            self.features = features
        self._n_features, self._feature_seed = n_features, feature_seed
        self._initial: np.ndarray | None = None  # the row of a client that was never seen
        self.ids = IdMap()
        self._few: dict[Any, ClientInfo] | None = None  # all clients, if fewer than `n_select`
        self._n_rounds: int | None = None  # rounds that were announced
        #: What a client must send for each of the policy's needs, in words of the framework.
        self.hints: Mapping[str, str] = {}
        if self._head and "sent" in self.needs:
            raise ValueError(
                f"features must be None or 'update' with policy {self.policy_name!r}, which "
                "watches the model sent, got 'head'"
            )
        if self._head and n_features is not None:
            raise ValueError(
                "n_features must be left out with features='head', which has one number for each "
                f"output of the model, got {n_features}"
            )

    @property
    def policy_name(self) -> str:
        """The name of the policy."""
        return self._policy.kind.name

    @property
    def n_select(self) -> int | None:
        """Clients per round; None for a policy that is neither built nor told."""
        return self._policy.n_select if self.selector is None else self.selector.n_select

    @property
    def needs(self) -> frozenset[str]:
        """What the policy needs: names of `cvrcore.selectors.needs.NEEDS`."""
        return self._policy.kind.needs if self.selector is None else self.selector.needs

    @property
    def watches(self) -> bool:
        """Whether the policy watches models."""
        return self._policy.wants("n_features") or bool(self.needs & {"models", "updates", "sent"})

    @property
    def wants_label_counts(self) -> bool:
        """Whether the policy needs the class counts of each client."""
        return self._policy.wants("label_counts") or "label_counts" in self.needs

    @property
    def loss_statistic(self) -> str | None:
        """The loss that clients must report: None, "mean" or "rms"."""
        return self._policy.kind.loss_statistic if "losses" in self.needs else None

    def watch(self, model: Model) -> None:
        """Choose the watched coordinates by the first model, if the policy watches any."""
        if self.watches and self.features is None:
            self.features = self._map(model)
        if self.features is None:
            return
        # The row of a client never seen: that of the first model; for updates the zeros that
        # are the policy's default.
        first = self.selector is None and self._initial is None
        if first and self._policy.wants("initial") and not self._updates:
            if isinstance(self.features, FeatureMap):
                self._initial = self.features.extract(model)
        wanted = getattr(self.selector, "n_features", self.features.n_features)
        if wanted != self.features.n_features:
            raise ValueError(
                f"features must give the {wanted} coordinates of the selector, "
                f"got {self.features.n_features}: pass n_features= or a FeatureMap"
            )

    @property
    def _raw_head(self) -> bool:
        """Whether the policy watches the output layer's update with its length."""
        return getattr(self._policy.kind, "watches", "") == "head"

    def _map(self, model: Model) -> FeatureMap | HeadMap:
        """Return what is watched of models like this one."""
        if self._head or (self._raw_head and self._n_features is None):
            return HeadMap(model, normalised=not self._raw_head)
        return FeatureMap.last_layer(model, self._n_features, self._feature_seed)

    def announce(self, n_rounds: int) -> None:
        """Tell the policy how many rounds will be run from here on.

        A policy that is not built yet is given the number. A warm-up of a built one that leaves
        no round to the policy is reported in the log.
        """
        self._n_rounds = n_rounds
        selector = self.selector
        warmup = int(getattr(selector, "warmup", 0) or 0)
        if selector is not None and warmup >= selector.round + n_rounds:
            logger.warning(
                "%s will not act: all %d rounds are warm-up (warmup=%d), in which clients are "
                "drawn uniformly; pass warmup='auto', or at most warmup=%d",
                selector.name,
                n_rounds,
                warmup,
                n_rounds // 3,
            )

    def register(self, clients: Mapping[Any, ClientInfo]) -> dict[Any, str]:
        """Give slots to clients that connect for the first time, in the order of their ids.

        Slots depend on which clients come first: where that differs from run to run, register
        all clients that are known beforehand. Each client is checked for itself: an invalid one
        is refused, and so are the last ones if there is no memory for all.

        Returns
        -------
        dict
            The reason for each client that was refused; it gets no slot.
        """
        refused: dict[Any, str] = {}
        checked: dict[Any, ClientInfo] = {}
        for id, info in clients.items():
            try:
                checked[id] = self._check(info)
            except Exception as error:  # nothing that a client states may end the run
                refused[id] = brief(error)
        self._refuse_other_classes(checked, refused)
        accepted = {id: checked[id] for id in sorted(checked, key=_order)}
        if self.selector is None and not any(info.weight for info in accepted.values()):
            why = "no client with samples is known yet"
            refused |= dict.fromkeys(accepted, why)
        elif accepted:
            self._admit(accepted, refused)
        for id, why in refused.items():
            logger.warning("client %r is refused: %s", id, why)
        self._check_ever_told(clients, checked)
        return refused

    def forget(self, id: Any) -> None:
        """Erase a client: its slot stays, without samples; if it returns it joins as a new one."""
        if self.selector is None or id not in self.ids:
            raise ValueError(f"client must be registered, got {id!r}")
        self.selector.forget(self.ids.slot(id))
        self.ids.forget(id)
        self._few = None  # slots stay as they are from now on

    def _check(self, info: ClientInfo) -> ClientInfo:
        """Return checked facts of one client; an error says why it cannot be registered."""
        weight = as_number(info.weight, "its number of samples", minimum=0.0, maximum=MAX_COUNT)
        if not self.wants_label_counts or "label_counts" in self._policy.options:
            return ClientInfo(weight)
        if info.label_counts is None:
            raise ValueError(f"policy {self._policy.kind.name!r} wants its label counts")
        return ClientInfo(weight, check_label_counts(info.label_counts))

    def _refuse_other_classes(
        self, checked: dict[Any, ClientInfo], refused: dict[Any, str]
    ) -> None:
        """Refuse clients that count other classes than the selector, or than most clients."""
        lengths = {
            id: np.size(counts)
            for id in sorted(checked, key=_order)
            if (counts := checked[id].label_counts) is not None
        }
        if not lengths:
            return
        known = getattr(self.selector, "label_counts", None)
        ((usual, _),) = collections.Counter(lengths.values()).most_common(1)
        wanted = usual if known is None else int(known.shape[1])
        for id, length in lengths.items():
            if length != wanted:
                del checked[id]
                refused[id] = f"its label counts must be of {wanted} classes, got {length}"

    def _check_ever_told(self, clients: Mapping[Any, Any], checked: Mapping[Any, Any]) -> None:
        """Raise if several clients have introduced themselves, and none with label counts."""
        if not self.wants_label_counts or self.selector is not None or checked:
            return
        if len(clients) > 1 and all(info.label_counts is None for info in clients.values()):
            raise NeverReportedError(
                f"policy {self._policy.kind.name!r} needs the label counts of clients, and none "
                f"of {len(clients)} states them: {self.hints.get('label_counts', '')}"
            )

    def _admit(self, clients: dict[Any, ClientInfo], refused: dict[Any, str]) -> None:
        """Build the selector for clients, or extend it; refuse those without memory for them."""
        try:
            if self.selector is None:
                self._build(clients)
            else:
                self._extend(clients)
            return
        except MemoryError as error:
            if self.selector is None and len(clients) == 1:
                raise  # nobody else could be served either
            why, full = f"no memory for another client: {brief(error)}", True
        except (TypeError, ValueError) as error:
            if self.selector is None:
                raise  # clients are checked: the options of the policy are wrong
            why, full = brief(error), False
        names = list(clients)
        if len(names) == 1:
            refused[names[0]] = why
            return
        half = len(names) // 2
        self._admit({id: clients[id] for id in names[:half]}, refused)
        if full and any(id in refused for id in names[:half]):
            refused |= dict.fromkeys(names[half:], why)  # the later ones would need more still
        else:
            self._admit({id: clients[id] for id in names[half:]}, refused)

    def _build(self, clients: dict[Any, ClientInfo]) -> None:
        """Build the selector for the first clients."""
        defaults: dict[str, Any] = {}
        if self.wants_label_counts:
            defaults["label_counts"] = [info.label_counts for info in clients.values()]
        if self._policy.wants("n_features") and self.features is not None:
            defaults["n_features"] = self.features.n_features
        if self._initial is not None:
            defaults["initial"] = self._initial
        if self._n_rounds is not None and self._policy.wants("n_rounds"):
            defaults["n_rounds"] = self._n_rounds
        selector = self._policy.build([info.weight for info in clients.values()], **defaults)
        if "probed_norms" in selector.needs:
            raise ValueError(
                f"policy {selector.name!r} must not probe norms here: adapters ask clients for "
                "losses only, use norms='remembered'"
            )
        self.selector, self.ids = selector, IdMap(clients)
        wanted = self._policy.n_select or 0
        self._few = None
        if len(clients) < wanted:
            self._few = dict(clients)
            logger.warning(
                "%d clients are registered and n_select is %d: every round takes all of them "
                "until more connect",
                len(clients),
                wanted,
            )

    def _extend(self, clients: dict[Any, ClientInfo]) -> None:
        """Give slots to more clients; the selector grows when no slot is free."""
        selector = self.selector
        assert selector is not None
        if self._few is not None:  # fewer clients than places so far: nothing to lose
            added = {id: info for id, info in clients.items() if id not in self._few}
            if added:
                self._build({**self._few, **added})
            return
        ids = self.ids
        if not len(ids) and all(_is_slot(id, selector.n_clients) for id in clients):
            ids = IdMap(range(selector.n_clients))
        new = [id for id in clients if id not in ids]
        beyond = new[max(selector.n_clients - len(ids), 0) :]
        if beyond:
            extra = {}
            if self.wants_label_counts:
                extra["label_counts"] = [clients[id].label_counts for id in beyond]
            weights = [clients[id].weight for id in beyond]
            selector.resize(selector.n_clients + len(beyond), weights, **extra)
        ids.slots(new)
        self.ids = ids


def _order(id: Any) -> tuple[bool, Any]:
    """Order ids: numbers by size, then strings."""
    return isinstance(id, str), id


def _is_slot(id: Any, n_clients: int) -> bool:
    return isinstance(id, int) and 0 <= id < n_clients
