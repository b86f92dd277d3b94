"""Threads: one BLAS thread inside our calls, and a thread pool over fixed chunks of a range.

At K = 100 a second BLAS thread costs more than it saves; at K = 1000 chunks of rows on our
own thread pool beat the pool of the library. Chunks do not depend on the number of threads,
so the number of threads changes no bit of a result. Every call returns after all its chunks
have ended: no work goes on in the background.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


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


class _SingleThread:
    """Re-entrant limit: the first caller to enter limits BLAS, the last to leave restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, int]] = []  # limited pools and their sizes before

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            pools = _blas_pools("scipy.linalg" in sys.modules)
            if len(pools) == len(self._before):
                return
            known = [pool for pool, _ in self._before]
            for pool in pools:
                if pool not in known:
                    self._before.append((pool, pool.get_num_threads()))
                    pool.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            while self._before and not self._inside:
                pool, count = self._before.pop()
                pool.set_num_threads(count)


_single_thread = _SingleThread()


def single_blas_thread() -> contextlib.AbstractContextManager[None]:
    """Limit BLAS to one thread inside the block, for the whole process.

    Libraries are looked up once: a fresh ``threadpool_limits`` costs a millisecond.
    """
    return _single_thread


@functools.cache
def _pool(size: int, pid: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork. Imported here: it loads `logging`.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(size, thread_name_prefix="cvrcore")


def run_chunks(work: Callable[[int, int], object], length: int, chunk: int) -> None:
    """Call ``work(start, stop)`` over fixed chunks of ``range(length)``, on all our threads.

    The calling thread takes chunks too, and does everything if the pool wakes up late.

    Parameters
    ----------
    work : callable
        It must release the GIL to gain, and write to its own rows only.
    length, chunk : int
    """
    n_helpers = min(n_threads(), -(-length // chunk)) - 1
    if n_helpers < 1:
        for start in range(0, max(length, 1), chunk):
            work(start, min(start + chunk, length))
        return
    starts = iter(range(0, length, chunk))  # next() on it is atomic under the GIL

    def take() -> None:
        for start in starts:
            work(start, min(start + chunk, length))

    pool = _pool(n_helpers, os.getpid())
    helpers = [pool.submit(take) for _ in range(n_helpers)]
    error: BaseException | None = None
    try:
        take()
    except BaseException as raised:
        error = raised
    # No thread may write after this call has returned, however it returns.
    for helper in helpers:
        if not helper.cancel():
            error = helper.exception() or error
    if error is not None:
        raise error


class Lockable(Protocol):
    """An object with a re-entrant lock of its own."""

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
