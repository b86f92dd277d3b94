"""When to ask again those that gave no answer: waiting for them every round holds up all."""

from __future__ import annotations

from collections.abc import Hashable


class Backoff:
    """Puts off what failed by 1, 2, 4, ... rounds.

    Examples
    --------
    >>> again = Backoff()
    >>> again.put_off("ann", now=0), again.due("ann", now=0), again.due("ann", now=1)
    (1, False, True)
    >>> again.put_off("ann", now=1), again.due("ann", now=2), again.due("ann", now=3)
    (2, False, True)
    >>> again.forget("ann")
    >>> again.due("ann", now=2)
    True
    """

    def __init__(self) -> None:
        self._waits: dict[Hashable, tuple[int, int]] = {}  # round to ask in, and the gap to it

    def due(self, id: Hashable, now: int) -> bool:
        """Return whether `id` may be asked in round `now`."""
        return self._waits.get(id, (now, 0))[0] <= now

    def put_off(self, id: Hashable, now: int) -> int:
        """Leave `id` alone for twice as many rounds as last time, and return how many."""
        gap = max(2 * self._waits.get(id, (0, 0))[1], 1)
        self._waits[id] = now + gap, gap
        return gap

    def forget(self, id: Hashable) -> None:
        """Begin anew: `id` has answered."""
        self._waits.pop(id, None)
