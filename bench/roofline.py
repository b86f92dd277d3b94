"""The roofline of the host, and the fraction of it that each kernel reaches.

A kernel that moves b bytes and does f operations needs at least max(b / bandwidth, f / peak)
seconds; its fraction is that bound divided by its time, with the same number of threads.
Operations count in the kernel's precision, float32 or float64.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from bench.machine import best_time, copy_bandwidth, product_rate, read_bandwidth
from bench.rows import Found, Row, part_main
from cvrcore.clustering import lloyd
from cvrcore.clustering.operators import NormalisedAffinity
from cvrcore.clustering.partitions import Effort, cluster_points
from cvrcore.covariance.packed import DEFERRED, LANES, PackedCovariance
from cvrcore.kernels import dispatch
from cvrcore.runtime.threads import n_threads, run_chunks

PART = "roofline"


class Roofline:
    """Bandwidth and peak of one thread and of two, measured once."""

    def __init__(self, short):
        size, n_bytes = (1000, 64_000_000) if short else (2000, 256_000_000)
        self.threads = tuple(sorted({1, n_threads()}))
        self.copy = {n: copy_bandwidth(n, n_bytes) for n in self.threads}
        self.read = {n: read_bandwidth(n, n_bytes) for n in self.threads}
        self.peak = {
            (kind, n): product_rate(kind, n, size)
            for kind in ("float32", "float64")
            for n in self.threads
        }

    def rows(self):
        for n in self.threads:
            word = f"{n} thread{'s' if n > 1 else ''}"
            yield Row(PART, f"copy, {word}", self.copy[n] / 1e9, "GB/s", ">=")
            yield Row(PART, f"read, {word}", self.read[n] / 1e9, "GB/s", ">=")
            for kind in ("float32", "float64"):
                rate = self.peak[kind, n] / 1e9
                yield Row(PART, f"product in {kind}, {word}", rate, "GFLOP/s", ">=")

    def fraction(self, name, seconds, n_bytes, operations, kind, n_used):
        """Return a row: the bound divided by the time, and the name of the bound."""
        memory, compute = n_bytes / self.copy[n_used], operations / self.peak[kind, n_used]
        bound = max(memory, compute)
        which = "bandwidth" if memory >= compute else f"{kind} product"
        note = f"{1e3 * seconds:.3g} ms, bound by {which}"
        return Row(PART, f"fraction: {name}", bound / seconds, "", ">=", note=note)


def parallel(work, length, chunk):
    return lambda: run_chunks(work, length, chunk)


def covariance_kernels(roof, rng, n, most):
    """fold_block and add_products, as the store calls them."""
    stored, width = DEFERRED, 8 * LANES
    covariance = PackedCovariance(n, width, np.float64, 1.0)
    covariance.recent[:] = rng.standard_normal((stored, n, width))

    def fold(start, stop):
        for block in range(start, stop):
            packed = covariance._packed(covariance.recent, 0, stored, block)
            dispatch.fold_block(covariance.base, packed, stored, block)

    pairs = n * (n + 1) / 2 * width
    seconds = best_time(parallel(fold, width // LANES, 1))
    yield roof.fraction("fold_block", seconds, 16 * pairs, 2 * pairs * stored, "float64", most)

    n_many, kept, width = 5 * n, 32, 300
    history = rng.standard_normal((kept, n_many, width), dtype=np.float32)
    clients = np.arange(n_many)
    others = np.sort(rng.integers(n_many, size=50))[clients * 50 // n_many]
    begin, chunk = np.zeros(n_many, dtype=np.int64), 436

    def add(start, stop):
        # Entries of one task, not of all clients: they stay in cache, as in the estimator.
        entries, part = np.zeros((stop - start, width), np.float32), slice(start, stop)
        dispatch.add_products(
            history, kept, clients[part], others[part], begin[part], entries, begin[:0]
        )

    area = n_many * kept * width
    seconds = best_time(parallel(add, n_many, chunk))
    yield roof.fraction("add_products", seconds, 4 * area, 2 * area, "float32", most)


def score_kernels(roof, rng, n, most):
    width, chunk = 300, 436
    history = rng.standard_normal((1, n, width), dtype=np.float32)
    moment, diagonal = np.ones((2, n, width), dtype=np.float32)
    projection, floor = np.ones(width, dtype=np.float32), np.zeros(width, dtype=np.float32)
    scores = np.empty(n)

    def advance(start, stop):
        dispatch.advance_moments(
            moment, diagonal, history, 0, projection, 0.9, 0.1, floor, start, stop, scores
        )

    seconds = best_time(parallel(advance, n, chunk))
    # Bytes: the residual is read, both moments are read and written. Operations: eight and a
    # division for each entry.
    area = n * width
    yield roof.fraction("advance_moments", seconds, 20 * area, 9 * area, "float32", most)


def clustering_kernels(roof, rng, n, most):
    n_points, n_clusters = min(n, 1000), 50
    points = rng.standard_normal((n_points, n_clusters - 1), dtype=np.float32)
    labels = cluster_points(points, n_clusters, rng, Effort(2))
    seconds = best_time(
        lambda: cluster_points(points, n_clusters, rng, Effort(0), labels), repeats=9
    )
    # One pass of distances, the least work with which k-means can confirm a partition.
    least = 3 * n_points * n_clusters * (n_clusters - 1)
    yield roof.fraction("kmeans, one pass counted", seconds, points.nbytes, least, "float32", 1)

    n_many, n_centres = 20 * n, 100
    products = rng.standard_normal((n_many, n_centres), dtype=np.float32)
    halves, found = np.ones(n_centres, dtype=np.float32), np.zeros(n_many, dtype=np.int64)
    closeness = np.empty(n_many, dtype=np.float32)

    def nearest(start, stop):
        part = slice(start, stop)
        dispatch.nearest_centres(products[part], halves, found[part], closeness[part])

    seconds = best_time(parallel(nearest, n_many, 4096))
    moved = products.nbytes + 12 * n_many
    yield roof.fraction("nearest_centres", seconds, moved, 2 * products.size, "float32", most)

    points = rng.standard_normal((n_many, n_centres), dtype=np.float32)
    centres = rng.standard_normal((n_centres, n_centres))
    seconds = best_time(lambda: lloyd._assign(points, centres, found, closeness))
    operations = 2 * n_many * n_centres**2
    yield roof.fraction("pass of k-means", seconds, points.nbytes, operations, "float32", most)


def spectral_kernels(roof, rng, n, most):
    few, width, degree = 100, 16, 8
    matrix = rng.standard_normal((few, few), dtype=np.float32)
    block = rng.standard_normal((few, width), dtype=np.float32)
    out, image = np.empty_like(block), np.empty_like(block)

    def chebyshev():
        dispatch.filter_block(matrix, block, 0.5, 1.0, degree, out, image)

    seconds = best_time(chebyshev, repeats=99)
    operations = (degree + 1) * 2 * few * few * width
    yield roof.fraction("filter_block, K=100", seconds, 0, operations, "float32", 1)

    n_large = 4 * n
    affinity = rng.random((n_large, n_large), dtype=np.float32)
    inverse, lead = np.ones(n_large), np.zeros(n_large)
    matrix = np.ones_like(affinity)

    def normalise(start, stop):
        dispatch.normalise_rows(affinity, inverse, lead, start, stop, matrix)

    seconds = best_time(parallel(normalise, n_large, 256))
    area = n_large**2
    yield roof.fraction("normalise_rows", seconds, 8 * area, 4 * area, "float64", most)

    operator = NormalisedAffinity(affinity, np.float32)
    block = rng.standard_normal((n_large, 64), dtype=np.float32)
    with threadpool_limits(1, "blas"):
        seconds = best_time(lambda: operator.apply(block))
    yield roof.fraction("chunked product", seconds, 4 * area, 128 * area, "float32", most)


def measure(short=False):
    roof, rng = Roofline(short), np.random.default_rng(0)
    rows, most, n = list(roof.rows()), roof.threads[-1], 300 if short else 1000
    rows += covariance_kernels(roof, rng, n, most)
    rows += score_kernels(roof, rng, 40 * n, most)
    rows += clustering_kernels(roof, rng, n, most)
    rows += spectral_kernels(roof, rng, n, most)
    return Found(rows)


if __name__ == "__main__":
    part_main(measure, __doc__)
