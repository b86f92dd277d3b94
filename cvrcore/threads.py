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
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


_FEW: Final = 16  # chunks; the time of one that has many neighbours is nothing beside theirs
_UPKEEP: Final = "cvrcore-upkeep"  # the crew of work that runs chunks itself


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
def _crew(size: int, pid: int, name: str = "cvrcore") -> ThreadPoolExecutor:
    # Keyed by process: threads do not survive a fork. Imported here: it brings logging along.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(size, thread_name_prefix=name)


class _Occupied:
    """Counts threads that are at work, so that no more are woken up than there are cores."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as a process that was forked must: no other thread came along."""
        self._lock = threading.Lock()
        self._local = threading.local()
        self._count = 0

    def __enter__(self) -> None:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if not depth:
            with self._lock:
                self._count += 1

    def __exit__(self, *error: object) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            with self._lock:
                self._count -= 1

    def promise(self) -> None:
        """Count a thread that will be at work soon."""
        with self._lock:
            self._count += 1

    def redeem(self) -> None:
        """Count it no more: it counts itself by now."""
        with self._lock:
            self._count -= 1

    def others(self) -> int:
        """Return how many threads are at work besides the calling one."""
        return self._count - (getattr(self._local, "depth", 0) > 0)


occupied = _Occupied()


class Chunks:
    """Work over fixed chunks of a range, begun by the crew and ended by `finish`.

    Parameters
    ----------
    work : callable
        ``work(start, stop)``; must release the GIL to gain, and write to its own rows only.
    length, chunk : int
    n_helpers : int
        Threads of the crew that take part.
    crew : str
        Its name. Work that runs chunks itself needs another crew than they do, which sees it
        through; helpers leave when there are more threads at work than cores.
    """

    def __init__(
        self,
        work: Callable[[int, int], object],
        length: int,
        chunk: int,
        n_helpers: int,
        crew: str = "cvrcore",
    ) -> None:
        self._work, self._length, self._chunk = work, length, chunk
        self._starts = iter(range(0, length, chunk))  # next() on it is atomic under the GIL
        self._error: BaseException | None = None
        pool = _crew(n_helpers, os.getpid(), crew) if n_helpers else None
        help_out = self._take if crew == _UPKEEP else self._help
        self._helpers = [pool.submit(help_out) for _ in range(n_helpers)] if pool else []

    def _take(self) -> None:
        with occupied:
            for start in self._starts:
                self._work(start, min(start + self._chunk, self._length))

    def _help(self) -> None:
        """Take chunks while there is a core for it."""
        most = n_threads()
        with occupied:
            while occupied.others() < most:
                start = next(self._starts, None)
                if start is None:
                    return
                self._work(start, min(start + self._chunk, self._length))

    def finish(self) -> None:
        """Do what nobody has begun, and wait for the rest; raise what went wrong.

        A crew that wakes up late delays nothing. Work that was cut off stays so: there is no
        telling what was written.
        """
        if self._error is not None:
            raise RuntimeError(
                "earlier work was cut off in the middle: load the last saved state"
            ) from self._error
        try:
            self._take()
        except BaseException as error:
            self._error = error
        # Nobody may write after this call has returned, however it does.
        for helper in self._helpers:
            if not helper.cancel():
                self._error = helper.exception() or self._error
        if self._error is not None:
            raise self._error


def run_chunks(work: Callable[[int, int], object], length: int, chunk: int) -> None:
    """Call ``work(start, stop)`` over fixed chunks of ``range(length)``; see `Chunks`.

    The calling thread takes chunks too.
    """
    if length <= chunk:
        work(0, length)
        return
    n_helpers = min(n_threads() - 1 - occupied.others(), -(-length // chunk) - 1)
    Chunks(work, length, chunk, max(n_helpers, 0)).finish()


def run_spans(work: Callable[[int, int], object], length: int, chunk: int) -> None:
    """Call ``work(start, stop)`` over spans of one or more whole chunks; see `run_chunks`.

    What begins anew with each chunk is for `work` to see to. Few chunks are shared out in as
    many spans as there are threads free: between short calls threads wait for the GIL, up to
    5 ms, if others have short calls too.
    """
    if length <= chunk:
        work(0, length)
        return
    n_chunks = -(-length // chunk)
    n_free = max(n_threads() - occupied.others(), 1)
    n_spans = n_chunks if n_chunks > _FEW else min(n_free, n_chunks)
    run_chunks(work, length, chunk * -(-n_chunks // n_spans) if n_free > 1 else length)


_begun: weakref.WeakSet[Chunks] = weakref.WeakSet()


def begin_chunks(work: Callable[[int, int], object], length: int, chunk: int) -> Chunks:
    """Let the crew begin such work while the caller goes on, and `finish` it later.

    A fork waits for it: threads do not survive one, and half of the work would.
    """
    begun = Chunks(work, length, chunk, n_threads() - 1)
    _begun.add(begun)
    return begun


def begin(work: Callable[[], object]) -> Chunks:
    """Let a thread begin `work`, all of it, while the caller goes on, and `finish` it later.

    The work may run chunks itself. With a single thread it is `finish` that does it.
    """
    n_helpers = min(n_threads() - 1, 1)
    if n_helpers:
        occupied.promise()  # before the thread wakes up: meanwhile nobody else is woken up

    def redeem(start: int, stop: int) -> None:
        if n_helpers:
            occupied.redeem()
        work()

    begun = Chunks(redeem, 1, 1, n_helpers, _UPKEEP)
    _begun.add(begun)
    return begun


def _finish_begun() -> None:
    for begun in list(_begun):
        with contextlib.suppress(Exception):  # whoever began it will be told
            begun.finish()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_begun, after_in_child=occupied.forget)
