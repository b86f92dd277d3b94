"""Roster: a selector spoken to in a framework's own client ids.

What every adapter needs and no framework has: ids to slots, newcomers, who is here now, what
came back and what was wrong with it, a record of each round, and all of it as saved state.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from .._validation import check_choice
from ..aggregators import Aggregator
from ..features import FeatureMap, Model
from ..ids import IdMap
from ..selectors import make_selector, policy_class
from ..selectors.base import Selector
from .answers import Answer, Newcomer, NobodyEligibleError, Round, read_answer, stacked
from .merging import as_aggregator, check_change, merged, restore_aggregator

__all__ = ["Answer", "Newcomer", "NobodyEligibleError", "Roster", "Round"]

logger = logging.getLogger(__name__)


class Roster:
    """Clients by the ids of a framework, and the selector that picks among them.

    Parameters
    ----------
    selector : str or Selector
        A policy by name, built for the first clients that are met, or a ready one. Integer
        ids below a ready one's ``n_clients`` are its slots; other ids get slots in order.
    n_select : int, optional
        Clients a round; required with a name.
    seed : int, SeedSequence or None
    features : FeatureMap or "update", optional
        What the policy watches of a model. Default: the last layer of the first model; with
        "update" what a client changed of it, see `FeatureMap.updates`.
    n_features : int, optional
        Watch only that many coordinates of the last layer.
    options : mapping, optional
        Further arguments of the policy.
    aggregator : str or Aggregator, optional
        Who merges models, by name or a ready one; its state is saved with the selector's.

    Attributes
    ----------
    selector : Selector or None
        None until the first clients are met.
    ids : IdMap
    features : FeatureMap or None
    aggregator : Aggregator or None
    rounds : list of Round
        One record per round, oldest first.

    Examples
    --------
    >>> roster = Roster("uniform", n_select=2, seed=0)
    >>> roster.welcome({"ann": Newcomer(30), "bob": Newcomer(10), "eve": Newcomer(20)})
    {}
    >>> picked = roster.choose(["eve", "bob", "ann"])
    >>> roster.report({picked[0]: Answer()}, {picked[1]: "its battery died"})
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
    ) -> None:
        self.aggregator = as_aggregator(aggregator)
        self.selector: Selector | None = None
        if isinstance(selector, Selector):
            if n_select is not None or seed is not None or options:
                raise ValueError(
                    "n_select, seed and options must go with a policy's name: a ready selector "
                    "has its own"
                )
            self.selector, self._policy = selector, type(selector)
        elif isinstance(selector, str):
            self._policy = policy_class(selector)
            if n_select is None:
                raise ValueError(f"n_select must be given with a policy's name, {selector!r}")
            self._make = functools.partial(make_selector, selector, n_select=n_select, seed=seed)
        else:
            raise TypeError(f"selector must be a name or a Selector, got {selector!r}")
        self._named = frozenset(inspect.signature(self._policy).parameters)
        self._options = dict(options or {})
        self._feature_seed = seed if isinstance(seed, int) else 0
        self._n_features = n_features
        if isinstance(features, str):
            check_choice(features, "features", ("update",))
        self._updates = isinstance(features, str)
        self.features = None if isinstance(features, str) else features
        self.ids = IdMap()
        self.rounds: list[Round] = []
        self._open: Round | None = None

    @property
    def watches(self) -> bool:
        """Whether the policy watches models."""
        return "n_features" in self._named

    @property
    def needs_sent(self) -> bool:
        """Whether `report` must be told the model that was sent."""
        return self.aggregator is not None or (self._updates and self.watches)

    @property
    def wants_label_counts(self) -> bool:
        """Whether the policy wants the class counts of each client."""
        return "label_counts" in self._named

    @property
    def loss_statistic(self) -> str | None:
        """Which loss the policy wants reported: None, "mean" or "rms"."""
        return self._policy.loss_statistic

    # -- one round --------------------------------------------------------------

    def watch(self, model: Model) -> None:
        """Fix the watched coordinates by the first model, if the policy watches any."""
        if self.watches and self.features is None:
            self.features = FeatureMap.last_layer(model, self._n_features, self._feature_seed)
        if self.features is None:
            return
        # Of a client never seen: the first model, or no update at all, the policy's default.
        if self.selector is None and "initial" in self._named and not self._updates:
            self._options.setdefault("initial", self.features.extract(model))
        wanted = getattr(self.selector, "n_features", self.features.n_features)
        if wanted != self.features.n_features:
            raise ValueError(
                f"features must give the {wanted} coordinates of the selector, "
                f"got {self.features.n_features}: pass n_features= or a FeatureMap"
            )

    def welcome(self, newcomers: Mapping[Any, Newcomer]) -> dict[Any, str]:
        """Take in clients that were never met, in the order of their ids.

        Slots then depend on who was met first: where that differs from run to run, welcome
        everybody that is known beforehand.

        Returns
        -------
        dict
            Why, for each that was refused; they get no slot.
        """
        refused = {id: why for id, new in newcomers.items() if (why := self._objection(new))}
        joined = sorted((id for id in newcomers if id not in refused), key=_order)
        for id, why in refused.items():
            logger.warning("client %r is refused: %s", id, why)
        if joined and self.selector is None:
            self._build({id: newcomers[id] for id in joined})
        elif joined:
            self._extend({id: newcomers[id] for id in joined})
        return refused

    def choose(
        self,
        present: Iterable[Hashable],
        ask: Callable[[list[Any]], Mapping[Any, float]] | None = None,
    ) -> list[Any]:
        """Pick clients among those present.

        Parameters
        ----------
        present : iterable of ids
            In any order; those that were never welcomed are left out.
        ask : callable, optional
            Given ids, returns their present losses; one left out did not answer. Needed by
            policies that probe.

        Raises
        ------
        NobodyEligibleError
            If nobody present can be picked.
        """
        # Sorted by slot: frameworks list clients in an order that differs from run to run.
        known = sorted({self.ids.slot(id) for id in present if id in self.ids})
        selector = self.selector
        if selector is None or not known or not selector.weights[known].any():
            raise NobodyEligibleError(f"nobody eligible is present, of {len(self.ids)} clients")
        available = np.array(known, dtype=np.int64)
        asked = selector.probe(available)
        losses = None
        if asked is not None:
            if ask is None:
                raise ValueError(f"policy {selector.name!r} probes: ask must be given, got None")
            losses = self._probed(self.ids.ids(asked), ask)
        selection = selector.select(available, losses)
        picked = self.ids.ids(selection.clients)
        self._open = Round(self.ids.ids(available), picked, selection)
        return picked

    def report(
        self,
        answers: Mapping[Any, Answer],
        failed: Mapping[Any, str] | None = None,
        sent: Model | None = None,
    ) -> list[Any]:
        """Tell what came back from the round; who is in neither gave no answer in time.

        An answer of another shape, with NaN, without what the policy needs, or with a model
        that the aggregator cannot merge with the one `sent` counts as failed. Strangers are
        logged and left out. `sent` is needed for the aggregator, and to watch updates.

        Returns
        -------
        list of ids
            Those whose answer was taken, in the order of their slots.
        """
        record, selector = self._open, self.selector
        if record is None or selector is None:
            raise ValueError("report must follow choose: no round is open")
        if sent is None and self.needs_sent:
            raise ValueError("sent must be given to an aggregator, or to watch updates, got None")
        before = None
        if sent is not None and self.features is not None and self._updates:
            before = self.features.extract(sent)
        picked = set(record.selected)
        for id in [*answers, *(failed or {})]:
            if id not in picked:
                logger.warning("client %r answered and was not asked: ignored", id)
        why = {id: reason for id, reason in (failed or {}).items() if id in picked}
        news: dict[Any, dict[str, Any]] = {}
        for id in sorted(picked - set(why), key=self.ids.slot):
            try:
                if id not in answers:
                    raise ValueError("no answer in time")
                row = read_answer(answers[id], self.features, self.watches, self.loss_statistic)
                if before is not None:
                    row["models"] = row["models"] - before
                if self.aggregator is not None and sent is not None:
                    check_change(answers[id].model or {}, sent)
                news[id] = row
            except (TypeError, ValueError) as error:
                why[id] = str(error)
        if any(row["durations"] is None for row in news.values()):
            news = {id: {**row, "durations": None} for id, row in news.items()}  # all or nobody
        news = self._sifted(selector, news, why)
        rows = list(news.values())
        slots = [self.ids.slot(id) for id in news]
        lost = sorted(self.ids.slot(id) for id in why)
        selector.observe(slots, **stacked(rows), failed=lost)
        for id, reason in why.items():
            logger.warning("client %r failed in round %d: %s", id, selector.round, reason)
        record.reported, record.failed = list(news), why
        self.rounds.append(record)
        self._open = None
        return list(news)

    def merge(self, sent: Model, answers: Mapping[Any, Answer]) -> dict[str, Any]:
        """Return what the aggregator makes of the last round's answers, by name of array.

        Parameters
        ----------
        sent : list or dict of arrays
            The model that was sent, as told to `report`.
        answers : mapping
            Of all that `report` has taken, with their models.
        """
        if self.aggregator is None or self.selector is None or not self.rounds:
            raise ValueError("merge must follow report, with an aggregator")
        last = self.rounds[-1]
        models = [answers[id].model or {} for id in last.reported]
        slots, weights = self.ids.slots(last.reported), self.selector.weights
        return merged(self.aggregator, sent, models, slots, weights, last.selection)

    # -- state ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return selector, ids, watched coordinates and aggregator as plain values and arrays."""
        return {
            "aggregator": None if self.aggregator is None else self.aggregator.state_dict(),
            "selector": None if self.selector is None else self.selector.state_dict(),
            "ids": self.ids.state_dict(),
            "features": None if self.features is None else self.features.state_dict(),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned, of the same policy and aggregator."""
        try:
            saved = state["selector"]
            selector = None if saved is None else self._policy.from_state_dict(saved)
            ids, features = IdMap.from_state_dict(state["ids"]), state["features"]
            watched = None if features is None else FeatureMap.from_state_dict(features)
            if bool(state.get("updates", False)) != self._updates:
                wanted = "must not be" if self._updates else "must be"
                raise ValueError(f"features {wanted} 'update', as in the saved state")
            restore_aggregator(self.aggregator, state.get("aggregator"))  # the last to fail
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error
        self.selector = selector if selector is not None else self.selector
        self.ids, self.features, self._open = ids, watched, None

    # -- parts ------------------------------------------------------------------

    def _objection(self, new: Newcomer) -> str | None:
        """Return why a client cannot be taken in, or None."""
        if not np.isfinite(new.weight) or new.weight < 0:
            return f"its number of samples must be finite and non-negative, got {new.weight!r}"
        if self.wants_label_counts and self._counts_option() is None and new.label_counts is None:
            return f"policy {self._policy.name!r} wants its label counts"
        return None

    def _counts_option(self) -> Any:
        return self._options.get("label_counts")

    def _build(self, joined: dict[Any, Newcomer]) -> None:
        """Make the selector by name for the first clients."""
        options = dict(self._options)
        if self.wants_label_counts and self._counts_option() is None:
            options["label_counts"] = [new.label_counts for new in joined.values()]
        if self.features is not None:
            options.setdefault("n_features", self.features.n_features)
        weights = [new.weight for new in joined.values()]
        self.selector = self._make(n_clients=len(joined), weights=weights, **options)
        self.ids = IdMap(joined)

    def _extend(self, joined: dict[Any, Newcomer]) -> None:
        """Give slots to more clients; the selector grows when none is left."""
        selector = self.selector
        assert selector is not None
        ids = self.ids
        if not len(ids) and all(_is_slot(id, selector.n_clients) for id in joined):
            ids = IdMap(range(selector.n_clients))
        added = [id for id in joined if id not in ids]
        beyond = added[max(selector.n_clients - len(ids), 0) :]
        if beyond:
            extra = {}
            if self.wants_label_counts:
                extra["label_counts"] = [joined[id].label_counts for id in beyond]
            weights = [joined[id].weight for id in beyond]
            selector.resize(selector.n_clients + len(beyond), weights, **extra)
        ids.slots(added)
        self.ids = ids

    def _probed(
        self, ids: list[Any], ask: Callable[[list[Any]], Mapping[Any, float]]
    ) -> np.ndarray:
        answers = ask(ids)
        losses = np.array([answers.get(id, np.nan) for id in ids], dtype=np.float64)
        silent = [id for id, loss in zip(ids, losses, strict=True) if not np.isfinite(loss)]
        if silent:
            logger.warning("%d of %d clients gave no loss: %r", len(silent), len(ids), silent[:5])
        return np.where(np.isfinite(losses), losses, np.nan)

    def _sifted(
        self, selector: Selector, news: dict[Any, dict[str, Any]], why: dict[Any, str]
    ) -> dict[Any, dict[str, Any]]:
        """Return the news that the policy accepts; the reasons of others go to `why`."""

        def check(ids: list[Any]) -> None:
            rows = stacked([news[id] for id in ids])
            selector._check_report([self.ids.slot(id) for id in ids], **rows, failed=())

        try:
            check(list(news))  # all at once: a check goes over every client there is
            return news
        except (TypeError, ValueError):
            accepted = {}
        for id in news:
            try:
                check([id])
                accepted[id] = news[id]
            except (TypeError, ValueError) as error:
                why[id] = str(error)
        return accepted


def _order(id: Any) -> tuple[bool, Any]:
    """Order ids: numbers by size, then strings."""
    return isinstance(id, str), id


def _is_slot(id: Any, n_clients: int) -> bool:
    return isinstance(id, int) and 0 <= id < n_clients
