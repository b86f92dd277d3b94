"""A Flower grid with bounded waiting: messages in, the replies that came in time out.

`GridView` and `sampling` make a wrapped strategy write to the selected nodes only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..options import Waiting
from ..untrusted import brief

#: Seconds that an exchange waits at most, where `Waiting` does not say.
TIMEOUT = 3600.0
#: Seconds between two polls for replies: at first, and at most.
POLL, MAX_POLL = 0.02, 1.0
#: Polls of a `GridView` after which a wrapped strategy is waiting for nodes that cannot come.
MAX_VIEWS = 10


def exchange(
    grid: Any, messages: Iterable[Any], waiting: Waiting, seconds: dict[int, float] | None = None
) -> list[Any]:
    """Send messages and return the replies that came in time, in the order they came.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    waiting : Waiting
    seconds : dict, optional
        Filled with the seconds that each reply took, by node id.
    """
    began = time.monotonic()
    end = began + (TIMEOUT if waiting.timeout is None else waiting.timeout)
    asked = {str(id) for id in grid.push_messages(list(messages)) if id is not None}
    missing, replies, pause = set(asked), [], POLL
    while missing:
        received = list(grid.pull_messages(missing))
        now = time.monotonic()
        for reply in received:
            missing.discard(reply.metadata.reply_to_message_id)
            if seconds is not None:
                seconds.setdefault(reply.metadata.src_node_id, max(now - began, 1e-9))
        replies += received
        if len(asked) - len(missing) >= waiting.enough * len(asked):
            end = min(end, now + waiting.grace)
        if not missing or now >= end:
            break
        pause = POLL if received else min(1.5 * pause, MAX_POLL)
        time.sleep(min(pause, end - now))
    return replies


def error_text(reply: Any) -> str:
    """Return the reason of an error reply in one line."""
    return brief(reply.error.reason)


def write_log(text: str) -> None:
    """Write a line into Flower's own log."""
    logging.getLogger("flwr.cvrcore").info("%s", text)


class TimedGrid:
    """A grid whose `send_and_receive` obeys `Waiting` and measures how long replies take.

    Attributes
    ----------
    seconds : dict
        How long each reply of the last exchange took, by node id.
    """

    def __init__(self, grid: Any, waiting: Waiting) -> None:
        self._grid = grid
        self._waiting = waiting
        self.seconds: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """Send messages and return the replies that came in time."""
        self.seconds = {}
        return exchange(self._grid, messages, self._waiting.at_most(timeout), self.seconds)


class GridView:
    """A grid that shows only `nodes`, for a wrapped strategy to sample from.

    Flower's strategies wait without a limit for a minimum number of nodes. The nodes of a
    view do not change: a strategy that polls them again and again gets an error.
    """

    def __init__(self, grid: Any, nodes: Sequence[int]) -> None:
        self._grid = grid
        self._nodes = list(nodes)
        self._n_views = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the view."""
        self._n_views += 1
        if self._n_views > MAX_VIEWS:
            raise TimeoutError(f"the strategy waits for more than the {len(self._nodes)} nodes")
        return list(self._nodes)

    def get_nodes(self) -> list[Any]:
        """Return Flower's information on the nodes of the view."""
        wanted = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in wanted]


@contextlib.contextmanager
def sampling(strategy: Any, n_nodes: int, **settings: float) -> Iterator[None]:
    """Change how a strategy samples nodes, for one call.

    Strategies keep their sampling settings in public attributes, and wrappers such as
    differential privacy keep the wrapped strategy in ``strategy``.

    Parameters
    ----------
    strategy : Strategy
    n_nodes : int
        Upper bound of every minimum number of nodes that the strategy waits for.
    **settings
        Other attributes to set, such as ``fraction_train``.
    """
    saved: list[tuple[Any, str, Any]] = []
    layer = strategy
    while layer is not None:
        for name, value in vars(layer).items():
            if name in settings or (name.startswith("min_") and name.endswith("_nodes")):
                saved.append((layer, name, value))
        layer = vars(layer).get("strategy")
    try:
        for owner, name, value in saved:
            setattr(owner, name, settings.get(name, min(value, n_nodes) if value else value))
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
