"""Lloyd's passes: the two kernels against plain NumPy, the whole against scikit-learn."""

import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans

from cvrcore.clustering.lloyd import lloyd

SIZES = [(1, 1, 1), (30, 4, 2), (257, 7, 9)]


@pytest.mark.parametrize(("n_points", "n_centres", "n_dims"), SIZES)
def test_every_point_goes_to_its_nearest_centre(kernels, n_points, n_centres, n_dims):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(n_points, n_dims)).astype(np.float32)
    centres = rng.normal(size=(n_centres, n_dims)).astype(np.float32)
    halves = 0.5 * np.square(centres).sum(axis=1)
    distances = np.square(points[:, None] - centres).sum(axis=2)
    expected = distances.argmin(axis=1)
    before = np.where(rng.random(n_points) < 0.5, expected, -1)
    labels, closeness = before.copy(), np.empty(n_points, dtype=np.float32)

    changed = kernels["nearest_centres"](points @ centres.T, halves, labels, closeness)

    assert_array_equal(labels, expected)
    assert changed == np.count_nonzero(before != expected)
    half = 0.5 * np.square(points).sum(axis=1) - closeness
    assert_allclose(2 * half, distances.min(axis=1), atol=1e-4)
    assert kernels["nearest_centres"](points @ centres.T, halves, labels, closeness) == 0


def test_the_first_of_equally_near_centres_is_taken(kernels):
    products = np.zeros((3, 4), dtype=np.float32)
    halves = np.array([2.0, 1.0, 1.0, 3.0], dtype=np.float32)
    labels, closeness = np.full(3, 9), np.empty(3, dtype=np.float32)
    assert kernels["nearest_centres"](products, halves, labels, closeness) == 3
    assert_array_equal(labels, [1, 1, 1])


@pytest.mark.parametrize(("n_points", "n_centres", "n_dims"), SIZES)
def test_points_are_added_to_their_cluster(kernels, n_points, n_centres, n_dims):
    rng = np.random.default_rng(2)
    points = rng.normal(size=(n_points, n_dims)).astype(np.float32)
    labels = rng.integers(n_centres, size=n_points)
    sums, sizes = np.ones((n_centres, n_dims)), np.ones(n_centres, dtype=np.int64)

    kernels["add_points"](points, labels, sums, sizes)

    assert_array_equal(sizes, 1 + np.bincount(labels, minlength=n_centres))
    for p in range(n_centres):
        expected = 1.0 + points[labels == p].astype(np.float64).sum(axis=0)
        assert_allclose(sums[p], expected, rtol=1e-12)


def test_lloyd_is_as_good_as_scikit_learn():
    rng = np.random.default_rng(4)
    points = rng.normal(size=(5000, 8)).astype(np.float32)
    ours = lloyd(points, 20, rng, max_passes=50)
    theirs = KMeans(20, n_init=1, random_state=0).fit(points)
    assert naive.inertia(points, ours) <= 1.02 * theirs.inertia_


def test_lloyd_goes_on_from_a_partition_and_leaves_no_cluster_empty():
    rng = np.random.default_rng(5)
    centres = 5 * rng.normal(size=(10, 4))
    groups = rng.integers(10, size=3000)
    points = (centres[groups] + 0.1 * rng.normal(size=(3000, 4))).astype(np.float32)
    start = np.where(rng.random(3000) < 0.2, rng.integers(10, size=3000), groups)
    assert naive.same_partition(lloyd(points, 10, rng, start, max_passes=3), groups)
    twice = np.repeat(points[:3], 20, axis=0)  # three places, five clusters
    labels = lloyd(twice, 5, rng)
    assert set(labels) == set(range(5))
