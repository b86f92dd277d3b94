"""Landmarks: coalitions where K x K is too much."""

import naive
import numpy as np
import pytest
from builds import BUILDS, load_kernels
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models
from sklearn.metrics import adjusted_rand_score

import cvrcore
from cvrcore.clustering.direct import DenseAffinity
from cvrcore.clustering.eigensolver import spectral_points
from cvrcore.clustering.landmarks import choose_landmarks, nystrom_points
from cvrcore.clustering.lloyd import lloyd
from cvrcore.kernels import dispatch


@pytest.mark.parametrize("landmarks", ["uniform", "kmeans++"])
@pytest.mark.parametrize("kernel", ["rbf", "cosine", "laplacian", "sigmoid"])
def test_every_client_as_a_landmark_gives_the_exact_embedding(kernel, landmarks):
    rng = np.random.default_rng(0)
    rows, _ = planted_models(120, 30, 6, rng)
    gamma = 0.2 if kernel == "laplacian" else 1.0
    affinity = naive.affinity(rows, kernel, gamma)
    exact, _ = spectral_points(DenseAffinity(affinity, positive=kernel != "sigmoid"), 6)
    points = nystrom_points(rows, 6, rng, kernel, gamma, 120, landmarks)
    # Equal up to signs and rotations inside equal eigenvalues: compare all distances.
    for found in (points[:, None] - points, exact[:, None] - exact):
        assert np.isfinite(found).all()
    ours = np.linalg.norm(points[:, None] - points, axis=2)
    theirs = np.linalg.norm(exact[:, None] - exact, axis=2)
    assert_allclose(ours, theirs, rtol=0.02, atol=0.02 * theirs.max())


def test_few_landmarks_find_planted_coalitions():
    rng = np.random.default_rng(1)
    rows, groups = planted_models(3000, 60, 12, rng)
    points = nystrom_points(rows, 12, rng, n_landmarks=100)
    assert adjusted_rand_score(groups, lloyd(points, 12, rng)) > 0.999


def test_flat_models_keep_their_leading_subspace():
    """Stated bound: 500 landmarks of 1500 lose under 2 % of the subspace of P = 20."""
    rng = np.random.default_rng(2)
    rows = flat_models(1500, 100, rng)
    exact, _ = spectral_points(DenseAffinity(naive.affinity(rows)), 20)
    points = nystrom_points(rows, 20, rng, n_landmarks=500)
    left, right = (np.linalg.qr(x - x.mean(axis=0))[0] for x in (exact, points))
    assert np.linalg.svd(left.T @ right, compute_uv=False).mean() > 0.98


def test_landmarks_are_distinct_and_seeded():
    rows = np.random.default_rng(3).normal(size=(400, 5))
    for how in ("uniform", "kmeans++"):
        first, again, other = (
            choose_landmarks(rows, 50, how, np.random.default_rng(seed)) for seed in (7, 7, 8)
        )
        assert np.unique(first).size == 50
        assert_array_equal(first, again)
        assert (first != other).any()


def test_identical_models_are_dealt_at_random():
    selector = cvrcore.CoalitionSelector(
        200, 6, 8, warmup=0, seed=0, initial=np.ones(6), clustering="nystrom", n_landmarks=40
    )
    sizes = np.bincount(selector.select().coalitions)
    assert (sizes == 25).all()


def test_too_few_distinct_models_are_dealt_at_random_as_on_the_exact_path():
    rows = np.repeat(np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]]), 150, axis=0)
    for clustering in ("exact", "nystrom"):
        selector = cvrcore.CoalitionSelector(
            300, 4, 5, warmup=0, seed=0, initial=rows, clustering=clustering
        )
        assert (np.bincount(selector.select().coalitions) == 60).all()


@pytest.mark.parametrize("seed", range(30))
def test_landmarks_among_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    rows = np.abs(rng.normal(size=(9, 9)))[rng.integers(9, size=400)]
    chosen = choose_landmarks(rows, 50, "kmeans++", rng)
    assert np.unique(chosen).size == 50
    assert np.unique(rows[chosen], axis=0).shape[0] == 9  # each kind is among them


def test_the_scale_of_models_does_not_matter():
    rng = np.random.default_rng(15)
    rows, groups = planted_models(200, 20, 5, rng)
    points = nystrom_points(1e-50 * rows, 5, rng, n_landmarks=60)
    assert naive.same_partition(lloyd(points, 5, rng), groups)


def landmark_selector(n_clients=400, **options):
    rng = np.random.default_rng(6)
    initial = rng.normal(size=(n_clients, 8))
    options = {"warmup": 0, "seed": 0, "clustering": "nystrom", "n_landmarks": 40} | options
    return cvrcore.CoalitionSelector(n_clients, 8, 10, initial=initial, **options), rng


def test_kept_affinities_follow_the_rows():
    selector, rng = landmark_selector()
    assert selector.plan().keeps_affinities
    for _ in range(5):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(10, 8)))
    selector.select()
    near = selector._partition.near
    assert_allclose(near.kept, near.marks.affinities(selector.rows), atol=1e-6)


def test_landmarks_stay_until_a_quarter_of_the_rows_is_new():
    selector, rng = landmark_selector()
    seen = []
    for _ in range(22):
        picked = selector.select()
        seen.append(selector._partition.near.marks)
        selector.observe(picked.clients, rng.normal(size=(10, 8)))
    first = [marks is seen[0] for marks in seen]
    assert first == [True] * 10 + [False] * 12  # 100 of 400 rows were replaced in ten rounds
    assert len({id(marks) for marks in seen}) == 3


def test_coalitions_are_as_good_whether_affinities_are_kept_or_not():
    kept, _ = landmark_selector()
    lean, _ = landmark_selector(store="window", window=4, memory_limit=5.05e5)
    assert not lean.plan().keeps_affinities
    rng = np.random.default_rng(7)
    for _ in range(6):
        models = rng.normal(size=(10, 8))
        for selector in (kept, lean):
            selector.observe(selector.select().clients, models)
    points = naive.embedding(naive.affinity(kept.rows), 10)
    ratio = naive.inertia(points, kept.select().coalitions) / naive.inertia(
        points, lean.select().coalitions
    )
    assert 0.9 < ratio < 1.1


@pytest.mark.parametrize("build", BUILDS)
def test_scale_gives_the_same_bits_on_every_build_and_any_number_of_threads(monkeypatch, build):
    monkeypatch.setattr("cvrcore.clustering.lloyd._CHUNK", 64)
    monkeypatch.setattr("cvrcore.covariance.estimator.Estimator._chunk", lambda self: 32)

    def run(kernels, threads):
        monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
        for name, kernel in kernels.items():
            monkeypatch.setitem(dispatch.__dict__, name, kernel)
        rng = np.random.default_rng(6)
        selector = cvrcore.CoalitionSelector(
            700,
            12,
            9,
            warmup=0,
            seed=1,
            initial=flat_models(700, 12, rng),
            clustering="nystrom",
            n_landmarks=60,
            store="window",
            window=3,
            dtype="float32",
        )
        clients = []
        for _ in range(6):
            picked = selector.select()
            selector.observe(picked.clients, flat_models(9, 12, rng))
            clients.append(picked.clients)
        return np.array(clients), selector.scores

    kernels = load_kernels(build)
    expected, scores = run(load_kernels("numba"), "1")
    for threads in ("1", "3"):
        clients, other = run(kernels, threads)
        assert_array_equal(clients, expected)
        assert_array_equal(other, scores)
