"""Time and memory from a thousand clients to a million, relative to the bare work on the host.

``python -m bench.bench_scale --case NAME`` runs one case; without a case all run in turn, each
in a separate process, so that peaks of memory are separate. Times of ours are means over
steady rounds. They alternate with the bare work, which runs on two threads in another
process: the speed of the host may drift.
"""

import concurrent.futures
import functools
import gc
import multiprocessing
import subprocess
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from bench.federations import Federation
from bench.machine import (
    copy_bandwidth,
    mean_and_best,
    mean_time,
    memory_now,
    peak_memory,
    product_time,
    read_bandwidth,
)
from bench.peers import DenseRound
from bench.rows import ROOT, Found, Row, part_main, run_part

PART = "scale"
#: Rounds that cluster nothing, over a stream of the bytes that they touch.
STREAM_MUST, STREAM_AIM = 2.5, 1.5


class Drive:
    """A selector and its federation, run round by round; inputs do not count as memory."""

    def __init__(self, kind, size, **options):
        n_clients, n_features, n_select = size
        self.federation = Federation(kind, n_clients, n_features, n_select)
        gc.collect()
        self.before = memory_now()  # not the peak: temporaries of the inputs are free again
        self.selector = self.federation.selector(n_select, **options)

    def timed(self):
        """Return seconds of a round, and of its select; drawing models is not timed."""
        began = time.perf_counter()
        picked = self.selector.select()
        select = time.perf_counter() - began
        models = self.federation.draw(picked.clients)
        began = time.perf_counter()
        self.selector.observe(picked.clients, models)
        return time.perf_counter() - began + select, select

    def round(self):
        """Return seconds of a round; drawing models is not timed."""
        return self.timed()[0]

    def rounds(self, count, recluster=None):
        """Return mean seconds of `count` rounds; `recluster` sets ``recluster_every``."""
        if recluster is not None:
            self.selector.recluster_every = recluster
        times = [self.timed()[0] for _ in range(count)]
        return sum(times) / count if count else 0.0

    def extra(self):
        """Return peak bytes without the inputs."""
        return peak_memory() - self.before

    def reserve(self, n_rounds):
        """Allocate the memory of future rounds: the peer allocates all of its own at the start.

        On virtual hosts the first touch of a page costs more than the round that touches it.
        """
        self.selector._estimator.store.reserve(n_rounds)

    def close(self):
        """Free the selector's memory before the next measurement."""
        del self.selector
        gc.collect()


