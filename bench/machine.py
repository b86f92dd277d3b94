"""What the host can do: bandwidth and products, timed beside everything else."""

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
    """Return the resident set of this process, or its largest so far where none is told."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory()
    return pages * resource.getpagesize()


def _on_threads(n_threads, work, length):
    """Call ``work(start, stop)`` on equal shares, one a thread; NumPy releases the GIL."""
    edges = np.linspace(0, length, n_threads + 1).astype(int)
    if n_threads == 1:
        return lambda: work(0, length)
    pool = concurrent.futures.ThreadPoolExecutor(n_threads)
    return lambda: list(pool.map(work, edges[:-1], edges[1:]))


@functools.cache
def _touched(n_bytes):
    """Return two arrays, kept: what a host does with memory given back slows down who is next."""
    return np.ones(n_bytes // 4, dtype=np.float32), np.ones(n_bytes // 4, dtype=np.float32)


def copy_bandwidth(n_threads, n_bytes=256_000_000, repeats=5, timed=best_time):
    """Return bytes a second of ``a <- b``, read and written ones counted, as STREAM does."""
    source, target = _touched(n_bytes)
    copy = _on_threads(n_threads, lambda i, j: np.copyto(target[i:j], source[i:j]), source.size)
    return 2 * n_bytes / timed(copy, repeats)


def read_bandwidth(n_threads, n_bytes=256_000_000, repeats=5, timed=best_time):
    """Return bytes a second of a maximum over an array: of NumPy's passes the fastest."""
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
    """Return seconds of one product, its result already touched."""
    out = np.ones((left.shape[0], right.shape[1]), dtype=left.dtype)
    with threadpool_limits(n_threads, "blas"):
        np.matmul(left, right, out=out)
        return mean_time(lambda: np.matmul(left, right, out=out), repeats)


def touch(n_bytes):
    """Touch memory and give it back."""
    np.ones(int(n_bytes) // 8)
