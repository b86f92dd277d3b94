"""Designs of exact inclusion, against enumeration of all samples and plain Python."""

import itertools
from collections import Counter

import numpy as np
import pytest
import scipy.spatial
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.draws.designs import draw_by_design
from cvrcore.draws.pivotal import pivotal_pairs, pivotal_sample, spatial_balance
from cvrcore.draws.pps import capped_inclusion, systematic_sample


def capped_by_steps(scores, size):
    """Cap at 1, share out the rest, repeat."""
    inclusion, free, left = np.zeros(scores.size), np.ones(scores.size, dtype=bool), float(size)
    while True:
        inclusion[free] = left * scores[free] / scores[free].sum()
        over = free & (inclusion > 1)
        if not over.any():
            return inclusion
        inclusion[over], free, left = 1.0, free & ~over, left - over.sum()


@pytest.mark.parametrize("seed", range(20))
def test_capped_inclusion_is_the_repeated_rule(seed):
    rng = np.random.default_rng(seed)
    scores = rng.lognormal(sigma=2.0, size=30)
    size = int(rng.integers(1, 30))
    inclusion = capped_inclusion(scores, size)
    assert_allclose(inclusion, capped_by_steps(scores, size), rtol=1e-12)
    assert_allclose(inclusion.sum(), size, rtol=1e-13)


def test_capped_inclusion_at_the_edges():
    assert_array_equal(capped_inclusion(np.array([0.0, 0.0, 0.0]), 2), np.full(3, 2 / 3))
    assert_array_equal(capped_inclusion(np.array([5.0, 0.0, 0.0]), 2), [1.0, 0.5, 0.5])
    assert_array_equal(capped_inclusion(np.ones(3), 3), np.ones(3))
    assert_array_equal(capped_inclusion(np.ones(3), 7), np.ones(3))
    huge = capped_inclusion(np.array([1e308, 1e308, 1e-300, 1e308]), 2)
    assert_allclose(huge, [2 / 3, 2 / 3, 0.0, 2 / 3], atol=1e-12)


def systematic_law(inclusion):
    """Return the exact probability of each sample, over all orders and starting points."""
    law = Counter()
    orders = list(itertools.permutations(range(len(inclusion))))
    for order in orders:
        ends = np.cumsum(inclusion[list(order)])
        cuts = np.unique(np.concatenate([[0.0, 1.0], (ends % 1.0).round(12) % 1.0]))
        for low, high in itertools.pairwise(cuts):
            u = (low + high) / 2
            points = u + np.arange(np.ceil(ends[-1]))
            points = points[points < ends[-1]]
            sample = frozenset(order[i] for i in np.searchsorted(ends, points, side="right"))
            law[sample] += (high - low) / len(orders)
    return law


def pivotal_law(inclusion, features):
    """Return the exact probability of each sample: every first client, both outcomes."""
    law = Counter()
    distance = scipy.spatial.distance.cdist(features, features)

    def decide(values, chance):
        undecided = [k for k, v in values.items() if 1e-12 < v < 1 - 1e-12]
        if not undecided:
            law[frozenset(k for k, v in values.items() if v > 0.5)] += chance
            return
        if len(undecided) == 1:
            (k,) = undecided
            decide({**values, k: 1.0}, chance * values[k])
            decide({**values, k: 0.0}, chance * (1 - values[k]))
            return
        for i in undecided:
            j = min((k for k in undecided if k != i), key=lambda k: distance[i, k])
            a, b, part = values[i], values[j], chance / len(undecided)
            if a + b < 1:
                decide({**values, i: a + b, j: 0.0}, part * a / (a + b))
                decide({**values, i: 0.0, j: a + b}, part * b / (a + b))
            else:
                decide({**values, i: 1.0, j: a + b - 1}, part * (1 - b) / (2 - a - b))
                decide({**values, i: a + b - 1, j: 1.0}, part * (1 - a) / (2 - a - b))

    decide(dict(enumerate(inclusion)), 1.0)
    return law


def included(law, n):
    return [sum(p for sample, p in law.items() if k in sample) for k in range(n)]


def fits(draw, law, n_draws):
    """Chi-square of the frequencies of whole samples; refuses one that cannot occur."""
    counts = Counter(frozenset(draw().tolist()) for _ in range(n_draws))
    samples = [sample for sample, p in law.items() if p > 1e-9]
    assert set(counts) <= set(samples)
    expected = np.array([law[sample] for sample in samples])
    observed = np.array([counts[sample] for sample in samples])
    common = expected * n_draws >= 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    kept = expected > 0
    result = scipy.stats.chisquare(observed[kept], n_draws * expected[kept] / expected.sum())
    assert result.pvalue > 1e-4, result


CASES = [
    [0.5, 0.5, 0.5, 0.5],
    [0.9, 0.4, 0.3, 0.2, 0.2],
    [1.0, 0.6, 0.7, 0.3, 0.4],
    [0.3, 0.4, 0.45],
]