class Beside:
    """A second process, for work whose memory must not count as ours."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=context)

    def __call__(self, work, *arguments):
        return self.pool.submit(work, *arguments).result(timeout=600)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.pool.shutdown()


# -- a thousand: against the dense peer ------------------------------------------------


@functools.lru_cache(maxsize=1)
def steady_peer(kind, size):
    """Return a round of the dense peer as a function, warmed up with one and two threads."""
    federation = Federation(kind, *size)
    peer = DenseRound(federation.initial.astype(np.float64), federation.weights, size[2])

    def one():
        picked = peer.select()
        peer.observe(federation.draw(picked))

    for threads in (1, 2):
        with threadpool_limits(threads):
            one()
    return one


def dense_peer(kind, size, n_rounds=1):
    """Return seconds of a steady round of the dense peer, with one thread and with two."""
    one, times = steady_peer(kind, size), []
    for threads in (1, 2):
        with threadpool_limits(threads):
            times.append(mean_time(one, n_rounds))
    return times


def thousand(kind, must, size=(1000, 300, 50), long=200, n_rounds=8, n_turns=(4, 8)):
    """K = 1,000 in float64 without a memory limit: the core's aims.

    `n_rounds` rounds in each turn; `n_turns` early and late turns.
    """
    early_turns, late_turns = n_turns
    n_done = long // 5 + early_turns * (1 + n_rounds)
    drive = Drive(kind, size, dtype="float64")
    drive.reserve(long + late_turns * (1 + n_rounds))  # up to the last timed round
    with Beside() as beside:
        beside(dense_peer, kind, size)

        def timed(n_turns):
            """Return seconds of ours, and of the peer with one thread or two, the faster."""
            turns = []
            for _ in range(n_turns):
                drive.rounds(1)  # not timed: the peer has replaced the contents of the caches
                ours = drive.rounds(n_rounds)
                turns.append((ours, *beside(dense_peer, kind, size)))
            ours, *theirs = np.mean(turns, axis=0)
            return ours, min(theirs)

        drive.rounds(long // 5)
        early, peer_early = timed(early_turns)
        drive.rounds(long - n_done)
        late, peer_late = timed(late_turns)
    name = f"K={size[0]:,}, {kind}"
    note = f"peer {1e3 * peer_early:.4g} and {1e3 * peer_late:.4g} ms"
    return Found(
        [
            Row(
                PART, f"{name}, t={long // 5}: dense peer / ours", peer_early / early, "x", ">=",
                must,
                note=note,
            ),
            Row(PART, f"{name}, t={long}: dense peer / ours", peer_late / late, "x", ">=", must),
            Row(PART, f"{name}, t={long}: round", 1e3 * late, "ms"),
            Row(
                PART, f"{name}, default plan: peak", drive.extra() / 1e9, "GB",
                note="memory for time",
            ),
        ]
    )  # fmt: skip


def thousand_small(size=(1000, 300, 50), long=200, n_timed=32, limit=8e8):
    """K = 1,000 in at most a third of the memory of a dense float64 C."""
    drive = Drive("planted", size, dtype="float64", memory_limit=limit)
    drive.rounds(long)
    late = drive.rounds(n_timed)
    extra = drive.extra()
    dense = 8.0 * size[1] * size[0] ** 2
    name = f"K={size[0]:,}, memory_limit={limit:.0e}"
    return Found(
        [
            Row(PART, f"{name}, t={long}: peak / dense C", extra / dense, "x", "<=", 1 / 3),
            Row(PART, f"{name}, t={long}: round", 1e3 * late, "ms"),
        ]
    )


# -- ten thousand: exact, against ten products -----------------------------------------


def ten_products(n_clients, n_select):
    """Return seconds of ten products (K x K)(K x P) in float32."""
    matrix = np.ones((n_clients, n_clients), dtype=np.float32)
    block = np.ones((n_clients, n_select), dtype=np.float32)
    return 10 * product_time(matrix, block)


def ten_thousand(kind, must, size=(10_000, 300, 100), long=200, n_timed=6, limit=5e9):
    """K = 10,000 exact in float32; most rounds that are not timed keep their coalitions."""
    n_clients, _, n_select = size
    drive = Drive(kind, size, clustering="exact", memory_limit=limit)
    drive.rounds(4, recluster=1)
    drive.rounds(long // 5 - 8, recluster=1 << 30)
    drive.rounds(4, recluster=1)
    with Beside() as beside:

        def timed():
            turns = [(drive.rounds(2), beside(ten_products, n_clients, n_select)) for _ in range(3)]
            return np.mean(turns, axis=0)

        early = timed()
        drive.rounds(long - long // 5 - n_timed - 4, recluster=1 << 30)
        drive.rounds(4, recluster=1)
        late = timed()
    extra, dropped = drive.extra(), drive.selector.dropped
    name = f"K={n_clients:,}, exact, {kind}"
    note = f"round {late[0]:.3g} s, ten products {late[1]:.3g} s, dropped {dropped:.3g}"
    return Found(
        [
            Row(
                PART, f"{name}, t={long // 5}: / ten products", early[0] / early[1], "x", "<=",
                must,
            ),
            Row(
                PART, f"{name}, t={long}: / ten products", late[0] / late[1], "x", "<=", must,
                note=note,
            ),
            Row(PART, f"{name}, t={long}: peak", extra / 1e9, "GB", "<=", limit / 1e9),
        ]
    )  # fmt: skip


# -- beyond: landmarks, against a product, a pass and the bytes touched ------------------


def bytes_touched(n_clients, n_features, n_residuals, itemsize=4):
    """Return bytes that a round without re-clustering must read, and must update in place.

    Reads, of K x D each: the stored residuals (of every client, for C_kj), rows and diagonal
    for the prediction, and the new residual again, since the moments need its sum over all
    clients first. Updates (read and written): `C alpha` and `diag C`. Written: the new
    residual, over one that was just read. Vectors of 8 bytes a client: scores, labels and
    pairs are read (5); scores, probabilities, representatives and pairs are written (5).
    Changed rows and rows of representatives are few and do not count.
    """
    area = n_clients * n_features * itemsize
    reads = (n_residuals + 3) * area + 5 * 8 * n_clients
    updates = 2 * (2 * area) + area + 5 * 8 * n_clients
    return reads, updates


def stream_time(reads, updates, n_threads=2):
    """Return seconds to stream these bytes, read or updated: mean and best of five.

    The arrays have up to a gigabyte: smaller ones may fit the cache of a server.
    """
    n_bytes = int(min(1_000_000_000, max(reads, 8_000_000)))
    reading, copying = (
        rate(n_threads, n_bytes, timed=mean_and_best) for rate in (read_bandwidth, copy_bandwidth)
    )
    return (reads / reading + updates / copying).tolist()


def lloyd_time(n_clients, n_select, repeats=3):
    """Return seconds of one pass of k-means: a BLAS product, then the nearest centre."""
    points = np.ones((n_clients, n_select), dtype=np.float32)
    centres = np.ones((n_select, n_select), dtype=np.float32)
    products = np.ones_like(points)

    def one():
        np.matmul(points, centres, out=products)
        products.argmax(axis=1)

    with threadpool_limits(2, "blas"):
        one()
        return mean_time(one, repeats)


def bare_clustering(n_clients, n_features, n_select, n_landmarks):
    """Return seconds of one (K x D)(D x m) product and one pass of k-means."""
    rows = np.ones((n_clients, n_features), dtype=np.float32)
    columns = np.ones((n_features, n_landmarks), dtype=np.float32)
    product = product_time(rows, columns)
    return product + lloyd_time(n_clients, n_select)


def landmarks(size, limit, clustering=None, other=None, n_landmarks=500, n_timed=4, fill=True):
    """Time re-clustering rounds and other rounds; `fill`: after the window is full.

    `clustering` and `other` are upper bounds of their ratios, or None.
    """
    n_clients, n_features, n_select = size
    options = {"clustering": "nystrom", "n_landmarks": n_landmarks, "memory_limit": limit}
    drive = Drive("planted", size, recluster_every=1 << 30, store="window", **options)
    window = drive.selector.plan().window
    drive.rounds(window + 1 if fill else 1)
    drive.reserve(2 * n_timed)
    log = drive.selector._estimator.store.log
    n_clustered = n_timed if fill else 1
    with Beside() as beside:
        others, streams = [], []
        for _ in range(n_timed):
            touched = bytes_touched(n_clients, n_features, log.count)
            others.append(drive.round())
            streams.append(beside(stream_time, *touched))
        drive.rounds(1 if fill else 0, recluster=1)  # the first one updates all stale rows
        wholes, selects, bares = [], [], []
        for _ in range(n_clustered):
            whole, select = drive.timed()
            wholes.append(whole)
            selects.append(select)
            bares.append(beside(bare_clustering, *size, n_landmarks))
    extra, dropped = drive.extra(), drive.selector.dropped
    name = f"K={n_clients:,}"
    whole, select, bare, mean = (float(np.mean(t)) for t in (wholes, selects, bares, others))
    stream, best = np.mean(streams, axis=0).tolist()
    note = f"round {whole:.3g} s, product and pass {bare:.3g} s"
    rows = [
        Row(
            PART, f"{name}: re-clustering round / product and pass", whole / bare, "x", "<=",
            clustering,
            note=note,
        ),
        Row(PART, f"{name}: its select alone / product and pass", select / bare, "x"),
        Row(
            PART, f"{name}: other rounds / stream", mean / stream, "x", "<=", other,
            aim=None if other is None else STREAM_AIM,
            note=f"round {mean:.3g} s, stream {stream:.3g} s, at best {best:.3g}, window "
            f"{window}, dropped {dropped:.3g}",
        ),
        Row(PART, f"{name}: peak", extra / 1e9, "GB", "<=", limit / 1e9),
    ]  # fmt: skip
    return Found(rows)


def million(size=(1_000_000, 100, 100), limit=8e9):
    """K = 1,000,000: five rounds, of which the first and the last cluster."""
    return landmarks(size, limit, other=STREAM_MUST, n_timed=3, fill=False)


#: Each case: a function, and the bytes that it and the bare work touch.
CASES = {
    "short": (lambda: landmarks((20_000, 100, 50), 4e8, n_timed=3), 1e9),
    "1k-planted": (lambda: thousand("planted", 50), 6e9),
    "1k-flat": (lambda: thousand("flat", 30), 6e9),
    "1k-small": (thousand_small, 1e9),
    "10k-planted": (lambda: ten_thousand("planted", 1.5), 5.5e9),
    "10k-flat": (lambda: ten_thousand("flat", 2.0), 5.5e9),
    "100k": (lambda: landmarks((100_000, 300, 100), 3e9, clustering=3, other=STREAM_MUST), 6e9),
    "1m": (million, 1.2e10),
}


def measure(case=None):
    if case is not None:
        return CASES[case][0]()
    found = Found()
    for name in CASES:
        if name != "short":
            found.add(run_case(name))
    return found


def run_case(name):
    """Run a case in a new process, after another process has touched as much memory.

    On virtual hosts the first touch of a page costs more than the round that touches it.
    """
    script = f"from bench.machine import touch; touch({CASES[name][1]})"
    subprocess.run([sys.executable, "-c", script], check=False, timeout=600, cwd=ROOT)
    return run_part("bench_scale", "--case", name)


if __name__ == "__main__":
    part_main(measure, __doc__, CASES)
