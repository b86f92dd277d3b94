import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore


def random_covariance(n_clients, n_features, seed):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(n_features, n_clients, n_clients + 1))
    return factor @ factor.transpose(0, 2, 1), rng.integers(1, 50, size=n_clients)


@pytest.mark.parametrize(("n_clients", "n_features"), [(1, 1), (4, 7), (10, 8), (31, 19)])
def test_score_matches_naive(backend, rtol, n_clients, n_features):
    cov, weights = random_covariance(n_clients, n_features, seed=1)
    expected = naive.variance_reduction(cov, weights)
    assert_allclose(cvrcore.variance_reduction(cov, weights), expected, rtol=rtol)


def test_vanishing_diagonal_counts_as_no_reduction(backend):
    cov, weights = random_covariance(6, 3, seed=2)
    cov[1, 4, :] = cov[1, :, 4] = 0.0
    scores = cvrcore.variance_reduction(cov, weights)
    assert_allclose(scores, naive.variance_reduction(cov, weights), rtol=1e-12)
    assert np.isfinite(scores).all()


def test_floor_is_a_share_of_the_mean_diagonal(kernels):
    diagonal = np.array([[4.0, 1.0], [0.0, 1.0], [2.0, 4.0]])
    floor = np.empty(2)
    kernels["diagonal_floor"](diagonal, 1e-12, floor)
    assert_allclose(floor, [2e-12, 2e-12], rtol=1e-12)


def test_ones_give_every_client_the_score_d():
    assert_array_equal(cvrcore.variance_reduction(np.ones((7, 5, 5)), np.ones(5)), np.full(5, 7.0))


def test_score_is_the_variance_that_a_regression_explains():
    """v_k is the variance of the best linear prediction of alpha . theta from theta_k."""
    rng = np.random.default_rng(3)
    cov, weights = random_covariance(4, 1, seed=3)
    alpha = weights / weights.sum()
    theta = rng.multivariate_normal(np.zeros(4), cov[0], size=200_000)
    target = theta @ alpha
    scores = cvrcore.variance_reduction(cov, weights)
    for k in range(4):
        explained = np.corrcoef(target, theta[:, k])[0, 1] ** 2 * target.var()
        assert scores[k] == pytest.approx(explained, abs=0.01 * target.var())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_clients", "n_features"), [(1, 1), (9, 5), (20, 24)])
def test_recursion_equals_the_full_matrices(kernels, n_clients, n_features, dtype):
    """The O(KD) recursion of C alpha and diag C, against C itself."""
    rng = np.random.default_rng(4)
    weights = rng.integers(1, 9, size=n_clients).astype(float)
    alpha = weights / weights.sum()
    cov = np.ones((n_features, n_clients, n_clients))
    moment = np.ones((n_clients, n_features), dtype=dtype)
    diagonal = np.ones((n_clients, n_features), dtype=dtype)
    floor, scores = np.full(n_features, 1e-12), np.empty(n_clients)
    tolerance = 1e-11 if dtype == np.float64 else 1e-4
    for s in range(30):
        rate = 1 / (s + 2)
        history = rng.normal(size=(2, n_clients, n_features)).astype(dtype)
        residual = history[1]
        floor = (1 - rate) * floor + rate * 1e-12 * (residual**2.0).mean(axis=0)
        projection = rate * (alpha @ residual)
        half = n_clients // 2
        for part in ((0, half), (half, n_clients)):
            told = (projection.astype(dtype), 1 - rate, rate, floor.astype(dtype))
            kernels["advance_moments"](moment, diagonal, history, 1, *told, *part, scores)
        outer = np.einsum("kd,jd->dkj", residual, residual, dtype=float)
        cov = cov + (outer - cov) / (s + 2)
        assert_allclose(scores, naive.variance_reduction(cov, weights), rtol=tolerance)
    assert_allclose(floor, 1e-12 * np.einsum("dkk->dk", cov).mean(axis=1), rtol=tolerance)
    again = np.empty(n_clients)
    kernels["diagonal_floor"](diagonal, 1e-12, floor)
    kernels["variance_reduction"](moment, diagonal, floor, again)
    assert_allclose(again, scores, rtol=1e-12 if dtype == np.float64 else 1e-5)
