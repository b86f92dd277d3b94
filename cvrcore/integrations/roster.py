"""Roster: the framework's client ids and replies in, selected ids and the next model out.

It holds what every adapter needs: the map from ids to slots of the selector, clients that
join, which clients are connected, checks of their replies, a record of each round, and all of
it as saved state.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from ..aggregators import Aggregator
from ..features import FeatureMap, Model
from ..guards.bounds import weight_bound
from ..head import HeadMap, watched_map
from ..ids import IdMap
from ..selectors.base import Selector
from ..selectors.guards import Guards
from ..selectors.needs import NEEDS
from .aggregation import aggregate_models, as_aggregator, check_change, restore_aggregator
from .averages import DeployedModel
from .clients import (
    ClientInfo,
    NeverReportedError,
    NoEligibleClientError,
    Reply,
    Round,
    Wanted,
    accepted_rows,
    fill_durations,
    read_reply,
    stack_rows,
)
from .policy import Policy
from .population import Population
from .untrusted import as_number, brief
from .utilities import Utility, group_worth

__all__ = [
    "ClientInfo",
    "NeverReportedError",
    "NoEligibleClientError",
    "Reply",
    "Roster",
    "Round",
    "Utility",
]

logger = logging.getLogger(__name__)

# Earlier names, still accepted.
Answer, Newcomer, NobodyEligibleError = Reply, ClientInfo, NoEligibleClientError

#: A function of ids that returns their current losses; one that is left out gave no reply.
Ask = Callable[[list[Any]], Mapping[Any, float]]


class Roster(Population):
    """The clients of a framework, by its own ids, and the selector that selects among them.

    Parameters
    ----------
    selector : str or Selector
        A policy by name, built when the first clients are registered, or a ready selector.
        Integer ids below the ``n_clients`` of a ready one are its slots; other ids get slots
        in order.
    n_select : int, optional
        Clients per round; required with a name.
    seed : int, SeedSequence or None
    features : FeatureMap, "update" or "head", optional
        What the policy watches of a model. Default: the last layer of the first model; with
        "update" its change by the client, see `FeatureMap.updates`; with "head" the direction of
        the output layer's update, one number for each output, see `cvrcore.head.HeadMap`.
    n_features : int, optional
        Watch only that many coordinates of the last layer.
    options : mapping, optional
        Further arguments of the policy.
    aggregator : str or Aggregator, optional
        Computes the next model; its state is saved with the selector's.
    average : float, default=0
        Decay of the moving average of the models, which adapters evaluate and save; 0: none.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients, also for an aggregator given by name; with a name
        of a policy only.
    utility : callable, optional
        Given a model by name of array, returns its worth on samples of the server, the larger
        the better. Required by policies that need utilities.
    hints : mapping, optional
        What a client must send, in words of the framework, by name of the policy's need.
    log : callable, optional
        Gets one line of text about each round. Default: `logging` at level INFO.
    keywords : iterable of str
        Keywords of the adapter itself, to suggest for a mistyped option.

    Attributes
    ----------
    selector : Selector or None
        None until the first clients are registered.
    ids : IdMap
    features : FeatureMap, HeadMap or None
    aggregator : Aggregator or None
    deployed : DeployedModel
        The average of the models that the adapter has told it; saved too.
    rounds : list of Round
        One record per round, oldest first.

    Examples
    --------
    >>> roster = Roster("uniform", n_select=2, seed=0)
    >>> roster.register({"ann": ClientInfo(30), "bob": ClientInfo(10), "eve": ClientInfo(20)})
    {}
    >>> selected = roster.select(["eve", "bob", "ann"])
    >>> roster.report({selected[0]: Reply()}, {selected[1]: "its battery died"})
    ['bob']
    >>> roster.rounds[0].failed
    {'eve': 'its battery died'}
    """

    def __init__(
        self,
        selector: str | Selector,
        *,
        n_select: int | None = None,
        seed: int | np.random.SeedSequence | None = None,
        features: FeatureMap | str | None = None,
        n_features: int | None = None,
        options: Mapping[str, Any] | None = None,
        aggregator: str | Aggregator | None = None,
        average: float = 0.0,
        guards: Guards | str | None = None,
        utility: Utility | None = None,
        hints: Mapping[str, str] | None = None,
        log: Callable[[str], None] | None = None,
        keywords: Iterable[str] = (),
    ) -> None:
        feature_seed = seed if isinstance(seed, int) else 0
        policy = Policy(selector, n_select, seed, options, guards, keywords)
        super().__init__(policy, features, n_features, feature_seed)
        self.aggregator = as_aggregator(aggregator)
        if isinstance(aggregator, str) and self.aggregator is not None:
            self.aggregator.guard(policy.guards)
        self.deployed = DeployedModel(average)
        self.rounds: list[Round] = []
        self._open: Round | None = None
        self._utility = utility
        self.hints = dict(hints or {})
        self._log = log or (lambda text: logger.info("%s", text))
        self._told: set[str] = set()  # needs that some client has met
        if features is not None and not self.watches:
            logger.warning(
                "features does nothing with policy %r, which watches no model", self.policy_name
            )
        if "utilities" in self.needs and utility is None:
            raise ValueError(
                f"utility must be given to policy {policy.kind.name!r}: a function of a model, by "
                "name of array, that returns its worth on samples of the server; got None"
            )

    @property
    def needs_sent(self) -> bool:
        """Whether `report` needs the model that was sent."""
        changes = self._updates or self._head or isinstance(self.features, HeadMap)
        watched = self.watches and (changes or bool(self.needs & {"updates", "sent"}))
        whole = bool(self.needs & {"norms", "utilities"})
        return self.aggregator is not None or watched or whole

    # -- one round --------------------------------------------------------------

    def select(
        self, present: Iterable[Hashable], ask: Ask | None = None, sent: Model | None = None
    ) -> list[Any]:
        """Select clients among the connected ones.

        Parameters
        ----------
        present : iterable of ids
            Connected clients in any order; those never registered are left out.
        ask : callable, optional
            Given ids, returns their current losses by id. Needed by policies that probe.
        sent : list or dict of arrays, optional
            The model that is about to be sent, for policies that need it.

        Returns
        -------
        list of ids
            Empty if a policy of random size picked nobody: then `report` follows at once.

        Raises
        ------
        NoEligibleClientError
            If no connected client can be selected.
        NeverReportedError
            If several clients were asked for their loss, and none has ever given one.
        """
        # Sorted by slot: frameworks list clients in an order that differs from run to run.
        known = sorted({self.ids.slot(id) for id in present if id in self.ids})
        selector = self.selector
        if selector is None or not known or not selector.weights[known].any():
            raise NoEligibleClientError(f"no eligible client of {len(self.ids)} is connected")
        context: dict[str, Any] = {}
        if "sent" in selector.needs:
            if sent is None or not isinstance(self.features, FeatureMap):
                raise ValueError(f"sent must be given to policy {selector.name!r}, got None")
            context["sent"] = self.features.extract(sent)
        available = np.array(known, dtype=np.int64)
        candidates = selector.probe(available)
        losses = None
        if candidates is not None and len(candidates):
            if ask is None:
                raise ValueError(f"policy {selector.name!r} probes: ask must be given, got None")
            losses = self._probed_losses(self.ids.ids(candidates), ask)
        elif candidates is not None:
            losses = np.empty(0)
        selection = selector.select(available, losses, **context)
        selected = self.ids.ids(selection.clients)
        self._open = Round(self.ids.ids(available), selected, selection)
        self._log(self._open.line(selector))
        return selected

    def report(
        self,
        replies: Mapping[Any, Reply],
        failed: Mapping[Any, str] | None = None,
        sent: Model | None = None,
    ) -> list[Any]:
        """Report the replies of the round to the policy, and close the round.

        A reply of another shape, with NaN, without what the policy needs, or with a model that
        the aggregator cannot combine with the one `sent` counts as failed, like a selected
        client in neither mapping. Replies of clients that were not selected are logged and
        ignored. `sent` is needed where `needs_sent` says so.

        Returns
        -------
        list of ids
            Clients whose replies were used, in the order of their slots.

        Raises
        ------
        NeverReportedError
            If several clients replied, and none has ever sent a loss that the policy needs.
        """
        record, selector = self._open, self.selector
        if record is None or selector is None:
            raise ValueError("report must follow select: no round is open")
        if sent is None and self.needs_sent:
            raise ValueError("sent must be given to an aggregator, or to watch updates, got None")
        selected = set(record.selected)
        for id in [*replies, *(failed or {})]:
            if id not in selected:
                logger.warning("client %r replied and was not selected: ignored", id)
        answered = [replies[id] for id in record.selected if id in replies]
        if self.loss_statistic is not None:
            self._check_told("losses", [reply.loss is not None for reply in answered])
        reasons = {id: brief(why) for id, why in (failed or {}).items() if id in selected}
        rows = self._read_rows(replies, sent, reasons)
        rows = accepted_rows(selector, self.ids, rows, reasons)
        slots = [self.ids.slot(id) for id in rows]
        lost = sorted(self.ids.slot(id) for id in reasons)
        told = stack_rows(list(rows.values()))
        if "utilities" in selector.needs and rows:
            assert self._utility is not None
            by_slot = {self.ids.slot(id): replies[id] for id in rows}
            told["utilities"] = group_worth(self._utility, by_slot, selector.weights, sent)
        selector.observe(slots, **told, failed=lost)
        for id, why in reasons.items():
            logger.warning("client %r failed in round %d: %s", id, selector.round, why)
        record.reported, record.failed = list(rows), reasons
        self.rounds.append(record)
        self._open = None
        return list(rows)

    def check(self, id: Any, reply: Reply, sent: Model | None = None) -> None:
        """Raise what would make `report` count this one reply as failed; nothing changes.

        For frameworks that add replies up as they come, before the round is reported.
        """
        assert self.selector is not None
        reasons: dict[Any, str] = {}
        rows = {id: read_reply(reply, self._wanted(sent))}
        if not accepted_rows(self.selector, self.ids, rows, reasons):
            raise ValueError(reasons[id])

    def merge(self, sent: Model, replies: Mapping[Any, Reply]) -> dict[str, Any]:
        """Return the next model that the aggregator computes, by name of array.

        Parameters
        ----------
        sent : list or dict of arrays
            The model that was sent, as given to `report`.
        replies : mapping
            The replies that `report` returned as used, with their models.
        """
        if self.aggregator is None or self.selector is None or not self.rounds:
            raise ValueError("merge must follow report, with an aggregator")
        last = self.rounds[-1]
        models = [replies[id].model or {} for id in last.reported]
        slots, weights = self.ids.slots(last.reported), self.selector.weights
        return aggregate_models(self.aggregator, sent, models, slots, weights, last.selection)

    # Earlier names, still accepted.
    welcome, choose = Population.register, select

    def forget(self, id: Any) -> None:
        """Erase a client from selector, aggregator, ids and the records of rounds.

        Saved states and logs are rewritten by `cvrcore.erasure`. If the client returns, it joins
        as a new one. A round that is open is dropped.
        """
        slot = self.ids.slot(id) if id in self.ids else None
        super().forget(id)
        if self.aggregator is not None and slot is not None:
            self.aggregator.forget(slot)
        for record in self.rounds:
            for name in ("available", "selected", "reported"):
                setattr(record, name, [one for one in getattr(record, name) if one != id])
            record.failed.pop(id, None)
        self._open = None

    def bounded_weights(self, weights: Mapping[Any, float]) -> dict[Any, float]:
        """Return what clients claim to weigh in the mean, each at most the guard `max_weight`.

        A median is that of the sample counts of all registered clients.
        """
        guards = None if self.selector is None else self.selector.guards
        if guards is None or guards.max_weight is None:
            return dict(weights)
        assert self.selector is not None
        positive = self.selector.weights[self.selector.weights > 0]
        bound = float(weight_bound(guards.max_weight, positive))
        return {id: min(weight, bound) for id, weight in weights.items()}

    # -- state ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return selector, ids, watched coordinates, aggregator and average as plain values."""
        return {
            "aggregator": None if self.aggregator is None else self.aggregator.state_dict(),
            "selector": None if self.selector is None else self.selector.state_dict(),
            "ids": self.ids.state_dict(),
            "features": None if self.features is None else self.features.state_dict(),
            "updates": self._updates,
            "average": self.deployed.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned, of the same policy and aggregator."""
        try:
            saved = state["selector"]
            selector = None if saved is None else self._policy.kind.from_state_dict(saved)
            ids, features = IdMap.from_state_dict(state["ids"]), state["features"]
            watched = None if features is None else watched_map(features)
            if bool(state.get("updates", False)) != self._updates:
                wanted = "must not be" if self._updates else "must be"
                raise ValueError(f"features {wanted} 'update', as in the saved state")
            usual = self._head or self._raw_head
            if watched is not None and isinstance(watched, HeadMap) != usual:
                # Earlier versions watched the whole last layer where only its bias is wanted.
                if self._head or isinstance(watched, HeadMap):
                    wanted = "must not be" if self._head else "must be"
                    raise ValueError(f"features {wanted} 'head', as in the saved state")
            deployed = DeployedModel(self.deployed.decay)
            deployed.load_state_dict(state.get("average"))
            restore_aggregator(self.aggregator, state.get("aggregator"))  # the last to fail
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        self.selector = selector if selector is not None else self.selector
        self.ids, self.features, self._open, self._few = ids, watched, None, None
        self.deployed = deployed
        if selector is not None and selector.round:
            self._told = {"probe", "losses"}  # the clients' code has proved that it sends them

    # -- parts ------------------------------------------------------------------

    def _wanted(self, sent: Model | None) -> Wanted:
        """Return what the policy needs of a reply."""
        return Wanted(
            self.needs, self.loss_statistic, self.features, self.watches, self._updates, sent
        )

    def _read_rows(
        self, replies: Mapping[Any, Reply], sent: Model | None, reasons: dict[Any, str]
    ) -> dict[Any, dict[str, Any]]:
        """Return the row of each valid reply, by slot; the others get an entry in `reasons`."""
        assert self._open is not None
        wanted = self._wanted(sent)
        rows: dict[Any, dict[str, Any]] = {}
        for id in sorted(set(self._open.selected) - set(reasons), key=self.ids.slot):
            try:
                if id not in replies:
                    raise ValueError("no answer in time")
                row = read_reply(replies[id], wanted)
                if self.aggregator is not None and sent is not None:
                    check_change(replies[id].model or {}, sent)
                rows[id] = row
            except Exception as error:  # no content of a reply may end the round
                reasons[id] = brief(error)
        fill_durations(rows)
        return rows

    def _probed_losses(self, ids: list[Any], ask: Ask) -> np.ndarray:
        """Return the losses of `ids`; NaN for a client that gave none."""
        replies = ask(ids)
        losses = np.full(len(ids), np.nan)
        for i, id in enumerate(ids):
            if id in replies:
                with contextlib.suppress(ValueError):
                    losses[i] = as_number(replies[id], "its loss")
        silent = [id for id, loss in zip(ids, losses, strict=True) if np.isnan(loss)]
        self._check_told("probe", [id not in silent for id in ids])
        if silent:
            logger.warning("%d of %d clients gave no loss: %r", len(silent), len(ids), silent[:5])
        return losses

    def _check_told(self, need: str, told: list[bool]) -> None:
        """Raise if no client has ever met a need of the policy, and several could have.

        One client alone never ends the run: it may be the only one that does not.
        """
        if any(told):
            self._told.add(need)
        elif len(told) > 1 and need not in self._told:
            hint = self.hints.get(need, NEEDS[need])
            statistic = f" (the {self.loss_statistic})" if need == "losses" else ""
            raise NeverReportedError(
                f"policy {self._policy.kind.name!r} needs losses{statistic}, and none of "
                f"{len(told)} clients sent one: {hint}"
            )
