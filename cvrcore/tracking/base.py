"""The protocol of trackers: `start`, `round`, `finish`; and the group that calls them safely."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from .records import Facts, RoundRecord

logger = logging.getLogger(__name__)

Summary = Mapping[str, Any]


class Tracker:
    """Gets the rounds of a run; override what you need.

    Examples
    --------
    >>> class Counter(Tracker):
    ...     name, rounds = "counter", 0
    ...
    ...     def round(self, record):
    ...         self.rounds += 1
    >>> counter = Counter()
    >>> trackers = Trackers([counter])
    >>> trackers.round(RoundRecord(round=1, n_clients=5))
    >>> counter.rounds
    1
    """

    name: ClassVar[str] = "tracker"
    #: Rounds between two snapshots of clients in the plane; None if it does not use them.
    map_every: int | None = None

    def start(self, facts: Facts) -> None:
        """Begin a run, or continue one after ``facts.done`` rounds."""

    def round(self, record: RoundRecord) -> None:
        """Take one round."""

    def finish(self, summary: Summary) -> None:
        """End the run: close files. `summary` holds plain values; it may be empty."""


class Trackers:
    """Several trackers as one. A tracker that fails is logged once; the run goes on.

    Parameters
    ----------
    trackers : iterable of Tracker

    Examples
    --------
    >>> len(Trackers([Tracker()]))
    1
    """

    def __init__(self, trackers: Iterable[Tracker] = ()) -> None:
        self._trackers = list(trackers)
        for tracker in self._trackers:
            if not isinstance(tracker, Tracker):
                raise TypeError(f"trackers must be names or Tracker objects, got {tracker!r}")
        self._failed: set[int] = set()  # positions of trackers that were logged
        self._dead: set[int] = set()  # positions of trackers that could not start

    def __len__(self) -> int:
        return len(self._trackers)

    def __iter__(self) -> Any:
        return iter(self._trackers)

    def wants_snapshot(self, round: int) -> bool:
        """Return whether a tracker wants clients in the plane in this round, counted from 1."""
        wanted = [t.map_every for i, t in enumerate(self._trackers) if i not in self._dead]
        return any(every is not None and (round - 1) % every == 0 for every in wanted)

    def start(self, facts: Facts) -> None:
        """Begin the run in every tracker; one that cannot start gets no rounds."""
        self._dead |= self._each(lambda tracker: tracker.start(facts))

    def round(self, record: RoundRecord) -> None:
        """Give the round to every tracker."""
        self._each(lambda tracker: tracker.round(record))

    def finish(self, summary: Summary | None = None) -> None:
        """End the run in every tracker."""
        self._each(lambda tracker: tracker.finish(summary or {}))

    def _each(self, act: Callable[[Tracker], None]) -> set[int]:
        """Call a function of each tracker; return the positions where it failed."""
        failed = set()
        for i, tracker in enumerate(self._trackers):
            if i in self._dead:
                continue
            try:
                act(tracker)
            except Exception as error:  # no tracker may end a run
                failed.add(i)
                if i not in self._failed:
                    self._failed.add(i)
                    logger.warning("tracker %r failed, the run goes on: %r", tracker.name, error)
        return failed
