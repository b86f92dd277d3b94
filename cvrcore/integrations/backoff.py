"""Retry with exponential backoff: failed attempts in, whether to try again in this round out."""

from __future__ import annotations

from collections.abc import Hashable


class Backoff:
    """Delays the next attempt after each failure by 1, 2, 4, ... rounds.

    Waiting for a silent client in every round would delay all the others.

    Examples
    --------
    >>> retries = Backoff()
    >>> retries.delay("ann", now=0), retries.due("ann", now=0), retries.due("ann", now=1)
    (1, False, True)
    >>> retries.delay("ann", now=1), retries.due("ann", now=2), retries.due("ann", now=3)
    (2, False, True)
    >>> retries.reset("ann")
    >>> retries.due("ann", now=2)
    True
    """

    def __init__(self) -> None:
        self._next: dict[Hashable, tuple[int, int]] = {}  # round of the next attempt, and delay

    def due(self, id: Hashable, now: int) -> bool:
        """Return whether `id` may be tried in round `now`."""
        return self._next.get(id, (now, 0))[0] <= now

    def delay(self, id: Hashable, now: int) -> int:
        """Record a failure in round `now`; return the delay, twice the last one, in rounds."""
        delay = max(2 * self._next.get(id, (0, 0))[1], 1)
        self._next[id] = now + delay, delay
        return delay

    def reset(self, id: Hashable) -> None:
        """Record a success: the next failure starts at a delay of one round."""
        self._next.pop(id, None)
