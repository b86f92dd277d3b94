import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from cvrcore.selectors.power_of_choice import PowerOfChoiceSelector, gumbel_top_k, weighted_top_k

SIZES = np.array([1.0, 2.0, 4.0, 8.0, 3.0, 6.0])


def sequential_law(weights, size):
    """Probability of each ordered draw without replacement, by enumeration."""
    law = {}
    for order in itertools.permutations(range(len(weights)), size):
        probability, left = 1.0, weights.sum()
        for k in order:
            probability *= weights[k] / left
            left -= weights[k]
        law[order] = probability
    return law


def assert_follows(draws, law):
    seen = dict.fromkeys(law, 0)
    for draw in draws:
        seen[draw] += 1
    expected = np.array(list(law.values())) * len(draws)
    assert chisquare(list(seen.values()), expected * (len(draws) / expected.sum())).pvalue > 1e-4


def ask_and_select(selector, loss, available=None):
    asked = selector.probe(available)
    return selector.select(available, losses=loss[asked])


def test_gumbel_top_k_is_sequential_sampling():
    rng = np.random.default_rng(0)
    draws = [tuple(gumbel_top_k(np.log(SIZES), 3, rng).tolist()) for _ in range(20_000)]
    assert_follows(draws, sequential_law(SIZES, 3))


def test_gumbel_top_k_draws_weights_that_underflow():
    rng = np.random.default_rng(1)
    log_weights = np.array([0.0, -5000.0, -1e6, -np.inf])
    assert gumbel_top_k(log_weights, 3, rng).tolist() == [0, 1, 2]


@pytest.mark.parametrize("candidates", ["size", "uniform"])
def test_with_as_many_candidates_as_places_losses_do_not_matter(candidates):
    selector = PowerOfChoiceSelector(6, 3, SIZES, 2, n_candidates=3, candidates=candidates)
    loss = np.arange(6.0)[::-1] ** 3  # would rule if it were read
    weights = SIZES if candidates == "size" else np.ones(6)

    picks = [ask_and_select(selector, loss) for _ in range(6000)]

    assert_follows([tuple(p.clients.tolist()) for p in picks], sequential_law(weights, 3))
    assert_allclose(picks[0].probabilities, weights / weights.sum(), rtol=1e-12)
    if candidates == "uniform":
        assert_allclose(picks[0].inclusion, 0.5, rtol=1e-12)
    else:
        law = sequential_law(weights, 3)
        expected = [sum(p for drawn, p in law.items() if k in drawn) for k in range(6)]
        assert_allclose(picks[0].inclusion, expected, rtol=1e-12)


def test_candidates_include_clients_as_sequential_sampling_does():
    n_rounds = 6000
    selector = PowerOfChoiceSelector(6, 2, SIZES, seed=3)  # 4 candidates
    asked = np.array([selector.probe() for _ in range(n_rounds)])
    expected = np.zeros(6)
    for order, probability in sequential_law(SIZES, 4).items():
        expected[list(order)] += probability
    error = 4 * np.sqrt(expected * (1 - expected) / n_rounds)
    assert (np.abs(np.bincount(asked.ravel()) / n_rounds - expected) < error).all()


def test_picks_the_candidates_of_largest_loss():
    selector = PowerOfChoiceSelector(50, 5, seed=4)
    loss = np.random.default_rng(4).normal(size=50)
    for _ in range(50):
        asked = selector.probe()
        assert asked.size == 10
        picked = selector.select(losses=loss[asked])
        assert_array_equal(picked.clients, asked[np.argsort(-loss[asked])][:5])
        assert_array_equal(picked.scores[asked], loss[asked])
        assert np.isnan(np.delete(picked.scores, asked)).all()


def test_ties_fall_at_random():
    n_rounds = 3000
    selector = PowerOfChoiceSelector(4, 1, seed=5, n_candidates=4)
    loss = np.array([1.0, 7.0, 7.0, 7.0])
    first = [ask_and_select(selector, loss).clients[0] for _ in range(n_rounds)]
    counts = np.bincount(first, minlength=4)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-4


def test_clients_without_an_answer_are_picked_only_if_too_few_answered():
    selector = PowerOfChoiceSelector(4, 2, seed=6, n_candidates=4)
    enough = np.array([np.nan, -5.0, -9.0, np.nan])  # a negative loss beats no answer
    few = np.array([np.nan, np.nan, 0.1, np.nan])
    for _ in range(50):
        assert set(ask_and_select(selector, enough).clients) == {1, 2}
        assert 2 in ask_and_select(selector, few).clients


def test_candidates_gone_before_selection_are_replaced():
    selector = PowerOfChoiceSelector(10, 3, seed=7, n_candidates=4)
    for _ in range(50):
        asked = selector.probe()
        staying = np.setdiff1d(np.arange(10), asked[:2])
        picked = selector.select(staying, losses=np.ones(4))
        assert len(picked) == 3
        assert set(asked[2:]) <= set(picked.clients)
        assert not np.isin(asked[:2], picked.clients).any()


def test_select_without_probe_is_refused():
    selector = PowerOfChoiceSelector(4, 2, seed=8)
    with pytest.raises(ValueError, match=r"losses must be given to power-of-choice: call probe"):
        selector.select()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_candidates": 2}, "n_candidates must be at least 3, got 2"),
        ({"candidates": "loss"}, "candidates must be one of 'size', 'uniform', got 'loss'"),
    ],
)
def test_rejects_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        PowerOfChoiceSelector(10, 3, **options)


@pytest.mark.parametrize("n", [10, 600, 5_000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 80.0])
def test_the_fast_draw_of_candidates_is_the_plain_one(n, spread):
    """The same seed gives the same clients in the same order, and leaves the same stream."""
    for seed in range(30):
        weights = np.random.default_rng(seed).lognormal(3.0, spread, n)
        size = 1 + seed % (n // 2)
        fast, plain = np.random.default_rng(seed), np.random.default_rng(seed)
        found = weighted_top_k(weights, size, fast)
        assert_array_equal(found, gumbel_top_k(np.log(weights), size, plain))
        assert fast.bit_generator.state == plain.bit_generator.state


def test_the_fast_draw_keeps_clients_without_weight_last():
    weights = np.zeros(1000)
    weights[[3, 7]] = 1.0
    found = weighted_top_k(weights, 2, np.random.default_rng(0))
    assert set(found.tolist()) == {3, 7}
