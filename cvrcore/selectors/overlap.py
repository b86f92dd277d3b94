"""Rounds that overlap: selections in, reports in any order out; for asynchronous servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..selection import Selection
from ..validation import Mask

if TYPE_CHECKING:
    import threading


class Overlapping:
    """The part of `Selector` that keeps several rounds open."""

    #: Whether rounds may overlap: ``select(concurrent=True)``.
    asynchronous: ClassVar[bool] = True

    name: ClassVar[str]
    n_clients: int
    round: int
    _lock: threading.RLock
    _pending: Selection | None
    _open: dict[int, Selection]  # concurrent rounds by number
    _issued: int  # one more than the last number of a concurrent round

    @property
    def open_rounds(self) -> list[int]:
        """Return the numbers of the concurrent rounds that are still to be observed."""
        with self._lock:
            return sorted(self._open)

    def _idle(self) -> Mask:
        """Return the clients that train in no open round."""
        idle = np.ones(self.n_clients, dtype=bool)
        for selection in self._open.values():
            idle[selection.clients] = False
        return idle

    def _check_concurrent(self) -> None:
        if not self.asynchronous:
            raise ValueError(
                f"concurrent must be False with {self.name}: it compares the clients of one "
                "round with each other, and cannot learn from rounds that overlap"
            )

    def _opened(self, selection: Selection) -> Selection:
        """Return a selection with a number of its own."""
        pending = -1 if self._pending is None else self._pending.round
        return selection.changed(round=max(self.round, self._issued, pending + 1))

    def _keep_open(self, selection: Selection) -> None:
        self._open[selection.round] = selection
        self._issued = selection.round + 1

    def _round_of(self, number: int | None) -> Selection:
        """Return the open round of a number; without one, the pending round."""
        pending = self._pending
        if number is None:
            if pending is not None:
                return pending
            if self._open:
                raise ValueError(
                    f"round must be given while rounds overlap: one of {sorted(self._open)[:8]}"
                )
            raise ValueError("observe must follow select: no round is pending")
        if number in self._open:
            return self._open[number]
        if pending is not None and number == pending.round:
            return pending
        raise ValueError(f"round must be of a selection that is open, got {number!r}")

    def _close(self, selection: Selection) -> None:
        if selection is self._pending:
            self._pending = None
        else:
            del self._open[selection.round]

    def _grow_open(self, n_added: int) -> None:
        """Pad the open rounds: clients that joined had no chance in them."""
        for number, selection in self._open.items():
            wider = {}
            for name in ("scores", "probabilities", "inclusion", "expected"):
                values = getattr(selection, name)
                if values is not None:
                    fill = np.nan if name == "scores" else 0.0
                    wider[name] = np.concatenate([values, np.full(n_added, fill)])
            self._open[number] = selection.changed(**wider)
