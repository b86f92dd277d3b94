"""Rounds of a `Roster` in, records of `cvrcore.tracking` out; shared by the adapters."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..tracking import Facts, RoundRecord, Tracker, Trackers, make_trackers
from ..tracking.projection import Projection
from ..tracking.records import clean_numbers, coalition_sizes, describe_picks
from .options import Tracking
from .roster import Roster, Round

logger = logging.getLogger(__name__)


class TrackedRounds:
    """Collects one round after another of an adapter, and gives each to the trackers.

    A round is given when the next one begins, or at the end: evaluations follow the training.

    Parameters
    ----------
    tracking : Tracking
    roster : Roster
    log : callable
        Gets the address of the live page.
    """

    def __init__(self, tracking: Tracking, roster: Roster, log: Callable[[str], None]) -> None:
        self._options, self._roster, self._log = tracking, roster, log
        self._trackers = Trackers()
        self._projection = Projection()
        self._active = self._open = self._warned = False
        self._number = 0  # of the round under way
        self._before = 0  # rounds that the roster had closed when it began
        self._metrics: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._part, self._since = "", 0.0

    @property
    def wanted(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._options.trackers) or self._options.watch

    def prepare(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Make the trackers: a missing tool is an error, and the message says what to install."""
        place = self._options.folder if folder is None else folder
        made: list[Tracker] = list(make_trackers(self._options.trackers, place))
        if self._options.watch:
            from ..watch import WatchTracker

            made.append(WatchTracker(self._log))
        self._trackers = Trackers(made)

    def start(self, n_rounds: int | None = None) -> None:
        """Begin a run; `n_rounds` more rounds are to come."""
        if not self.wanted or self._active:
            return
        self._active = True
        selector = self._roster.selector
        done = self._number or (0 if selector is None else selector.round)
        name = self._roster.policy_name
        self._number = done
        settings = {"policy": name, "n_select": self._roster.n_select}
        facts = Facts(
            title=f"selection by {name}",
            policy=name,
            n_clients=len(self._roster.ids),
            n_rounds=None if n_rounds is None else done + n_rounds,
            done=done,
            settings=settings,
        )
        self._trackers.start(facts)

    def begin(self) -> None:
        """Begin a round, with the part ``"select"``; the round before is complete."""
        if not self._active:
            return
        self._flush()
        self._number += 1
        self._before = len(self._roster.rounds)
        self._metrics, self._seconds, self._part = {}, {}, ""
        self._open = True
        self.enter("select")

    def enter(self, part: str) -> None:
        """End the present part of the round, and begin another."""
        now = time.perf_counter()
        if self._part:
            spent = now - self._since
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + spent
        self._part, self._since = part, now

    def measured(self, metrics: Mapping[str, Any] | None) -> None:
        """Take metrics of the round: numbers by name, anything else is left out."""
        if self._active and metrics:
            self._metrics |= clean_numbers(metrics)

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Complete the last round, and end the run in every tracker."""
        if not self._active:
            return
        self._flush()
        self._active = False
        self._trackers.finish(summary)

    def _flush(self) -> None:
        if not self._open:
            return
        self._open = False
        self.enter("")
        try:
            record = self._record()
        except Exception as error:  # no tracking may end a run
            if not self._warned:
                self._warned = True
                logger.warning("round %d cannot be tracked: %r", self._number, error)
            return
        self._trackers.round(record)

    def _record(self) -> RoundRecord:
        rounds, n_clients = self._roster.rounds, len(self._roster.ids)
        total = sum(self._seconds.values())
        common: dict[str, Any] = {
            "round": self._number,
            "n_clients": n_clients,
            "metrics": self._metrics,
            "seconds": {**self._seconds, "round": total},
        }
        if len(rounds) <= self._before:  # skipped, or it failed before its end
            return RoundRecord(**common)
        done: Round = rounds[-1]
        selector, selection = self._roster.selector, done.selection
        slot = self._roster.ids.slot
        reasons = {slot(id): why for id, why in done.failed.items()}
        picks = describe_picks(selection, done.selected, list(map(slot, done.reported)), reasons)
        incidents = [] if selector is None else selector.incidents
        snapshot = None
        if self._trackers.wants_snapshot(self._number):
            snapshot = self._projection.snapshot(selector, selection)
        return RoundRecord(
            **common,
            available=len(done.available),
            warmup=selection.warmup,
            picks=picks,
            coalition_sizes=coalition_sizes(selection),
            incidents=[one for one in incidents if one.round == selection.round],
            snapshot=snapshot,
        )
