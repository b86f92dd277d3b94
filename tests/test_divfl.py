"""DivFL's greedy choice against brute force and plain greedy."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from cvrcore.selectors.divfl import DivFLSelector


def seen(rows, n_select, seed=0, **options):
    """A selector that has seen every client's update once."""
    selector = DivFLSelector(len(rows), n_select, n_features=rows.shape[1], seed=seed, **options)
    while not selector._seen.all():
        picked = selector.select().clients
        selector.observe(picked, updates=rows[picked])
    return selector


def cost(distances, chosen):
    return distances[list(chosen)].min(axis=0).sum()


def plain_greedy(distances, n_select):
    chosen = []
    for _ in range(n_select):
        rest = [i for i in range(len(distances)) if i not in chosen]
        chosen.append(min(rest, key=lambda i: cost(distances, [*chosen, i])))
    return chosen


@pytest.mark.parametrize("seed", range(6))
def test_lazy_greedy_is_plain_greedy_and_near_the_best_of_all_sets(seed):
    rows = np.random.default_rng(seed).normal(size=(12, 3))
    distances = cdist(rows, rows)
    found = seen(rows, 4, seed).select().clients
    assert sorted(found) == sorted(plain_greedy(distances, 4))
    best = min(cost(distances, s) for s in itertools.combinations(range(12), 4))
    single = min(cost(distances, [i]) for i in range(12))
    # Greedy keeps at least 1 - 1/e of the reduction that the best set reaches after the first.
    assert single - cost(distances, found) >= (1 - 1 / np.e) * (single - best) - 1e-9


def test_large_choice_equals_plain_greedy_with_planted_groups():
    rng = np.random.default_rng(1)
    rows = 10 * rng.normal(size=(8, 5))[np.repeat(np.arange(8), 20)] + rng.normal(size=(160, 5))
    selection = seen(rows, 20).select()
    distances = cdist(rows, rows).astype(np.float32).astype(np.float64)
    assert_allclose(
        cost(distances, selection.clients), cost(distances, plain_greedy(distances, 20)), rtol=1e-6
    )
    assert set(selection.clients // 20) == set(range(8))


def test_coalitions_name_the_nearest_chosen_client():
    rows = np.random.default_rng(2).normal(size=(15, 4))
    selection = seen(rows, 5).select()
    nearest = selection.clients[np.argmin(cdist(rows[selection.clients], rows), axis=0)]
    assert_array_equal(selection.clients[selection.coalitions], nearest)


def test_clients_never_seen_come_first_and_only_eligible_ones_are_chosen():
    rows = np.random.default_rng(3).normal(size=(10, 2))
    selector = DivFLSelector(10, 4, n_features=2, seed=0)
    first = selector.select(available=[0, 1, 2, 3, 4]).clients
    selector.observe(first, updates=rows[first])
    assert set(first) <= set(range(5))
    second = selector.select(available=[0, 1, 2, 3, 4, 5]).clients
    assert set(second) >= ({0, 1, 2, 3, 4, 5} - set(first))


def test_changed_rows_change_their_distances_only():
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(30, 4))
    selector = seen(rows, 6)
    for _ in range(5):
        picked = selector.select().clients
        rows[picked] = rng.normal(size=(picked.size, 4))
        selector.observe(picked, updates=rows[picked])
    assert_allclose(selector._measured().distances, cdist(rows, rows), atol=2e-6)


# -- random candidates --------------------------------------------------------------


def grouped(n_clients, width=6, seed=5):
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(15, width))
    return centres[rng.integers(0, 15, n_clients)] + rng.normal(size=(n_clients, width))


