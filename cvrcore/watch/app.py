"""A board in, an ASGI app out: one page, one stream of server-sent events, nothing else.

The app serves this machine alone. Its address holds a random token, compared in constant time.
Requests with another ``Host`` are refused, so that a foreign web site cannot reach the page by
DNS rebinding. The page loads nothing: script and style are in it, and a Content-Security-Policy
forbids all others.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any, Final

from ..integrations.extras import require
from .board import Board

require("starlette", "0.40", "watch")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

HOST: Final = "127.0.0.1"
MAX_STREAMS: Final = 16  # browsers at the same time
POLL: Final = 0.2  # seconds between two looks at the board
HEARTBEAT: Final = 10.0  # seconds of silence after which a comment is sent

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WatchApp:
    """The ASGI app of a board.

    Parameters
    ----------
    board : Board
    port : int
        The port that it is served at: a request must name it.
    token : str
        Part of the address.
    """

    def __init__(self, board: Board, port: int, token: str) -> None:
        self._board, self._token = board, token.encode()
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self._streams = 0
        self._stopping = threading.Event()
        page = resources.files(__package__).joinpath("page.template").read_text(encoding="utf-8")
        self._page = page
        routes = [
            Route("/{token}/", self._show, methods=["GET"]),
            Route("/{token}/events", self._events, methods=["GET"]),
        ]
        self._app = Starlette(routes=routes)

    def stop(self) -> None:
        """End all streams within `POLL` seconds."""
        self._stopping.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse requests that name another host, then answer."""
        if scope["type"] == "http":
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self._hosts:
                answer = PlainTextResponse("unknown host", 421, headers=_HEADERS)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed(self, request: Request) -> bool:
        given = request.path_params["token"].encode("utf-8", "surrogateescape")
        return secrets.compare_digest(given, self._token)

    async def _show(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return PlainTextResponse("not found", 404, headers=_HEADERS)
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        headers = {**_HEADERS, "Content-Security-Policy": policy}
        text = self._page.replace("__NONCE__", nonce)
        return Response(text, media_type="text/html", headers=headers)

    async def _events(self, request: Request) -> Response:
        if not self._is_allowed(request):
            return PlainTextResponse("not found", 404, headers=_HEADERS)
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse("too many pages are open", 503, headers=_HEADERS)
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self) -> AsyncIterator[str]:
        self._streams += 1
        seen, sent = 0, time.monotonic()
        try:
            while True:
                stopping = self._stopping.is_set()  # before the last look: nothing is lost
                events, seen = self._board.news(seen)
                for name, text in events:
                    yield f"event: {name}\ndata: {text}\n\n"
                now = time.monotonic()
                if events:
                    sent = now
                elif now - sent > HEARTBEAT:
                    sent = now
                    yield ": still here\n\n"
                if stopping:
                    yield "event: bye\ndata: {}\n\n"
                    return
                await asyncio.sleep(POLL)
        finally:
            self._streams -= 1
