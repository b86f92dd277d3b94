"""One call at a time: verbs of a selector that several threads may use."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Lockable(Protocol):
    """Whatever has a re-entrant lock of its own."""

    _lock: threading.RLock


S = TypeVar("S", bound=Lockable)
P = ParamSpec("P")
R = TypeVar("R")


def serialised(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time run the serialised methods of an object."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked
