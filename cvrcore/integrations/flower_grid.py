"""Bounded exchanges over a Flower grid, and views of a grid for a wrapped strategy."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._validation import check_number

#: Seconds between two looks for replies, at first and at most.
LOOK, REST = 0.02, 1.0
#: Looks at a view of the grid after which a wrapped strategy is waiting for what cannot come.
LOOKS = 10


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long an exchange waits, whoever and however many were asked.

    Attributes
    ----------
    timeout : float
        Seconds in all.
    enough : float in (0, 1]
        Share of the replies after which those missing are stragglers.
    grace : float
        Seconds that stragglers are still waited for.
    """

    timeout: float = 3600.0
    enough: float = 1.0
    grace: float = math.inf

    def __post_init__(self) -> None:
        check_number(self.timeout, "timeout", above=0)
        check_number(self.enough, "enough", above=0, maximum=1.0)
        if not self.grace >= 0:
            raise ValueError(f"grace must be at least 0 seconds, got {self.grace}")

    def within(self, timeout: float | None) -> Patience:
        """Return the same with another `timeout`; None keeps it: no wait is without end."""
        return self if timeout is None else dataclasses.replace(self, timeout=timeout)


def exchange(
    grid: Any, messages: Iterable[Any], patience: Patience, seconds: dict[int, float] | None = None
) -> list[Any]:
    """Send messages and return the replies that came in time, in the order they came.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    patience : Patience
    seconds : dict, optional
        Filled with the seconds that each reply took, by node id.
    """
    began = time.monotonic()
    end = began + patience.timeout
    asked = {str(id) for id in grid.push_messages(list(messages)) if id is not None}
    waiting, replies, pause = set(asked), [], LOOK
    while waiting:
        came = list(grid.pull_messages(waiting))
        now = time.monotonic()
        for reply in came:
            waiting.discard(reply.metadata.reply_to_message_id)
            if seconds is not None:
                seconds.setdefault(reply.metadata.src_node_id, max(now - began, 1e-9))
        replies += came
        if len(asked) - len(waiting) >= patience.enough * len(asked):
            end = min(end, now + patience.grace)
        if not waiting or now >= end:
            break
        pause = LOOK if came else min(1.5 * pause, REST)
        time.sleep(min(pause, end - now))
    return replies


def reason(reply: Any) -> str:
    """Return why a reply is an error, in one line: runtimes put whole tracebacks there."""
    text = " ".join(str(reply.error.reason).split())
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}"


class PatientGrid:
    """A grid whose `send_and_receive` is bounded, knows grace and times the replies."""

    def __init__(self, grid: Any, patience: Patience) -> None:
        self._grid = grid
        self._patience = patience
        self.seconds: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """Send messages and return the replies that came in time."""
        self.seconds = {}
        return exchange(self._grid, messages, self._patience.within(timeout), self.seconds)


class GridView:
    """A grid on which only `nodes` exist: what a wrapped strategy samples from.

    Flower's strategies wait without end for a minimum number of nodes. The nodes of a view
    do not change, so that asking again and again ends in an error instead.
    """

    def __init__(self, grid: Any, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)
        self._looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the view."""
        self._looks += 1
        if self._looks > LOOKS:
            raise TimeoutError(f"the strategy waits for more than the {len(self._nodes)} nodes")
        return list(self._nodes)

    def get_nodes(self) -> list[Any]:
        """Return what is known of the nodes of the view."""
        wanted = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in wanted]


@contextlib.contextmanager
def sampling(strategy: Any, n_nodes: int, **wanted: float) -> Iterator[None]:
    """Let a strategy sample as `wanted` and wait for no more than `n_nodes`, for one call.

    Strategies keep how they sample in public attributes, and wrappers such as differential
    privacy keep the wrapped one in ``strategy``.
    """
    before: list[tuple[Any, str, Any]] = []
    layer = strategy
    while layer is not None:
        for name, value in vars(layer).items():
            if name in wanted:
                before.append((layer, name, value))
            elif name.startswith("min_") and name.endswith("_nodes"):
                before.append((layer, name, value))
        layer = vars(layer).get("strategy")
    try:
        for owner, name, value in before:
            setattr(owner, name, wanted.get(name, min(value, n_nodes) if value else value))
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
