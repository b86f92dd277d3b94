import naive
import numpy as np
import pytest
from builds import load_kernels
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models
from sklearn.cluster import KMeans, SpectralClustering
from threadpoolctl import threadpool_limits

import cvrcore
from cvrcore.clustering.affinity import KERNELS, Affinity
from cvrcore.clustering.direct import DenseAffinity
from cvrcore.clustering.eigensolver import spectral_points
from cvrcore.clustering.operators import NormalisedAffinity
from cvrcore.clustering.partitions import Effort, cluster_points, number_by_appearance
from cvrcore.clustering.subspace import Basis, filtered_subspace


def run_kmeans(kmeans, points, n_clusters, n_init, seed, start=(), n_swaps=0):
    labels = np.empty(len(points), dtype=np.int64)
    uniforms = np.random.default_rng(seed).random((n_init, n_clusters, 4))
    start = np.array(start, dtype=np.int64)
    swaps = np.random.default_rng(seed).random((n_swaps, 2))
    inertia = kmeans(np.ascontiguousarray(points.T), start, uniforms, swaps, 100, labels)
    return labels, inertia


# -- k-means ---------------------------------------------------------------------


def test_two_that_both_gain_by_leaving_do_not_empty_their_cluster(kernels):
    """Each of a pair is better off elsewhere; once one has gone, the other must stay."""
    points = np.array([[1.0], [-1.0], *[[2.2]] * 5, *[[-2.2]] * 5])
    start = np.array([0, 0, *[1] * 5, *[2] * 5])
    labels, _ = run_kmeans(kernels["kmeans"], points, 3, 0, seed=0, start=start)
    assert sorted(np.bincount(labels, minlength=3)) == [1, 5, 6]


@pytest.mark.parametrize(("n", "dims", "k"), [(5, 1, 5), (40, 3, 4), (150, 9, 10), (130, 2, 20)])
def test_kmeans_fills_every_cluster_and_states_its_inertia(kernels, n, dims, k):
    points = np.random.default_rng(0).normal(size=(n, dims))
    labels, inertia = run_kmeans(kernels["kmeans"], points, k, 3, seed=1)
    assert sorted(set(labels)) == list(range(k))
    assert inertia == pytest.approx(naive.inertia(points, labels), rel=1e-12, abs=1e-12)


def test_kmeans_is_no_worse_than_scikit_learn(kernels):
    ours, theirs = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(120, 9))
        ours.append(run_kmeans(kernels["kmeans"], points, 10, 10, seed)[1])
        with threadpool_limits(1):
            theirs.append(KMeans(10, n_init=10, random_state=seed).fit(points).inertia_)
    assert np.mean(ours) <= np.mean(theirs)


def test_many_points_need_no_last_move_to_be_clustered_as_well(kernels):
    """From 200 points on, passes end while a few moves are left: three starts beat ten."""
    ours, theirs = [], []
    for seed in range(3):
        points = np.random.default_rng(seed).normal(size=(1000, 24))
        ours.append(run_kmeans(kernels["kmeans"], points, 25, 3, seed)[1])
        with threadpool_limits(1):
            theirs.append(KMeans(25, n_init=10, random_state=seed).fit(points).inertia_)
    assert np.mean(ours) <= np.mean(theirs)


def test_no_single_move_improves_the_result(kernels):
    """Hartigan's optimum: stronger than Lloyd's, checked by brute force."""
    points = np.random.default_rng(3).normal(size=(60, 4))
    labels, inertia = run_kmeans(kernels["kmeans"], points, 6, 2, seed=4)
    for i in range(60):
        for target in range(6):
            moved = labels.copy()
            moved[i] = target
            if np.bincount(moved, minlength=6).all():
                assert naive.inertia(points, moved) >= inertia * (1 - 1e-9)


def test_warm_start_is_kept_when_it_is_the_best(kernels):
    points, groups = planted_models(90, 5, 6, np.random.default_rng(5), spread=0.01)
    labels, _ = run_kmeans(kernels["kmeans"], points, 6, 1, seed=0, start=groups)
    assert naive.same_partition(labels, groups)


