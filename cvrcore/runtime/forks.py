"""Forks: a process that forks in; a child whose locks and threads are its own out.

Importing this module registers what happens at a fork. `threads` says what is renewed.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from . import threads

_PATIENCE: Final = 5.0  # seconds that a fork waits for other threads to leave BLAS
_held = threading.local()  # whether the thread that forks holds the lock of the limit


def _before_fork() -> None:
    """Wait until no other thread is inside BLAS: its locks would stay taken in the child."""
    _held.lock, own, deadline = None, threading.get_ident(), time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        lock = threads.limit.lock
        if lock.acquire(timeout=_PATIENCE):
            if all(block.thread == own for block in threads.limit.blocks):
                _held.lock = lock
                return
            lock.release()
        time.sleep(1e-4)


def _after_fork() -> None:
    """Let other threads of the parent process enter BLAS again."""
    lock, _held.lock = getattr(_held, "lock", None), None
    if lock is not None:
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=threads.renew
    )
