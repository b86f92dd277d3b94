"""Unbiased pairs of policy and aggregator, by the mean of ten thousand draws."""

import numpy as np
import pytest

import cvrcore
from fl.experiments.definitions.variance import AGGREGATORS, POLICIES, draws, is_unbiased, problem

N_DRAWS = 10_000


@pytest.mark.parametrize("policy", [name for name in POLICIES if is_unbiased(name, "importance")])
def test_mean_step_is_that_of_everybody(policy):
    names = [name for name in AGGREGATORS if is_unbiased(policy, name)]
    steps, full = draws(policy, N_DRAWS, aggregators=names)
    assert len(names) >= 4
    for name, drawn in steps.items():
        error = drawn.std(axis=0, ddof=1) / np.sqrt(N_DRAWS)
        away = np.abs(drawn.mean(axis=0) - full)
        assert (away <= 4 * error + 1e-9).all(), name


@pytest.mark.parametrize(
    ("policy", "aggregator", "n_draws"),
    [
        ("fedcvr-bolt", "sizes", 3000),
        ("oort", "importance", 3000),  # some have no chance at all
        ("power-of-choice", "importance, self-normalised", 200),  # chances by stale losses
    ],
)
def test_a_biased_pair_is_found_out(policy, aggregator, n_draws):
    """The same test must fail where the algebra says so."""
    assert not is_unbiased(policy, aggregator)
    steps, full = draws(policy, n_draws, aggregators=[aggregator])
    drawn = steps[aggregator]
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - full) > 4 * error).any()


def test_oort_leaves_some_without_a_chance():
    """What marks its pairs as biased, in the state that is drawn from."""
    _, weights, _ = problem()
    selector = cvrcore.make_selector("oort", weights.size, 8, weights=weights, seed=0)
    for _ in range(30):
        picked = selector.select()
        selector.observe(picked.clients, losses=np.ones(8))
    assert (selector.select().inclusion == 0).any()


def test_memory_and_strata_reduce_the_variance():
    # 10,000 draws gave 0.19 and 0.35 of FedAvg's.
    names = ["sizes", "importance", "memory"]
    uniform, _ = draws("uniform", 1000, aggregators=names)
    stratified, _ = draws("coalitions, by size", 1000, aggregators=names)
    unit = uniform["sizes"].var(axis=0).sum()
    assert uniform["memory"].var(axis=0).sum() < 0.4 * unit
    assert stratified["importance"].var(axis=0).sum() < 0.6 * unit
