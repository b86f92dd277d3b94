"""The server's round and its parts, compared with the dense peer in one run.

Times of ours are means over steady rounds, so that deferred work counts.
"""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bench.peers import DenseRound, inertia
from bench.workloads import Models, Steady
from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.eigensolver import spectral_points
from cvrcore.covariance.pairs import representatives
from cvrcore.kernels import dispatch

SMALL, LARGE = (100, 300, 10), (1000, 300, 50)
KINDS = ("planted", "flat")
THREADS = (1, 2)


@pytest.fixture(scope="module", autouse=True)
def warm_memory():
    """Touch as much memory as the peer allocates: page faults of the host do not count."""
    np.ones(350_000_000)


def run_ours(benchmark, steady, rounds):
    benchmark.pedantic(
        steady.round, setup=lambda: ((steady.reports(),), {}), rounds=rounds, iterations=1
    )


@pytest.mark.parametrize(
    ("turn", "kind", "who"), list(itertools.product(range(7), KINDS, ("ours", *THREADS)))
)
def test_small_round(benchmark, turn, kind, who):
    """Alternate ours and the peer, so that a slow host slows both; means over turns count."""
    benchmark.group = f"round K=100 {kind}"
    if who == "ours":
        benchmark.name = "ours"
        run_ours(benchmark, Steady(kind, *SMALL, n_rounds=100), rounds=96)
    else:
        benchmark.name = f"peer, {who} threads"
        run_peer(benchmark, kind, SMALL, who, rounds=8)


@pytest.mark.parametrize(
    ("turn", "kind", "who"),
    list(itertools.product(range(3), KINDS, ("40 main rounds in", "200 main rounds in", *THREADS))),
)
def test_large_round(benchmark, turn, kind, who):
    """As above; each turn of ours starts a new selector at the named round."""
    benchmark.group = f"round K=1000 {kind}"
    if who in THREADS:
        benchmark.name = f"peer, {who} threads"
        run_peer(benchmark, kind, LARGE, who, rounds=2)
        return
    benchmark.name = f"ours, {who}"
    steady = Steady(kind, *LARGE, n_rounds=int(who.split()[0]))
    run_ours(benchmark, steady, rounds=32)


def run_peer(benchmark, kind, size, threads, rounds):
    n_clients, n_features, n_select = size
    models = Models(kind, n_clients, n_features, n_select)
    peer = DenseRound(models.initial, models.weights, n_select)

    def one_round(noise):
        picked = peer.select()
        peer.observe(models.centres[picked] + noise[: len(picked)])

    def fresh():
        return (models.noise * models.rng.normal(size=(n_select, n_features)),), {}

    with threadpool_limits(threads):
        one_round(*fresh()[0])
        benchmark.pedantic(one_round, setup=fresh, rounds=rounds, iterations=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["K=100", "K=1000"])
def test_clustering_is_as_good_as_the_peers(kind, size):
    """Compare mean k-means inertia in one embedding; planted groups must be recovered."""
    n_clients, _, n_select = size
    steady = Steady(kind, *size, n_rounds=10)
    peer = DenseRound(steady.models.initial[:, :3], steady.models.weights, n_select)
    ratios = []
    for _ in range(5):
        steady.round(steady.reports())
        peer.models = steady.selector.rows
        with threadpool_limits(1):
            theirs = peer.cluster()
        ours = steady.selector.select().coalitions
        points, _ = spectral_points(Affinity(peer.models, "rbf", 1.0), n_select)
        ratios.append(inertia(points, ours) / inertia(points, theirs))
        if kind == "planted":
            assert len(set(zip(ours, np.arange(n_clients) % n_select, strict=True))) == n_select
    assert np.mean(ratios) <= 1 + 1e-9


def labelled(n_clients, n_select):
    """Return coalitions of equal size, and one representative of each."""
    labels = np.arange(n_clients) % n_select
    return labels, np.arange(n_select)


def test_covariance_step_ours(benchmark):
    benchmark.group = "covariance step K=100"
    steady = Steady("planted", *SMALL, n_rounds=100)
    selector = steady.selector
    labels, clients = labelled(SMALL[0], SMALL[2])
    first = representatives(clients, labels)
    alpha = selector.weights / selector.weights.sum()

    def step():
        rate = 1.0 / (selector.updates + 2)
        selector._estimator.step(selector._rows, labels, first, alpha, rate)

    benchmark.pedantic(step, rounds=400, iterations=1)


@pytest.mark.parametrize("threads", THREADS)
def test_covariance_step_peer(benchmark, threads):
    benchmark.group = "covariance step K=100"
    models = Models("planted", *SMALL)
    peer = DenseRound(models.initial, models.weights, SMALL[2])
    labels, clients = labelled(SMALL[0], SMALL[2])
    with threadpool_limits(threads):
        benchmark.pedantic(
            peer.update_covariance, args=(clients[labels],), rounds=40, warmup_rounds=2
        )


def test_score_ours(benchmark):
    """Score from the stored moments, as the peer scores from C; the step above updates them."""
    benchmark.group = "score K=100"
    kept = Steady("planted", *SMALL, n_rounds=3).selector._estimator
    args = (kept.moment, kept.diagonal, kept.floor, kept.scores)
    benchmark.pedantic(
        dispatch.variance_reduction, args=args, rounds=300, iterations=5, warmup_rounds=3
    )


@pytest.mark.parametrize("threads", THREADS)
def test_score_peer(benchmark, threads):
    benchmark.group = "score K=100"
    models = Models("planted", *SMALL)
    peer = DenseRound(models.initial, models.weights, SMALL[2])
    with threadpool_limits(threads):
        benchmark.pedantic(peer.score, rounds=100, warmup_rounds=3)


FIRST_SELECT = """
import numpy as np
import cvrcore
rows = np.random.default_rng(0).normal(size=(100, 300))
cvrcore.CoalitionSelector(100, 300, 10, warmup=0, seed=0, initial=rows).select()
"""
PROCESSES = {
    "numpy": "import numpy",
    "cvrcore": "import cvrcore",
    "CoalitionSelector": "from cvrcore import CoalitionSelector",
    "first select": FIRST_SELECT,
}


@pytest.mark.parametrize("what", PROCESSES)
def test_fresh_process(benchmark, what, tmp_path):
    """Time inside the process, without interpreter start-up, byte-code already written."""
    benchmark.group = "fresh process"
    benchmark.name = what
    script = (
        f"import time; t = time.perf_counter()\n{PROCESSES[what]}\nprint(time.perf_counter() - t)"
    )
    # As after pip install: the first process, which does not count, writes the byte-code.
    cached = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", script]
    times = []

    def one():
        run = subprocess.run(
            command, env=cached, capture_output=True, text=True, check=True, timeout=60
        )
        times.append(float(run.stdout))

    benchmark.pedantic(one, rounds=9, warmup_rounds=1)
    benchmark.extra_info["inside"] = float(np.median(times[1:]))
