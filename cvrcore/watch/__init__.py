"""Records of rounds in, a live page on this machine out; needs the extra ``watch``.

`Board` keeps what the page shows, `WatchServer` serves it from a thread, and `WatchTracker` joins
both to a run. ``cvrcore watch RUN`` fills a board from the folder of a run instead.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .board import Board
    from .server import WatchServer
    from .tracker import WatchTracker

__all__ = ["Board", "WatchServer", "WatchTracker"]

#: Imported when asked for: a board needs no web server.
_HOMES = {"Board": "board", "WatchServer": "server", "WatchTracker": "tracker"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
