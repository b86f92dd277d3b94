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
    assert_allclose(selector._distances, cdist(rows, rows), atol=2e-6)


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
