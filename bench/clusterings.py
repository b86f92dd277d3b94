"""One clustering of clients: ours, SciPy's eigensolvers, scikit-learn's SpectralClustering.

All start from the same affinity in memory. Ours runs once cold and once warm-started, as in a
steady round, from the eigenvectors and the partition before P rows changed. Each peer runs with
one BLAS thread and with all; the faster time counts. Quality is the k-means inertia in one
exact embedding, relative to scikit-learn's "kmeans".
"""

import warnings

import numpy as np
from scipy.sparse.linalg import eigsh, lobpcg
from sklearn.cluster import KMeans, SpectralClustering
from threadpoolctl import threadpool_limits

from bench.machine import best_time
from bench.peers import inertia
from bench.rows import Found, Row, part_main
from bench.workloads import Models
from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.direct import DenseAffinity
from cvrcore.clustering.eigensolver import spectral_points
from cvrcore.clustering.partitions import COLD, spectral_coalitions, warm_effort
from cvrcore.runtime.threads import n_threads, single_blas_thread

PART = "one clustering"


def normalised(affinity):
    """Return S A S, and S as a vector."""
    inverse = 1.0 / np.sqrt(affinity.sum(axis=1))
    return affinity * inverse[:, None] * inverse, inverse


def restarts(points, n_clusters):
    """Cluster an embedding as SpectralClustering does."""
    return KMeans(n_clusters, n_init=10, random_state=0).fit_predict(points)


def by_eigsh(affinity, n_clusters):
    matrix, inverse = normalised(affinity)
    start = np.random.default_rng(0).standard_normal(len(matrix))
    _, vectors = eigsh(matrix, k=n_clusters, which="LA", v0=start, tol=1e-6)
    return restarts(vectors * inverse[:, None], n_clusters)


def by_lobpcg(affinity, n_clusters):
    """Solve by LOBPCG with the known leading vector as a constraint."""
    matrix, inverse = normalised(affinity)
    lead = (1.0 / inverse)[:, None]
    block = np.random.default_rng(0).standard_normal((len(matrix), n_clusters - 1))
    _, vectors = lobpcg(matrix, block, Y=lead, tol=1e-6, maxiter=60, largest=True)
    return restarts(vectors * inverse[:, None], n_clusters)


def by_scikit_learn(how):
    def cluster(affinity, n_clusters):
        found = SpectralClustering(
            n_clusters, affinity="precomputed", n_init=10, random_state=0, assign_labels=how
        )
        return found.fit_predict(affinity)

    return cluster


PEERS = {
    "SciPy eigsh, k-means": by_eigsh,
    "SciPy LOBPCG, k-means": by_lobpcg,
    "scikit-learn, kmeans": by_scikit_learn("kmeans"),
    "scikit-learn, cluster_qr": by_scikit_learn("cluster_qr"),
    "scikit-learn, discretize": by_scikit_learn("discretize"),
}


def ours(models, size):
    """Return seconds cold and warm, the warm labels, and the affinity."""
    n_clients, _, n_select = size
    rng = np.random.default_rng(0)
    proximity = Affinity(models.initial, "rbf", 1.0)
    cold, basis = spectral_coalitions(proximity, n_select, rng, COLD)
    cold_time = best_time(lambda: spectral_coalitions(proximity, n_select, rng, COLD))
    for _ in range(4):  # the warm solver adapts its filter degree over a few rounds
        ids = rng.choice(n_clients, n_select, replace=False)
        proximity.update(ids, models.draw(ids))
        warm, basis = spectral_coalitions(
            proximity, n_select, rng, warm_effort(n_clients, 1), cold, basis, ids
        )
    last, kept = warm, basis
    ids = rng.choice(n_clients, n_select, replace=False)
    proximity.update(ids, models.draw(ids))

    def again():
        nonlocal warm
        effort = warm_effort(n_clients, 1)
        warm, _ = spectral_coalitions(proximity, n_select, rng, effort, last, kept, ids)

    return cold_time, best_time(again, 5), warm, proximity.matrix()


def timed(cluster, affinity, n_clusters):
    """Return seconds with one thread or all, the faster, and the labels."""
    times, labels = [], None

    def one():
        nonlocal labels
        labels = cluster(affinity, n_clusters)

    for threads in sorted({1, n_threads()}):
        with threadpool_limits(threads), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LOBPCG warns when it stops early
            times.append(best_time(one, 2))
    return min(times), labels


def measure(short=False):
    size = (200, 50, 10) if short else (1000, 300, 50)
    found = Found()
    for kind in ("planted", "flat"):
        models = Models(kind, *size)
        with single_blas_thread():
            cold, warm, labels, affinity = ours(models, size)
        points, _ = spectral_points(DenseAffinity(affinity), size[2])
        results = {name: timed(peer, affinity, size[2]) for name, peer in PEERS.items()}
        reference = inertia(points, results["scikit-learn, kmeans"][1])
        label = f"K={size[0]:,}, {kind}"
        quality = inertia(points, labels) / reference
        found.rows.append(Row(PART, f"{label}: ours, a steady round", 1e3 * warm, "ms"))
        found.rows.append(Row(PART, f"{label}: ours, from nothing", 1e3 * cold, "ms"))
        found.rows.append(Row(PART, f"{label}: inertia, ours / scikit-learn", quality, "x"))
        for name, (seconds, theirs) in results.items():
            note = (
                f"{1e3 * seconds:.3g} ms, {seconds / cold:.2g}x ours from nothing, "
                f"inertia {inertia(points, theirs) / reference:.3f}"
            )
            found.rows.append(
                Row(PART, f"{label}: {name} / ours", seconds / warm, "x", ">=", note=note)
            )
    return found


if __name__ == "__main__":
    part_main(measure, __doc__)