def test_coarse_distances_are_off_by_less_than_their_rounding():
    rows = grouped(300)
    selector = seen(rows, 100, epsilon=0.2)
    for _ in range(3):
        picked = selector.select().clients
        rows[picked] += np.random.default_rng(6).normal(size=(picked.size, 6))
        selector.observe(picked, updates=rows[picked])
    bits = selector._measured().distances.astype(np.uint32) << 16
    # Eight bits of fraction, rounded to nearest; float32 products on top.
    assert_allclose(bits.view(np.float32), cdist(rows, rows), rtol=2**-8 + 1e-4, atol=5e-3)
    assert_array_equal(selector._measured().distances, selector._measured().distances.T)


def test_random_candidates_lose_less_than_stated():
    """The expected reduction is at least 1 - 1/e - epsilon of the best; greedy's is at most 1."""
    rows = grouped(240)
    distances = cdist(rows, rows)
    alone = distances.sum(axis=1).max()  # any reference point will do: the worst single client
    greedy = alone - cost(distances, plain_greedy(distances, 12))
    found = []
    for seed in range(20):
        chosen = seen(rows, 12, seed, epsilon=0.2).select().clients
        assert len(set(chosen.tolist())) == 12
        found.append((alone - cost(distances, chosen)) / greedy)
    assert np.mean(found) > 0.97  # far above the bound, 0.43
    assert np.mean(found) < 1.0


def test_every_candidate_is_as_likely_to_be_tried():
    """Equal updates have equal costs: the first of the tried is taken, which is uniform."""
    rows, counts = np.ones((12, 2)), np.zeros(12)
    selector = seen(rows, 3, epsilon=0.2)
    for _ in range(2000):
        counts[selector.select().clients] += 1
    error = np.sqrt(2000 * 0.25 * 0.75)
    assert np.abs(counts - 500).max() < 4.5 * error


def test_only_eligible_clients_are_tried():
    rows = grouped(40)
    selector = seen(rows, 6, epsilon=0.5)
    available = np.arange(0, 40, 3)
    for _ in range(20):
        assert set(selector.select(available).clients) <= set(available.tolist())


def test_memory_is_bounded_as_stated():
    n, width = 2_100, 8
    selector = DivFLSelector(n, n, n_features=width, seed=0)
    picked = selector.select().clients
    selector.observe(picked, updates=grouped(n, width))
    selector.n_select = 20
    selector.select()
    assert selector.nbytes <= 2 * n**2 + 12 * n * width + 60 * n
    exact = DivFLSelector(200, 200, n_features=width, seed=0)
    exact.observe(exact.select().clients, updates=grouped(200, width))
    exact.n_select = 20
    exact.select()
    assert exact.nbytes <= 4 * 200**2 + 8 * 200 * width + 60 * 200


def test_an_interrupted_observe_leaves_the_distances_before():
    rows = grouped(60)
    selector = seen(rows, 12, epsilon=0.2)
    picked = selector.select().clients
    before = selector._measured().distances.copy()
    facility, measure = selector._facility, selector._facility.measure

    def cut(*args):
        measure(*args)
        raise KeyboardInterrupt

    facility.measure = cut
    with pytest.raises(KeyboardInterrupt):
        selector.observe(picked, updates=rows[picked] + 1.0)
    del facility.measure
    assert_array_equal(facility.distances, before)
    assert_allclose(facility.rows, rows, rtol=1e-6)
    selector.observe(picked, updates=rows[picked])


def test_too_many_clients_are_refused():
    with pytest.raises(ValueError, match="n_clients must be at most 20000 for divfl"):
        DivFLSelector(20_001, 2, n_features=1)
    selector = DivFLSelector(20_000, 2, n_features=1)
    with pytest.raises(ValueError, match="at most 20000"):
        selector.resize(20_001, [1.0])
    assert selector.n_clients == 20_000


def test_updates_whose_distances_overflow_float32_are_refused():
    selector = DivFLSelector(4, 2, n_features=1, seed=0)
    picked = selector.select().clients
    with pytest.raises(ValueError, match="updates must"):
        selector.observe(picked, updates=[[1e39], [-1e39]])
    selector.observe(picked, updates=[[1e17], [-1e17]])
