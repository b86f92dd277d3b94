"""Threads: one BLAS thread inside our calls, and a thread pool over fixed chunks of a range.

At K = 100 a second BLAS thread costs more than it saves; at K = 1000 chunks of rows on our
own thread pool beat the pool of the library. Chunks do not depend on the number of threads,
so the number of threads changes no bit of a result. Every call returns after all its chunks
have ended: no work goes on in the background.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


def n_threads() -> int:
    """Return how many threads we use: ``CVRCORE_NUM_THREADS``, or the usable cores."""
    value = os.environ.get("CVRCORE_NUM_THREADS", "")
    if not value:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"CVRCORE_NUM_THREADS must be a positive integer, got {value!r}")
    return int(value)


@functools.cache
def _blas_pools(scipy_loaded: bool) -> list[Any]:
    # SciPy brings its own BLAS library: look again after SciPy has been loaded.
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class BlasLimit:
    """The pools that blocks of `single_blas_thread` limit, and the blocks that run now."""

    def __init__(self) -> None:
        self.before: list[tuple[Any, int]] = []  # limited pools and their sizes before
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked process, where only the thread that forked goes on."""
        self.lock = threading.Lock()
        # Weak: a block that a signal ended while it was entered or left vanishes with its object.
        self.blocks: weakref.WeakSet[_SingleThread] = weakref.WeakSet()


limit = BlasLimit()


class _SingleThread:
    """One block: the first to be entered limits BLAS, the last to be left restores it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def __enter__(self) -> None:
        with limit.lock:
            limit.blocks.add(self)
            pools = _blas_pools("scipy.linalg" in sys.modules)
            if len(pools) == len(limit.before):
                return
            known = [pool for pool, _ in limit.before]
            for pool in pools:
                if pool not in known:
                    limit.before.append((pool, pool.get_num_threads()))
                    pool.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with limit.lock:
            limit.blocks.discard(self)
            while limit.before and not len(limit.blocks):
                pool, count = limit.before[-1]
                pool.set_num_threads(count)
                limit.before.pop()


def single_blas_thread() -> contextlib.AbstractContextManager[None]:
    """Limit BLAS to one thread inside the block, for the whole process.

    Libraries are looked up once: a fresh ``threadpool_limits`` costs a millisecond.
    """
    return _SingleThread()


class _Helpers:
    """The thread pool of a process: threads that wait, and the queue of what they are to do.

    Not an executor of `concurrent.futures`: an exception that a signal raises inside its `submit`
    can leave a lock taken, and the next caller waits for ever. Putting into this queue, and
    starting threads and noting them, are single calls of C code, which no signal divides.
    """

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[int] = []
        self._lock = threading.RLock()

    def grow(self, size: int) -> int:
        """Start threads until there are `size`; return how many there are.

        They are fewer where the system starts no more.
        """
        if len(self._threads) < size:
            try:
                with self._lock:
                    missing = max(size - len(self._threads), 0)
                    targets = itertools.repeat(self._serve, missing)
                    starts = map(_thread.start_new_thread, targets, itertools.repeat(()))
                    self._threads.extend(starts)  # up to one that fails
            except RuntimeError as error:
                if "new thread" not in str(error):  # not of the system: a signal's
                    raise
        return len(self._threads)

    def _serve(self) -> None:
        threading.current_thread().name = "cvrcore"
        while True:
            self.tasks.get()()


_helpers = _Helpers()


def run_chunks(work: Callable[[int, int], object], length: int, chunk: int) -> None:
    """Call ``work(start, stop)`` over fixed chunks of ``range(length)``, on all our threads.

    The calling thread takes chunks too, and does everything if the pool wakes up late.

    Parameters
    ----------
    work : callable
        It must release the GIL to gain, and write to its own rows only.
    length, chunk : int
    """
    most = n_threads() - 1
    n_helpers = min(most, -(-length // chunk) - 1)
    if n_helpers < 1:
        for start in range(0, max(length, 1), chunk):
            work(start, min(start + chunk, length))
        return
    starts = iter(range(0, length, chunk))  # next() on it is atomic under the GIL
    running: list[None] = []  # one entry for each helper that may still take a chunk
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the caller
    errors: list[BaseException] = []

    def take() -> None:
        for start in starts:
            work(start, min(start + chunk, length))

    def help() -> None:
        running.append(None)
        try:
            take()
        except BaseException as raised:
            errors.append(raised)
        finally:
            running.pop()
            ended.put(None)

    try:
        helpers = _helpers
        for _ in range(min(n_helpers, helpers.grow(most))):
            helpers.tasks.put(help)
        take()
    except BaseException as raised:
        errors.append(raised)
    # No thread may write after this call has returned, however it returns: a signal can come
    # at any moment.
    while True:
        try:
            for _ in starts:  # a helper that starts from now on finds nothing to do
                pass
            while running:
                with contextlib.suppress(queue.Empty):
                    ended.get(timeout=0.01)
            break
        except BaseException as raised:
            errors.append(raised)
    if errors:
        raise errors[0]


class Lockable(Protocol):
    """An object with a re-entrant lock of its own."""

    _lock: Any

    def _settle(self) -> bool:
        """Undo what an interrupted call left behind."""


S = TypeVar("S", bound=Lockable)
P = ParamSpec("P")
R = TypeVar("R")


def serialised(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread at a time run the serialised methods of an object."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with own_lock(self):
            self._settle()
            return method(self, *args, **kwargs)

    return locked


# -- forks ------------------------------------------------------------------------

_process = 0  # forks between the first process and this one
_renewal = threading.Lock()


def own_lock(holder: Any) -> Any:
    """Return the lock of an object, a new one in the first call after a fork.

    A thread of the parent process may have held the old one, and is not there to release it.
    """
    if _process and holder.__dict__.get("_process", 0) != _process:
        with _renewal:
            if holder.__dict__.get("_process", 0) != _process:
                if "_lock" in holder.__dict__:
                    holder._lock = threading.RLock()
                holder._after_fork()
                holder._process = _process
    return holder._lock


def renew() -> None:
    """Renew, in a forked process, what a thread of its parent may have held, or was."""
    global _process, _renewal, _helpers
    _process += 1
    _helpers = _Helpers()
    _renewal = threading.Lock()
    limit.renew()