def test_identical_points_still_fill_every_cluster(kernels):
    labels, inertia = run_kmeans(kernels["kmeans"], np.ones((9, 2)), 4, 2, seed=0)
    assert set(labels) == {0, 1, 2, 3}
    assert inertia == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("build", ["cython-base", "cython-v3"])
def test_every_build_returns_the_same_bits(build, dtype):
    compiled, reference = load_kernels(build), load_kernels("numba")
    for seed in range(10):
        points = np.random.default_rng(seed).normal(size=(137, 11)).astype(dtype)
        labels, inertia = run_kmeans(compiled["kmeans"], points, 12, 3, seed, n_swaps=4)
        expected, other = run_kmeans(reference["kmeans"], points, 12, 3, seed, n_swaps=4)
        assert_array_equal(labels, expected)
        assert inertia == other  # not approximately: no build may reorder a sum


def test_labels_are_numbered_by_first_appearance():
    assert_array_equal(number_by_appearance(np.array([2, 0, 2, 1, 0])), [0, 1, 0, 2, 1])


# -- eigenvectors ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["planted", "flat"])
@pytest.mark.parametrize("n_coalitions", [2, 8])
def test_embedding_spans_the_leading_eigenvectors(kind, n_coalitions):
    rng = np.random.default_rng(6)
    models = planted_models(60, 20, 8, rng)[0] if kind == "planted" else flat_models(60, 20, rng)
    affinity = naive.affinity(models)
    points, _ = spectral_points(DenseAffinity(affinity), n_coalitions)
    expected = naive.embedding(affinity, n_coalitions)[:, 1:]
    # Signs and rotations are free: distances between points are not.
    ours = np.linalg.norm(points[:, None] - points[None], axis=2)
    theirs = np.linalg.norm(expected[:, None] - expected[None], axis=2)
    assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


def test_negative_eigenvalues_do_not_let_the_constant_vector_back_in():
    models = np.random.default_rng(0).normal(size=(12, 3))
    affinity = naive.affinity(models, "sigmoid", 3.0)
    assert np.linalg.eigvalsh(affinity).min() < 0
    points, _ = spectral_points(DenseAffinity(affinity, positive=False), 8)
    expected = naive.embedding(affinity, 8)[:, 1:]
    ours = np.linalg.norm(points[:, None] - points[None], axis=2)
    theirs = np.linalg.norm(expected[:, None] - expected[None], axis=2)
    assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["planted", "flat"])
@pytest.mark.parametrize("n_clients", [100, 400])
def test_warm_start_reaches_the_direct_solution(kind, n_clients):
    rng = np.random.default_rng(7)
    n_coalitions = 10

    def fresh(n):
        return (
            planted_models(n, 60, 10, np.random.default_rng(8))[0]
            if kind == "planted"
            else (flat_models(n, 60, np.random.default_rng(8)))
        )

    models = fresh(n_clients)
    affinity = Affinity(models, "rbf", 1.0)
    _, basis = spectral_points(affinity, n_coalitions)
    for _ in range(5):
        ids = rng.choice(n_clients, size=n_coalitions, replace=False)
        models[ids] += 0.05 * rng.normal(size=(ids.size, 60))
        affinity.update(ids, models[ids])
        _, basis = spectral_points(affinity, n_coalitions, basis)
        assert basis.vectors.dtype == np.float32, "the warm start fell back to a direct solver"
        operator = NormalisedAffinity(affinity.matrix())
        exact = np.linalg.eigvalsh(operator.matrix)[::-1][: n_coalitions - 1]
        vectors = basis.vectors[:, : n_coalitions - 1].astype(np.float64)
        ritz = np.linalg.eigvalsh(vectors.T @ operator.matrix @ vectors)[::-1]
        # A residual of 1e-3 leaves errors of its square, over the gap, in the values.
        assert_allclose(ritz, exact, rtol=1e-4)


def test_hopeless_start_is_given_up():
    operator = NormalisedAffinity(np.full((30, 30), 1.0), np.float32)
    vectors = np.linalg.qr(np.random.default_rng(9).normal(size=(30, 8)))[0]
    start = Basis(vectors, np.linspace(0.5, 0.1, 8))
    assert filtered_subspace(operator, start, 4) is None


# -- coalitions ------------------------------------------------------------------


