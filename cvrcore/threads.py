"""Threads: one BLAS thread inside our calls, and a small crew over fixed chunks.

At K = 100 a second BLAS thread costs more than it saves; at K = 1000 chunks of rows on our
own threads beat the library's pool. Chunks do not depend on the number of threads, so
neither does a single bit of the result.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    # SciPy brings a BLAS of its own: look again once it is there.
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


class _SingleThread:
    """Counts who is inside; the first to enter limits BLAS, the last to leave restores it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[tuple[Any, int]] = []  # pools that are limited, and what they had

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
def _crew(size: int, pid: int) -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork. Imported here: it brings logging along.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(size, thread_name_prefix="cvrcore")


def run_chunks(work: Callable[[int, int], object], length: int, chunk: int) -> None:
    """Call ``work(start, stop)`` over fixed chunks of ``range(length)``.

    `work` must release the GIL to gain, and write to its own rows only. The calling thread
    takes chunks too: a crew that wakes up late delays nothing.
    """
    if length <= chunk:
        work(0, length)
        return
    size = min(n_threads(), -(-length // chunk))
    starts = iter(range(0, length, chunk))  # next() on it is atomic under the GIL

    def take() -> None:
        for start in starts:
            work(start, min(start + chunk, length))

    if size == 1:
        take()
        return
    others = [_crew(size - 1, os.getpid()).submit(take) for _ in range(size - 1)]
    try:
        take()
    finally:  # nobody may write after this call has returned, however it does
        for other in others:
            other.result()
