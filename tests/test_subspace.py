"""Kernels of the small warm-started eigensolver, against NumPy and against each other."""

import numpy as np
import pytest
from builds import BUILDS, load_kernels
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models

from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.direct import DenseAffinity
from cvrcore.clustering.eigensolver import block_width, spectral_points
from cvrcore.clustering.operators import NormalisedAffinity
from cvrcore.clustering.subspace import TOLERANCE, Basis

SIZES = [(5, 2), (37, 7), (100, 16), (61, 35)]


def problem(n_clients, n_vectors, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n_clients, n_clients)) / n_clients
    matrix = (half @ half.T).astype(np.float32)
    block = np.linalg.qr(rng.normal(size=(n_clients, n_vectors)))[0].astype(np.float32)
    return matrix, block, np.float32(matrix @ block)


def run_all(kernels, n_clients, n_vectors):
    """Call every kernel once; return all outputs."""
    matrix, block, _ = problem(n_clients, n_vectors)
    filtered, product = np.empty_like(block), np.empty_like(block)
    kernels["filter_block"](matrix, block, 0.3, 1.1, 4, filtered, product)
    vectors, images, values = np.empty_like(block), np.empty_like(block), np.empty(n_vectors)
    # A block that is not orthonormal, as filters leave it.
    skewed = np.float32(block + 0.3 * block[:, ::-1])
    worst = kernels["ritz"](skewed, np.float32(matrix @ skewed), 2, vectors, images, values)
    return filtered, product, vectors, images, values, np.array(worst)


@pytest.mark.parametrize(("n_clients", "n_vectors"), SIZES)
def test_kernels_match_numpy(kernels, n_clients, n_vectors):
    matrix, block, _ = (x.astype(np.float64) for x in problem(n_clients, n_vectors))
    filtered, product, vectors, images, values, worst = run_all(kernels, n_clients, n_vectors)
    assert_allclose(product, matrix @ filtered, atol=1e-6)
    # T_4 of the interval [0, 0.6], mapped to [-1, 1], over its value at 1.1.
    roots, basis = np.linalg.eigh(matrix)
    chebyshev = np.polynomial.chebyshev.Chebyshev([0, 0, 0, 0, 1])
    gains = chebyshev(roots / 0.3 - 1) / chebyshev(1.1 / 0.3 - 1)
    assert_allclose(filtered, (basis * gains) @ (basis.T @ block), atol=1e-5)
    # Ritz pairs: those of the matrix seen in an orthonormal basis of the block's span.
    span = np.linalg.qr(block + 0.3 * block[:, ::-1])[0]
    expected, turns = np.linalg.eigh(span.T @ matrix @ span)
    assert_allclose(values, expected[::-1], atol=1e-6)
    assert_allclose(vectors.T @ vectors, np.eye(n_vectors), atol=1e-5)
    for c, turn in enumerate(turns.T[::-1]):
        assert_allclose(abs(vectors[:, c] @ span @ turn), 1.0, atol=1e-4)
    assert_allclose(images, matrix @ vectors, atol=1e-5)
    residual = images - vectors * values
    assert_allclose(worst, np.square(residual).sum(axis=0)[:2].max(), rtol=1e-3, atol=1e-10)


def test_jacobi_rotations_match_lapack(kernels):
    """Repeated, negative and far apart eigenvalues, in a matrix that is not nearly diagonal."""
    rng = np.random.default_rng(7)
    wanted = np.array([3.0, 1.0, 1.0, 1.0, 0.2, 1e-3, 0.0, -0.5])
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    matrix = np.float32((turn * wanted) @ turn.T)
    block = np.float32(np.eye(8))
    vectors, images, values = np.empty_like(block), np.empty_like(block), np.empty(8)
    assert kernels["ritz"](block, matrix, 8, vectors, images, values) < 1e-10
    assert_allclose(values, np.linalg.eigvalsh(matrix.astype(np.float64))[::-1], atol=1e-7)
    assert_allclose(matrix @ vectors, vectors * values, atol=1e-5)


@pytest.mark.parametrize("build", [name for name in BUILDS if name != "numba"])
@pytest.mark.parametrize(("n_clients", "n_vectors"), SIZES)
def test_builds_return_the_same_bits(build, n_clients, n_vectors):
    ours = run_all(load_kernels(build), n_clients, n_vectors)
    for left, right in zip(ours, run_all(load_kernels("numba"), n_clients, n_vectors), strict=True):
        assert_array_equal(left, right)


def ritz_error(kernels, block, image):
    room = np.empty_like(block), np.empty_like(block), np.empty(block.shape[1])
    return kernels["ritz"](block, image, 2, *room)


def test_parallel_columns_are_refused(kernels):
    _, block, image = problem(40, 6)
    block[:, 5] = block[:, 4] * np.float32(1 + 1e-7)
    assert ritz_error(kernels, block, image) == -1.0


