"""Shapley values against exact enumeration, and what the two forms do with them."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cvrcore.selectors.shapley import ShapleySelector, shapley_values

P = 6


def game(seed):
    """A worth for every set of clients, with diminishing returns and noise."""
    rng = np.random.default_rng(seed)
    skill, jitter = rng.random(P), rng.normal(size=2**P) * 0.05

    def worth(group):
        code = sum(1 << k for k in group)
        return math.sqrt(sum(skill[k] for k in group)) + (jitter[code] if group else 0.0)

    return worth


def exact(worth):
    values = np.zeros(P)
    for order in itertools.permutations(range(P)):
        for place, k in enumerate(order):
            values[k] += worth(order[: place + 1]) - worth(order[:place])
    return values / math.factorial(P)


@pytest.mark.parametrize("seed", range(4))
def test_estimates_agree_with_enumeration(seed):
    worth = game(seed)
    found = shapley_values(
        worth, range(P), np.random.default_rng(seed), tolerance=0.0, max_permutations=6000
    )
    assert_allclose(found, exact(worth), atol=0.01)


def test_values_share_out_the_worth_of_all():
    worth = game(9)
    found = shapley_values(worth, range(P), np.random.default_rng(0), tolerance=0.0)
    assert_allclose(found.sum(), worth(range(P)) - worth(()), atol=1e-10)


def test_each_set_is_evaluated_once_and_no_more_than_there_are():
    calls = []

    def counted(group):
        calls.append(group)
        return game(1)(group)

    shapley_values(counted, range(P), np.random.default_rng(0))
    assert len(calls) == len(set(calls)) <= 2**P


def test_a_round_that_gained_nothing_is_worth_nothing_after_two_evaluations():
    calls = []

    def flat(group):
        calls.append(group)
        return 1.0

    assert_allclose(shapley_values(flat, [3, 5], np.random.default_rng(0)), [0.0, 0.0])
    assert calls == [(), (3, 5)]


def test_infinite_worth_is_refused():
    with pytest.raises(ValueError, match="utilities must be finite, got nan"):
        shapley_values(lambda group: np.nan, [1, 2], np.random.default_rng(0))


def run(selector, value, rounds):
    for _ in range(rounds):
        picked = selector.select().clients
        selector.observe(picked, utilities=lambda group: float(sum(value[k] for k in group)))
    return selector


def test_greedy_picks_the_most_valuable_after_everybody_was_seen():
    value = np.array([0.1, 0.9, 0.3, 0.8, 0.2, 0.7])
    selector = run(ShapleySelector(6, 2, seed=0), value, 3)
    assert sorted(selector.select().clients) == [1, 3]
    assert sorted(selector.select(available=[0, 2, 4, 5]).clients) == [2, 5]


def test_softmax_form_averages_and_draws_by_the_law():
    value = np.array([0.0, 2.0, 1.0, 0.0])
    selector = run(ShapleySelector(4, 2, form="softmax", memory=0.75, seed=0), value, 2)
    assert_allclose(selector._values, value, atol=1e-12)
    selector.select()
    picked = selector._pending.clients
    selector.observe(picked, utilities=np.full(2, 4.0))
    assert_allclose(selector._values[picked], 0.75 * value[picked] + 0.25 * 4.0)
    selection = selector.select()
    law = np.exp(selector._values) / np.exp(selector._values).sum()
    assert_allclose(selection.probabilities, law)
    assert_allclose(selection.inclusion.sum(), 2.0)
