"""A board in, an address out: uvicorn in a thread, on 127.0.0.1, stopped in bounded time."""

from __future__ import annotations

import secrets
import socket
import threading
from typing import Any, Final, Self

from ..integrations.extras import require
from .app import HOST, WatchApp
from .board import Board

require("uvicorn", "0.30", "watch")

import uvicorn

SHUTDOWN: Final = 5.0  # seconds that `stop` waits at most


class WatchServer:
    """Serves the live page of a board; use it as a context manager.

    Parameters
    ----------
    board : Board
    port : int
        Port of 127.0.0.1; 0 takes a free one.

    Attributes
    ----------
    url : str
        Address of the page, with its token: any user of this machine who knows it can read it.
    """

    def __init__(self, board: Board, port: int = 0) -> None:
        self._socket = socket.create_server((HOST, port))
        number = self._socket.getsockname()[1]
        token = secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{number}/{token}/"
        self._app = WatchApp(board, number, token)
        config = uvicorn.Config(
            self._app,
            log_config=None,  # the access log would show the token
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="cvrcore-watch", daemon=True)
        self._thread.start()

    def stop(self, seconds: float = SHUTDOWN) -> bool:
        """End all streams and the thread; return whether it ended within `seconds`."""
        self._app.stop()
        self._server.should_exit = True
        self._thread.join(seconds)
        self._socket.close()
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])
