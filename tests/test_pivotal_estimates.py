"""Estimates from pivotal samples: inclusion, variances by hand and by enumeration."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from test_pivotal import pivotal_law

from cvrcore.draws.pivotal import pivotal_sample
from cvrcore.draws.pps import capped_inclusion
from fl.experiments.definitions import variance

N_DRAWS = 100_000


def drawn_sums(inclusion, features, values, seed, neighbours="exact", n_draws=N_DRAWS):
    """Return Horvitz-Thompson estimates of the total of `values`, and how often each came."""
    rng, weights = np.random.default_rng(seed), values / inclusion
    sums, counts = np.empty(n_draws), np.zeros(inclusion.size)
    for i in range(n_draws):
        drawn = pivotal_sample(inclusion, features, rng, neighbours)
        counts[drawn] += 1
        sums[i] = weights[drawn].sum()
    return sums, counts


@pytest.mark.parametrize("neighbours", ["exact", "approximate"])
def test_frequencies_are_the_stated_inclusion(neighbours):
    rng = np.random.default_rng(0)
    inclusion = capped_inclusion(rng.lognormal(sigma=1.0, size=12), 4)
    features = rng.normal(size=(12, 3))
    values = np.cos(features[:, 0]) + features[:, 1] ** 2
    sums, counts = drawn_sums(inclusion, features, values, 1, neighbours)
    error = np.sqrt(inclusion * (1 - inclusion) / N_DRAWS)
    assert (np.abs(counts / N_DRAWS - inclusion) <= 4 * error + 1e-12).all()
    assert abs(sums.mean() - values.sum()) <= 4 * sums.std() / np.sqrt(N_DRAWS)


def simple_variance(values, size):
    """Return the variance of the estimated total under simple random sampling, by formula."""
    n = values.size
    return n**2 * (1 - size / n) * values.var(ddof=1) / size


def law_variance(law, inclusion, values):
    sums = {sample: sum(values[k] / inclusion[k] for k in sample) for sample in law}
    mean = sum(p * sums[sample] for sample, p in law.items())
    assert_allclose(mean, values.sum(), rtol=1e-12)
    return sum(p * (sums[sample] - mean) ** 2 for sample, p in law.items())


def variance_fits(sums, expected):
    """Whether a sample variance is within four standard errors, from the fourth moment."""
    away = (sums - sums.mean()) ** 2
    return abs(away.mean() - expected) <= 4 * away.std() / np.sqrt(sums.size) + 1e-12


def test_two_near_pairs_by_hand():
    """Clients at 0, 1, 3, 4 with probability 1/2: one of each pair, so four samples alike.

    Twice the sum of x over the sample: each pair adds a variance of 4 / 4, together 2. Simple
    random sampling of 2 in 4 has 4^2 (1 - 2/4) / 2 * 10/3 = 40/3.
    """
    place = np.array([0.0, 1.0, 3.0, 4.0])
    sums, _ = drawn_sums(np.full(4, 0.5), place[:, None], place, 2)
    assert variance_fits(sums, 2.0)
    assert_allclose(simple_variance(place, 2), 40 / 3)


def test_a_pair_and_a_far_client_by_hand():
    """Clients at 0, 1, 9 with probabilities 1/4, 1/4, 1/2, of which one is drawn.

    One client is drawn whatever the pairing, k with its probability: the estimates are 4 x 0,
    4 x 1 and 2 x 9, their mean 10 and variance 100/4 + 36/4 + 64/2 = 66.
    """
    place = np.array([0.0, 1.0, 9.0])
    sums, _ = drawn_sums(np.array([0.25, 0.25, 0.5]), place[:, None], place, 3)
    assert variance_fits(sums, 66.0)


def test_unequal_pairs_by_hand():
    """Far-apart pairs of probabilities (1/4, 3/4): one client of each, alone with its chance.

    A pair (x, y) adds the variance 1/4 (4x)^2 + 3/4 (4y/3)^2 - (x + y)^2.
    """
    place = np.array([0.0, 1.0, 50.0, 51.0])
    inclusion = np.array([0.25, 0.75, 0.25, 0.75])
    expected = sum(
        0.25 * (4 * x) ** 2 + 0.75 * (4 * y / 3) ** 2 - (x + y) ** 2
        for x, y in (place[:2], place[2:])
    )
    sums, _ = drawn_sums(inclusion, place[:, None], place, 4)
    assert variance_fits(sums, expected)


def smooth(features):
    return np.sin(3 * features[:, 0]) + features[:, 1] ** 2


@pytest.mark.parametrize("case", range(2))
def test_variance_of_a_smooth_function_is_that_of_the_enumerated_law(case):
    rng = np.random.default_rng(10 + case)
    features = rng.random((6, 2))
    inclusion = np.full(6, 0.5) if case else capped_inclusion(rng.random(6) + 0.3, 3)
    expected = law_variance(pivotal_law(inclusion, features), inclusion, smooth(features))
    sums, _ = drawn_sums(inclusion, features, smooth(features), case)
    assert variance_fits(sums, expected)


def test_smooth_functions_vary_less_than_under_simple_random_sampling():
    """Exact variances of both laws, over random places of six clients."""
    inclusion, samples = np.full(6, 0.5), list(itertools.combinations(range(6), 3))
    even = {frozenset(sample): 1 / len(samples) for sample in samples}
    ratios = []
    for seed in range(12):
        features = np.random.default_rng(seed).random((6, 2))
        values = smooth(features)
        simple = law_variance(even, inclusion, values)
        assert_allclose(simple, simple_variance(values, 3))
        ratios.append(law_variance(pivotal_law(inclusion, features), inclusion, values) / simple)
    assert np.mean(ratios) < 0.8
    assert np.median(ratios) < 0.8


def test_unbiased_pairs_on_the_quadratic(monkeypatch):
    """Means of 3,000 steps within four and a half standard errors of the full one."""
    losses, _, _ = variance.problem()
    monkeypatch.setattr(
        variance, "POLICIES", {"balanced": ("pivotal", {"n_features": variance.DIM})}
    )
    factor = {"form": "horvitz-thompson", "features": losses.centre}
    pairs = {
        "importance": ("importance", {}),
        "memory": ("memory", {}),
        "factor memory": ("factor-memory", factor),
        "sizes": ("sizes", {}),
    }
    monkeypatch.setattr(variance, "AGGREGATORS", pairs)
    steps, full = variance.draws("balanced", 3000, seed=1, aggregators=pairs)

    def errors(name):
        rows = steps[name]
        return np.abs(rows.mean(axis=0) - full) / (rows.std(axis=0, ddof=1) / np.sqrt(len(rows)))

    for name in ("importance", "memory", "factor memory"):
        assert errors(name).max() < 4.5, name
    # A draw by size that is averaged by size counts large clients twice.
    assert errors("sizes").max() > 10
