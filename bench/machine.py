"""Measurements of the host: seconds, resident memory, bandwidth and product rates."""

import concurrent.futures
import functools
import resource
import sys
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits


def best_time(work, repeats=3):
    """Return the least of several times, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def mean_time(work, repeats=3):
    """Return the mean of several times, in seconds."""
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - began) / repeats


def mean_and_best(work, repeats=3):
    """Return the mean and the least of several times, in seconds, as an array."""
    times = [mean_time(work, 1) for _ in range(repeats)]
    return np.array([np.mean(times), min(times)])


def peak_memory():
    """Return the largest resident set of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory_now():
    """Return the resident set of this process; its peak where only that is known."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory()
    return pages * resource.getpagesize()


def _on_threads(n_threads, work, length):
    """Return a function that calls ``work(start, stop)`` on equal parts, one for each thread."""
    edges = np.linspace(0, length, n_threads + 1).astype(int)
    if n_threads == 1:
        return lambda: work(0, length)
    pool = concurrent.futures.ThreadPoolExecutor(n_threads)
    return lambda: list(pool.map(work, edges[:-1], edges[1:]))


@functools.cache
def _touched(n_bytes):
    """Return two cached arrays: freeing them would slow down the next measurement."""
    return np.ones(n_bytes // 4, dtype=np.float32), np.ones(n_bytes // 4, dtype=np.float32)


def copy_bandwidth(n_threads, n_bytes=256_000_000, repeats=5, timed=best_time):
    """Return bytes a second of ``a <- b``, reads plus writes, as STREAM counts."""
    source, target = _touched(n_bytes)
    copy = _on_threads(n_threads, lambda i, j: np.copyto(target[i:j], source[i:j]), source.size)
    return 2 * n_bytes / timed(copy, repeats)


def read_bandwidth(n_threads, n_bytes=256_000_000, repeats=5, timed=best_time):
    """Return bytes a second of a maximum over an array, NumPy's fastest pass."""
    source, _ = _touched(n_bytes)
    read = _on_threads(n_threads, lambda i, j: source[i:j].max(), source.size)
    return n_bytes / timed(read, repeats)


def product_rate(dtype, n_threads, size=2000, repeats=3):
    """Return floating-point operations a second of a square product in BLAS."""
    left = np.ones((size, size), dtype=dtype)
    out = np.empty_like(left)
    with threadpool_limits(n_threads, "blas"):
        left @ left
        return 2 * size**3 / best_time(lambda: np.matmul(left, left, out=out), repeats)


def product_time(left, right, n_threads=2, repeats=3):
    """Return seconds of one product into memory that was touched before."""
    out = np.ones((left.shape[0], right.shape[1]), dtype=left.dtype)
    with threadpool_limits(n_threads, "blas"):
        np.matmul(left, right, out=out)
        return mean_time(lambda: np.matmul(left, right, out=out), repeats)


def touch(n_bytes):
    """Touch memory and free it."""
    np.ones(int(n_bytes) // 8)
