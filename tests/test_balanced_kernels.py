"""Kernels of the balanced draw and of facility location: every build, the same bits."""

import os

import numpy as np
import pytest
from builds import load_kernels
from numpy.testing import assert_array_equal

compiled = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1",
    reason="interpreted, sums of float32 are float32 scalars: other bits",
)


def tree_of(kernels, points, n_box):
    """Return order, starts and boxes of the k-d tree of `points`, with leaves of at most 8."""
    n = points.shape[0]
    n_leaves = 1
    while n_leaves * 8 < n:
        n_leaves *= 2
    order = np.arange(n)
    starts = np.zeros((2 * n_leaves, 2), dtype=np.int64)
    boxes = np.empty((2 * n_leaves - 1, 2, n_box), dtype=np.float32)
    kernels["build_tree"](points, n_box, order, starts, boxes)
    return order, starts, boxes


def make_points(n, width, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, width)).astype(np.float32)
    points[n // 2 :: 3] = points[0]  # equal points: ties in the tree and among neighbours
    return points


SIZES = [(2, 1, 1), (9, 3, 3), (100, 6, 6), (700, 40, 6)]


@pytest.mark.parametrize(("n", "width", "n_box"), SIZES)
def test_leaves_hold_every_point_inside_its_box(kernels, n, width, n_box):
    points = make_points(n, width, seed=n)
    order, starts, boxes = tree_of(kernels, points, n_box)
    assert_array_equal(np.sort(order), np.arange(n))
    n_nodes = boxes.shape[0]
    for node in range(n_nodes):
        rows = points[order[starts[node, 0] : starts[node, 1]], :n_box]
        assert_array_equal(boxes[node, 0], rows.min(axis=0))
        assert_array_equal(boxes[node, 1], rows.max(axis=0))
    leaves = range(n_nodes >> 1, n_nodes)
    assert sum(starts[leaf, 1] - starts[leaf, 0] for leaf in leaves) == n


@compiled
@pytest.mark.parametrize("budget", [4, 10_000])
@pytest.mark.parametrize(("n", "width", "n_box"), SIZES)
def test_every_build_decides_alike(kernels, n, width, n_box, budget):
    reference = load_kernels("numba")
    points = make_points(n, width, seed=n)
    rng = np.random.default_rng(1)
    for total in (1, max(1, n // 3), 0.37 * n):  # whole numbers, and one that is not
        draws = rng.dirichlet(np.ones(n)) * 0.5 + 0.5 / n
        inclusion = np.minimum(draws * total, 0.999)
        uniforms = rng.random((2, n))
        found = []
        for build in (reference, kernels):
            order, starts, boxes = tree_of(build, points, n_box)
            values = inclusion[order]
            distance = build["local_pivotal"](
                points[order], values, uniforms, budget, starts, boxes, True
            )
            found.append((order, starts, boxes, values, distance))
        for ours, theirs in zip(found[1], found[0], strict=True):
            assert_array_equal(ours, theirs)


def test_points_whose_distances_overflow_are_decided(kernels):
    points = np.array([[3e38], [-3e38], [3e38], [-3e38]], dtype=np.float32)
    order, starts, boxes = tree_of(kernels, points, 1)
    values = np.full(4, 0.5)
    uniforms = np.random.default_rng(0).random((2, 4))
    with np.errstate(over="ignore"):  # interpreted kernels would warn
        kernels["local_pivotal"](points[order], values, uniforms, 4, starts, boxes, True)
    assert sorted(values) == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("n", [1, 30, 511, 512, 1300])
def test_costs_are_sums_of_the_nearer_distance(kernels, n):
    distances, nearest, candidates = make_distances(n, seed=n)
    costs = np.full(candidates.size, np.nan)
    kernels["assignment_costs"](distances, nearest, candidates, costs, 1, candidates.size)
    expected = np.minimum(distances[candidates], nearest).sum(axis=1, dtype=np.float64)
    # Blocks are summed in float32; everything is where kernels are interpreted.
    np.testing.assert_allclose(costs[1:], expected[1:], rtol=1e-5)
    assert np.isnan(costs[0])  # outside start .. stop


@compiled
@pytest.mark.parametrize("n", [30, 512, 1300])
def test_every_build_chooses_alike(kernels, n):
    found = []
    for build in (load_kernels("numba"), kernels):
        distances, nearest, candidates = make_distances(n, seed=n)
        costs, fresh = np.empty(candidates.size), np.empty(candidates.size, dtype=np.int64)
        picked = np.empty(6, dtype=np.int64)
        picked[0] = 2
        np.minimum(nearest, distances[candidates[2]], out=nearest)
        build["assignment_costs"](distances, nearest, candidates, costs, 0, candidates.size)
        first = costs.copy()
        n_evaluated = build["lazy_greedy"](distances, nearest, candidates, costs, fresh, picked, 1)
        found.append((first, picked, costs, nearest, fresh, n_evaluated))
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert_array_equal(ours, theirs)
    assert_array_equal(found[1][1], plain_greedy(*make_distances(n, seed=n), 2, 6))


def plain_greedy(distances, nearest, candidates, first, n_picked):
    """Evaluate every candidate for every pick, in float64."""
    rows, nearest = distances[candidates].astype(np.float64), nearest.astype(np.float64)
    chosen = [first]
    while len(chosen) < n_picked:
        nearest = np.minimum(nearest, rows[chosen[-1]])
        costs = np.minimum(rows, nearest).sum(axis=1)
        costs[chosen] = np.inf
        chosen.append(int(costs.argmin()))
    return chosen


def make_distances(n, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3))
    distances = np.linalg.norm(rows[:, None] - rows, axis=2).astype(np.float32)
    nearest = rng.uniform(0.5, 5.0, size=n).astype(np.float32)
    return distances, nearest, rng.permutation(n)[: max(1, 2 * n // 3)]


@compiled
@pytest.mark.parametrize("n", [5, 100, 700])
def test_every_build_searches_coarse_distances_as_numba_does(kernels, n):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(n, 12)).astype(np.float32)
    seen = (rng.random(n) < 0.9).astype(np.uint8)
    some = np.flatnonzero(seen)
    squares = np.einsum("kd,kd->k", rows, rows)
    uniforms = rng.random((min(4, some.size), 7))
    found = []
    for build in (load_kernels("numba"), kernels):
        distances = np.zeros((n, n), dtype=np.uint16)
        part = np.empty((some.size, n), dtype=np.uint16)
        build["coarse_rows"](rows[some] @ rows.T, squares[some], squares, seen, part)
        build["write_cross"](distances, some, part)
        nearest = np.where(seen, np.uint16(0x7F7F), np.uint16(0))
        picked = np.empty(uniforms.shape[0], dtype=np.int64)
        build["stochastic_greedy"](distances, nearest, some, uniforms, picked)
        found.append((distances, nearest, picked))
    for one, other in zip(*found, strict=True):
        assert_array_equal(one, other)
    distances = found[1][0].astype(np.uint32)[np.ix_(some, some)]
    exact = np.linalg.norm(rows[some, None] - rows[None, some], axis=2)
    assert_array_equal(np.diagonal(distances), 0)
    np.testing.assert_allclose((distances << 16).view(np.float32), exact, rtol=2**-8, atol=2e-3)