@pytest.mark.parametrize("inclusion", CASES)
def test_systematic_samples_follow_the_enumerated_law(inclusion):
    inclusion = np.array(inclusion)
    law = systematic_law(inclusion)
    assert_allclose(included(law, inclusion.size), inclusion, atol=1e-9)
    rng = np.random.default_rng(0)
    fits(lambda: systematic_sample(inclusion, rng), law, 8000)


@pytest.mark.parametrize("n_features", [1, 3, 12])
@pytest.mark.parametrize("inclusion", CASES)
def test_pivotal_samples_follow_the_enumerated_law(inclusion, n_features):
    inclusion = np.array(inclusion)
    features = np.random.default_rng(5).normal(size=(inclusion.size, n_features))
    law = pivotal_law(inclusion, features)
    assert_allclose(included(law, inclusion.size), inclusion, atol=1e-12)
    rng = np.random.default_rng(1)
    fits(lambda: pivotal_sample(inclusion, features, rng), law, 6000)


@pytest.mark.parametrize("neighbours", ["exact", "approximate"])
def test_inclusion_is_exact_with_any_neighbours(neighbours):
    rng = np.random.default_rng(2)
    # At least 2 %: the error of rarer events is not normal.
    inclusion = capped_inclusion(0.5 + rng.lognormal(sigma=1.5, size=40), 7)
    features = rng.normal(size=(40, 8))
    n_draws, counts = 12_000, np.zeros(40)
    for _ in range(n_draws):
        drawn = pivotal_sample(inclusion, features, rng, neighbours)
        assert drawn.size == 7
        counts[drawn] += 1
    error = 4 * np.sqrt(inclusion * (1 - inclusion) / n_draws) + 1e-12
    assert (np.abs(counts / n_draws - inclusion) <= error).all()


def test_frequencies_over_a_hundred_thousand_draws():
    rng = np.random.default_rng(11)
    inclusion = np.array([0.9, 0.05, 0.4, 0.3, 0.65, 0.2, 0.5])
    features, n_draws, counts = rng.normal(size=(7, 2)), 100_000, np.zeros(7)
    for _ in range(n_draws):
        counts[pivotal_sample(inclusion, features, rng)] += 1
    error = np.sqrt(inclusion * (1 - inclusion) / n_draws)
    assert (np.abs(counts / n_draws - inclusion) <= 4 * error).all()


def test_equal_rows_and_no_columns_are_drawn_evenly():
    rng = np.random.default_rng(3)
    for features in (np.zeros((6, 2)), np.zeros((6, 0)), np.full((6, 1), 7.0)):
        pairs = Counter(
            tuple(pivotal_sample(np.full(6, 1 / 3), features, rng)) for _ in range(3000)
        )
        assert len(pairs) == 15  # every pair occurs: ties are broken at random


def test_extreme_rows_are_drawn_too():
    rng = np.random.default_rng(4)
    features = np.array([[1e300, 0.0], [-1e300, 1.0], [0.0, 0.0], [1e-300, 0.0]])
    assert pivotal_sample(np.full(4, 0.5), features, rng).size == 2


@pytest.mark.parametrize("size", [1, 9, 100, 999])
def test_sizes_are_exact_at_many_clients(size):
    rng = np.random.default_rng(size)
    features = rng.normal(size=(1000, 5))
    for _ in range(5):
        inclusion = capped_inclusion(rng.lognormal(sigma=2.0, size=1000), size)
        for drawn in (
            pivotal_sample(inclusion, features, rng),
            pivotal_sample(inclusion, features, rng, "approximate"),
            systematic_sample(inclusion, rng),
        ):
            assert drawn.size == size
            assert inclusion[drawn].all()
            assert set(np.flatnonzero(inclusion == 1.0)) <= set(drawn.tolist())


def test_random_sizes_stay_next_to_the_sum():
    rng = np.random.default_rng(6)
    inclusion = np.full(7, 0.35)  # sums to 2.45
    sizes = [pivotal_sample(inclusion, rng.normal(size=(7, 2)), rng).size for _ in range(2000)]
    assert set(sizes) == {2, 3}
    assert abs(np.mean(sizes) - 2.45) < 4 * 0.5 / 2000**0.5


def test_estimates_of_smooth_functions_vary_less():
    """By hand for a line of evenly spaced clients: one in each half, nearly."""
    rng = np.random.default_rng(7)
    place = rng.random((200, 2))
    worth = np.sin(3 * place[:, 0]) + place[:, 1] ** 2
    inclusion = np.full(200, 0.1)

    def variance(draw):
        return np.var([worth[draw()].sum() for _ in range(600)])

    balanced = variance(lambda: pivotal_sample(inclusion, place, rng))
    near = variance(lambda: pivotal_sample(inclusion, place, rng, "approximate"))
    random = variance(lambda: rng.choice(200, 20, replace=False))
    assert balanced < 0.3 * random
    assert near < 0.4 * random


