"""What the live page shows: records in, events for browsers out; bounded, safe for threads."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any, Final

from ..tracking.records import Facts, RoundRecord

MAX_ROUNDS: Final = 5_000  # kept; the oldest go first
BATCH: Final = 200  # rounds of one event


class Board:
    """Facts, rounds, the last snapshot and the state of a run.

    Every change has a number; a browser gets the changes after the last one that it has seen.

    Examples
    --------
    >>> board = Board()
    >>> board.begin(Facts("demo", "uniform"))
    >>> board.put(RoundRecord(round=1, n_clients=5))
    >>> events, seen = board.news(0)
    >>> [name for name, _ in events]
    ['reset', 'facts', 'rounds']
    >>> board.news(seen)
    ([], 3)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._cleared = 0  # version of the last reset
        self._single: dict[str, tuple[int, str]] = {}  # facts, snapshot, status
        self._rounds: dict[int, tuple[int, str]] = {}

    @property
    def last_round(self) -> int:
        """Return the number of the last round, 0 if there is none."""
        with self._lock:
            return max(self._rounds, default=0)

    def begin(self, facts: Facts) -> None:
        """Forget all rounds; a run begins or is read anew."""
        with self._lock:
            self._rounds.clear()
            self._single.pop("snapshot", None)
            self._cleared = self._next()
            self._set("facts", facts.plain())

    def put(self, record: RoundRecord) -> None:
        """Add a round, or replace the round of the same number."""
        plain = record.plain()
        snapshot = plain.pop("snapshot")
        text = _dump(plain)
        with self._lock:
            held = self._rounds.get(record.round)
            if held is None or held[1] != text:
                self._rounds[record.round] = self._next(), text
            while len(self._rounds) > MAX_ROUNDS:
                del self._rounds[min(self._rounds)]
            if snapshot is not None:
                picked = [pick["client"] for pick in plain["picks"]]
                self._set("snapshot", {"round": record.round, "picked": picked, **snapshot})

    def status(self, state: str, text: str = "", summary: Any = None) -> None:
        """Say how the run is: "running", "finished", "silent" or "problem"."""
        with self._lock:
            self._set("status", {"state": state, "text": text, "summary": summary})

    def news(self, seen: int) -> tuple[list[tuple[str, str]], int]:
        """Return events (name, JSON) after change number `seen`, and the latest number."""
        with self._lock:
            if seen >= self._version:
                return [], seen
            events: list[tuple[str, str]] = []
            if seen < self._cleared or seen == 0:
                events.append(("reset", "{}"))
                seen = 0
            for name in ("facts", "status"):
                if name in self._single and self._single[name][0] > seen:
                    events.append((name, self._single[name][1]))
            fresh = [text for _, (v, text) in sorted(self._rounds.items()) if v > seen]
            for i in range(0, len(fresh), BATCH):
                events.append(("rounds", f"[{','.join(fresh[i : i + BATCH])}]"))
            if "snapshot" in self._single and self._single["snapshot"][0] > seen:
                events.append(("snapshot", self._single["snapshot"][1]))
            return events, self._version

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _set(self, name: str, value: Any) -> None:
        text = _dump(value)
        if name not in self._single or self._single[name][1] != text:
            self._single[name] = self._next(), text


def _dump(value: Any) -> str:
    # One line: a line break would end the event. JSON escapes line breaks in strings.
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=str)