@pytest.mark.parametrize("n_clients", [60, 150, 170])  # below and above where BLAS takes over
def test_warm_start_finds_the_leading_vectors(backend, n_clients):
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(6, 20))[np.arange(n_clients) % 6]
    rows = centres + 0.4 * rng.normal(size=(n_clients, 20))
    _, basis = spectral_points(Affinity(rows, "rbf", 1.0), 6)
    rows[:6] = centres[:6] + 0.4 * rng.normal(size=(6, 20))
    matrix = Affinity(rows, "rbf", 1.0).matrix()
    warm = Basis(basis.vectors, basis.values)
    points, found = spectral_points(DenseAffinity(matrix), 6, warm)
    assert found.products > 0  # it did iterate
    exact = np.linalg.eigh(NormalisedAffinity(matrix).matrix)[1][:, ::-1][:, :5]
    cosines = np.linalg.svd(exact.T @ found.vectors[:, :5], compute_uv=False)
    assert cosines.min() > 1 - 1e-4
    assert points.shape == (n_clients, 5)


def affinities(kind, n_clients, n_rounds):
    """Yield an affinity of twenty coalitions, and who has changed: a twentieth each round."""
    rng, size = np.random.default_rng(6), (n_clients, 60)
    rows = flat_models(*size, rng) if kind == "flat" else planted_models(*size, 20, rng)[0]
    affinity = Affinity(rows, "rbf", 1.0)
    yield affinity.matrix().copy(), np.arange(n_clients)
    for _ in range(n_rounds):
        ids = rng.choice(n_clients, size=n_clients // 20, replace=False)
        rows[ids] += 0.05 * rng.normal(size=(ids.size, 60))
        affinity.update(ids, rows[ids])
        yield affinity.matrix().copy(), ids


@pytest.mark.parametrize("told", [False, True], ids=["of nobody", "of who changed"])
@pytest.mark.parametrize("kind", ["planted", "flat"])
@pytest.mark.parametrize("n_clients", [100, 400])
def test_warm_pairs_are_within_tolerance(kind, n_clients, told):
    """Residuals of the vectors that are handed on, worked out in float64."""
    (matrix, _), *rounds = affinities(kind, n_clients, 6)
    _, basis = spectral_points(DenseAffinity(matrix), 20)
    for matrix, ids in rounds:
        _, basis = spectral_points(
            DenseAffinity(matrix), 20, basis, changed=ids if told else ids[:0]
        )
        assert basis.products > 0  # it did iterate
        wanted, values = basis.vectors[:, :19].astype(np.float64), basis.values[:19]
        residual = NormalisedAffinity(matrix).matrix @ wanted - wanted * values
        # The bound is that of a power step on an error orthogonal to the block: nearly so.
        assert np.linalg.norm(residual, axis=0).max() < 1.2 * TOLERANCE * values[-1]


def test_coalitions_that_stand_apart_cost_one_product():
    (matrix, _), *rounds = affinities("planted", 400, 9)
    _, basis = spectral_points(DenseAffinity(matrix), 20)
    for matrix, ids in rounds:
        _, basis = spectral_points(DenseAffinity(matrix), 20, basis, changed=ids)
    assert basis.products == 1
    assert basis.degree == 0  # no filter: Ritz vectors of what was there, and their images


@pytest.mark.parametrize(("n_clients", "n_wanted"), [(100, 9), (1000, 49), (10_000, 99), (20, 4)])
def test_a_block_has_guard_vectors(n_clients, n_wanted):
    width = block_width(n_clients, n_wanted)
    assert n_wanted + 4 <= width < n_clients
    assert width % 16 == 0 or 4 * width > n_clients


@pytest.mark.parametrize("kind", ["planted", "flat"])
def test_large_cold_problems_start_from_principal_coordinates(monkeypatch, kind):
    monkeypatch.setattr("cvrcore.clustering.eigensolver.LAPACK_LIMIT", 200)
    rng = np.random.default_rng(5)
    rows = planted_models(400, 30, 8, rng)[0] if kind == "planted" else flat_models(400, 30, rng)
    affinity = Affinity(rows, "rbf", 1.0)
    points, found = spectral_points(affinity, 8)
    assert 0 < found.products < 60  # it did iterate
    exact = np.linalg.eigh(NormalisedAffinity(affinity.matrix()).matrix)[1][:, ::-1][:, :7]
    cosines = np.linalg.svd(exact.T @ found.vectors[:, :7], compute_uv=False)
    assert cosines.min() > 1 - 1e-3


def test_vanishing_columns_are_refused(kernels):
    _, block, image = problem(40, 6)
    block[:, 3] *= np.float32(1e-20)
    assert ritz_error(kernels, block, image) == -1.0


def test_a_block_that_has_become_too_narrow_is_not_a_start():
    """More clients are picked than before: the last eigenvectors are too few."""
    rng = np.random.default_rng(2)
    rows, _ = planted_models(200, 40, 30, rng)
    affinity = Affinity(rows, "rbf", 1.0)
    _, narrow = spectral_points(affinity, 5)
    points, wide = spectral_points(affinity, 30, narrow)
    assert narrow.vectors.shape[1] < 29 < wide.vectors.shape[1]
    assert points.shape == (200, 29)
