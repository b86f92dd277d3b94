import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel, sigmoid_kernel
from sklearn.preprocessing import normalize

import cvrcore
from cvrcore.clustering.affinity import KERNELS, Affinity


@pytest.mark.parametrize("gamma", [0.3, 1.0, "median"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_influence_matches_naive(backend, kernel, gamma):
    if gamma == "median" and kernel in ("cosine", "sigmoid"):
        with pytest.raises(ValueError, match="'median' must go with rbf or laplacian"):
            cvrcore.influence(np.eye(3), kernel, gamma)
        return
    models = np.random.default_rng(0).normal(size=(13, 9))
    models[4] = 0.0
    expected = naive.influence(models, kernel, gamma)
    assert_allclose(cvrcore.influence(models, kernel, gamma), expected, rtol=1e-12)


def test_affinity_matches_scikit_learn():
    models = np.random.default_rng(1).normal(size=(20, 30))
    rows = normalize(models)
    peers = {
        "rbf": rbf_kernel(rows, gamma=0.7),
        "laplacian": laplacian_kernel(rows, gamma=0.7),
        "cosine": (1 + rows @ rows.T) / 2,
        "sigmoid": (1 + sigmoid_kernel(rows, gamma=0.7, coef0=0)) / 2,
    }
    for kernel, expected in peers.items():
        assert_allclose(Affinity(models, kernel, 0.7).matrix(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kernel", KERNELS)
def test_updated_rows_equal_a_fresh_matrix(backend, kernel, dtype):
    rng = np.random.default_rng(2)
    models = flat_models(40, 25, rng).astype(dtype)
    affinity = Affinity(models, kernel, 1.0)
    for _ in range(20):
        ids = rng.choice(40, size=6, replace=False)
        models[ids] = flat_models(6, 25, rng).astype(dtype)
        affinity.update(ids, models[ids])
    # float32 rows, taken relative to a reference: errors of the rows, not of the result.
    tolerance = 1e-12 if dtype == np.float64 else 3e-6
    assert_allclose(affinity.matrix(), naive.affinity(models, kernel), rtol=tolerance)


def test_distances_of_nearly_equal_rows_keep_their_digits():
    rng = np.random.default_rng(3)
    common = rng.normal(size=50)
    models = common + 1e-6 * rng.normal(size=(8, 50))
    distances = -np.log(Affinity(models, "rbf", 1e10).matrix()) / 1e10
    rows = normalize(models)
    exact = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    assert_allclose(distances, exact, rtol=1e-6, atol=1e-20)


def test_rounding_makes_no_distance_negative(kernels):
    distances = np.empty((1, 2))
    products = np.array([[1.0, 1.0 + 1e-9]])
    kernels["squared_distances"](products, np.ones(2), np.array([0]), distances)
    assert_array_equal(distances, [[0.0, 0.0]])


def test_scale_of_a_model_does_not_matter():
    models = np.random.default_rng(4).normal(size=(6, 5))
    scales = np.array([1e-160, 1e160, 1.0, 1e-3, 7.0, 1e5])[:, None]
    assert_allclose(cvrcore.influence(models * scales), cvrcore.influence(models), rtol=1e-12)


def test_rows_sum_to_one_and_order_does_not_matter():
    rng = np.random.default_rng(5)
    models, order = rng.normal(size=(15, 4)), rng.permutation(15)
    weights = cvrcore.influence(models)
    assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-14)
    assert_allclose(cvrcore.influence(models[order]), weights[np.ix_(order, order)], rtol=1e-12)


def test_distinct_rows_are_counted_as_they_come_and_go():
    affinity = Affinity(np.ones((5, 3)), "rbf", 1.0)
    assert not affinity.has_distinct(2)
    affinity.update(np.array([1, 3]), np.eye(3)[:2])
    assert affinity.has_distinct(3)
    assert not affinity.has_distinct(4)
    affinity.update(np.array([1, 3]), np.ones((2, 3)))
    assert not affinity.has_distinct(2)


def test_different_rows_of_equal_norm_count_as_distinct():
    models = np.eye(4)  # offsets from their mean all have the same norm
    assert Affinity(models, "rbf", 1.0).has_distinct(4)