def problems():
    """Fifty seeded problems, separated and flat."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        n_clients, n_coalitions = int(rng.integers(40, 120)), int(rng.integers(3, 11))
        if seed % 2:
            yield flat_models(n_clients, 40, rng), n_coalitions, None
        else:
            models, groups = planted_models(n_clients, 40, n_coalitions, rng)
            yield models, n_coalitions, groups


def test_coalitions_are_as_good_as_scikit_learns(backend):
    """Inertia of both partitions in one embedding; planted ones recovered."""
    ratios = []
    for models, n_coalitions, groups in problems():
        affinity = naive.affinity(models)
        labels = cvrcore.coalitions(models, n_coalitions, seed=0)
        with threadpool_limits(1):
            theirs = SpectralClustering(
                n_coalitions, affinity="precomputed", n_init=10, random_state=0
            ).fit_predict(affinity)
        points = naive.embedding(affinity, n_coalitions)
        ratios.append(naive.inertia(points, labels) / naive.inertia(points, theirs))
        if groups is not None:
            assert naive.same_partition(labels, groups)
    assert np.mean(ratios) <= 1.0 + 1e-9
    assert np.max(ratios) <= 1.05


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_recovers_planted_groups(backend, kernel):
    models, groups = planted_models(60, 30, 5, np.random.default_rng(10), spread=0.2)
    assert naive.same_partition(cvrcore.coalitions(models, 5, kernel, seed=0), groups)


@pytest.mark.parametrize(
    "models",
    [
        np.ones((12, 5)),
        np.zeros((12, 5)),
        np.vstack([np.zeros((6, 5)), np.eye(5), np.ones((1, 5))]),
        np.arange(12.0)[:, None],
        np.ones((12, 1)),
        np.arange(24.0).reshape(12, 2),
        np.repeat(np.eye(5), [3, 3, 2, 2, 2], axis=0),
    ],
    ids=["identical", "zero", "half-zero", "D=1", "D=1-identical", "D=2", "five-distinct"],
)
@pytest.mark.parametrize("n_coalitions", [1, 2, 5, 11, 12])
def test_always_exactly_p_coalitions(backend, models, n_coalitions):
    labels = cvrcore.coalitions(models, n_coalitions, seed=0)
    assert sorted(set(labels)) == list(range(n_coalitions))


def test_too_few_distinct_rows_are_dealt_in_balance():
    sizes = np.bincount(cvrcore.coalitions(np.ones((11, 4)), 4, seed=3))
    assert set(sizes) == {2, 3}


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("n_features", [1, 2])
def test_scale_of_few_coordinates_does_not_matter(n_features, scale):
    models = scale * np.repeat([[1.0, 5.0], [2.0, 5.0], [3.0, 7.0]], 4, axis=0)[:, :n_features]
    models += 1e-3 * scale * np.random.default_rng(0).normal(size=models.shape)
    labels = cvrcore.coalitions(models, 3, seed=0)
    assert_array_equal(labels, np.repeat([0, 1, 2], 4))


def test_parallel_models_are_one_and_dealt_at_random():
    rng = np.random.default_rng(0)
    models = np.outer(rng.uniform(0.5, 3, size=30), rng.normal(size=7))
    assert set(np.bincount(cvrcore.coalitions(models, 5, seed=0))) == {6}


def test_one_coordinate_is_clustered_as_it_is():
    """Normalised, 1.0 and 9.0 would be the same point."""
    models = np.array([[1.0], [1.1], [9.0], [9.1], [-5.0]])
    assert_array_equal(cvrcore.coalitions(models, 3, seed=0), [0, 0, 1, 1, 2])


def test_client_order_does_not_matter():
    rng = np.random.default_rng(11)
    models, _ = planted_models(50, 20, 5, rng)
    order = rng.permutation(50)
    labels = cvrcore.coalitions(models, 5, seed=0)
    assert naive.same_partition(cvrcore.coalitions(models[order], 5, seed=0), labels[order])


def test_more_restarts_never_hurt(backend):
    points = np.random.default_rng(12).normal(size=(80, 5))
    few = cluster_points(points, 8, np.random.default_rng(0), Effort(1))
    many = cluster_points(points, 8, np.random.default_rng(0), Effort(20))
    assert naive.inertia(points, many) <= naive.inertia(points, few) * (1 + 1e-12)
