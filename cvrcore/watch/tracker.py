"""Rounds of a run in this process in, its live page out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from ..tracking.base import Summary, Tracker
from ..tracking.records import Facts, RoundRecord
from .board import Board
from .server import WatchServer

logger = logging.getLogger(__name__)


class WatchTracker(Tracker):
    """Shows a run while it runs; the page ends with the run.

    Parameters
    ----------
    log : callable, optional
        Gets one line with the address. Default: `logging` at level INFO.
    port : int
        Port of 127.0.0.1; 0 takes a free one.
    """

    name = "watch"
    map_every = 2

    def __init__(self, log: Callable[[str], None] | None = None, port: int = 0) -> None:
        self._log = log or (lambda text: logger.info("%s", text))
        self._port = port
        self.board = Board()
        self.server: WatchServer | None = None

    @property
    def url(self) -> str | None:
        """The address of the page while it is served."""
        return None if self.server is None else self.server.url

    def start(self, facts: Facts) -> None:
        """Serve the page, and log its address."""
        self.board.begin(facts)
        for record in facts.earlier:
            self.board.put(record)
        self.board.status("running")
        self.server = WatchServer(self.board, self._port)
        self._log(f"watch this run: {self.server.url}")

    def round(self, record: RoundRecord) -> None:
        """Show one round."""
        self.board.put(record)

    def finish(self, summary: Summary) -> None:
        """Show that the run has ended, and stop serving within seconds."""
        try:
            plain = json.loads(json.dumps(dict(summary), default=str))
            self.board.status("finished", summary=plain)
        finally:
            if self.server is not None:
                self.server.stop()
                self.server = None