def test_a_line_of_pairs_is_known_by_hand():
    """Clients in far-apart pairs of probability a half: one of each pair, variance by hand."""
    features = np.repeat(np.arange(10) * 100.0, 2)[:, None] + np.tile([0.0, 1.0], 10)[:, None]
    worth = np.arange(20.0)
    rng = np.random.default_rng(8)
    sums = []
    for _ in range(2000):
        drawn = pivotal_sample(np.full(20, 0.5), features, rng)
        assert_array_equal(np.bincount(drawn // 2, minlength=10), np.ones(10))
        sums.append(worth[drawn].sum())
    # Ten independent choices between x and x + 1: variance 10 / 4.
    assert abs(np.var(sums) - 2.5) < 4 * 2.5 * np.sqrt(2 / 2000)


def test_balance_is_better_and_its_loss_is_small():
    rng = np.random.default_rng(9)
    features = rng.normal(size=(3000, 4))
    inclusion = np.full(3000, 0.01)
    exact, near, even = [], [], []
    distances = []
    for _ in range(12):
        a, near_by = pivotal_pairs(inclusion, features, rng, "exact")
        b, farther = pivotal_pairs(inclusion, features, rng, "approximate")
        exact.append(spatial_balance(a, inclusion, features))
        near.append(spatial_balance(b, inclusion, features))
        even.append(spatial_balance(systematic_sample(inclusion, rng), inclusion, features))
        distances.append((near_by, farther))
    assert np.mean(exact) < 0.7 * np.mean(even)
    assert np.mean(near) < 0.8 * np.mean(even)
    near_by, farther = np.mean(distances, axis=0)
    assert near_by < farther < 1.5 * near_by


def test_designs_state_their_inclusion():
    inclusion = np.array([0.5, 0.0, 1.0, 0.5])
    for design in ("systematic", "pivotal", "poisson"):
        picked = draw_by_design(
            design, inclusion, np.random.default_rng(0), round=3, features=np.eye(4)
        )
        assert_array_equal(picked.inclusion, inclusion)
        assert 2 in picked.clients
        assert 1 not in picked.clients
        assert picked.round == 3


# -- the policy ----------------------------------------------------------------


def test_policy_draws_with_the_inclusion_that_it_states():
    weights = np.array([10.0, 20, 30, 40, 0, 100])
    selector = cvrcore.make_selector("pivotal", 6, 3, weights=weights, n_features=2, seed=0)
    here = np.array([1, 1, 1, 1, 1, 1], dtype=bool)
    counts = np.zeros(6)
    for _ in range(3000):
        picked = selector.select(here)
        assert_allclose(picked.inclusion, capped_inclusion(weights, 3), rtol=1e-12)
        counts[picked.clients] += 1
    expected = picked.inclusion
    assert (np.abs(counts / 3000 - expected) <= 4 * np.sqrt(expected * (1 - expected) / 3000)).all()


def test_policy_learns_rows_and_stands_in_for_the_unseen():
    selector = cvrcore.make_selector("pivotal", 4, 2, n_features=1, law="even", seed=0)
    first = selector.select()
    selector.observe(first.clients, models=[[2.0], [4.0]])
    unseen = np.setdiff1d(np.arange(4), first.clients)
    assert_allclose(selector.rows[first.clients].ravel(), [2.0, 4.0])
    assert_allclose(selector.rows[unseen].ravel(), [3.0, 3.0])  # equal sizes, equal odds
    second = selector.select(first.clients)
    selector.observe(second.clients[:1], models=[[0.0]])
    before = dict(zip(first.clients.tolist(), [2.0, 4.0], strict=True))
    assert selector.rows[second.clients[0], 0] == before[int(second.clients[0])] / 2


def test_policy_with_given_rows_needs_no_models():
    selector = cvrcore.make_selector(
        "pivotal", 4, 2, features=[[0.0], [0.1], [9.0], [9.1]], law=[1.0, 1.0, 1.0, 1.0], seed=0
    )
    assert selector.needs == frozenset()
    for _ in range(20):
        picked = selector.select()
        assert (picked.clients < 2).sum() == 1
        selector.observe(picked.clients)
    selector.set_features([[0.0], [9.0], [0.1], [9.1]])
    for _ in range(20):
        assert selector.select().clients.sum() % 2  # one of {0, 2}, one of {1, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "n_features or features must be given"),
        ({"n_features": 2, "law": "big"}, "law must be one of 'size', 'even'"),
        ({"n_features": 2, "law": [1, 2]}, r"law must have shape \(4,\)"),
        ({"n_features": 2, "law": [0, 0, 0, 0]}, "law must hold a positive score"),
        ({"features": np.ones((3, 2))}, r"features must have shape \(4, any\)"),
        ({"n_features": 2, "blend": 0}, "blend must be positive"),
        ({"n_features": 2, "neighbours": "far"}, "neighbours must be one of"),
    ],
)
def test_policy_refuses_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        cvrcore.make_selector("pivotal", 4, 2, **options)
