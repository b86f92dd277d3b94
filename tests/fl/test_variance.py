"""Unbiased pairs of policy and aggregator, by the mean of ten thousand draws."""

import numpy as np
import pytest

from fl.reproduce.variance import AGGREGATORS, ESTIMATED, POLICIES, draws, is_unbiased

N_DRAWS = 10_000


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ESTIMATED])
def test_mean_step_is_that_of_everybody(policy):
    names = [name for name in AGGREGATORS if is_unbiased(policy, name)]
    steps, full = draws(policy, N_DRAWS, aggregators=names)
    assert len(names) >= 4
    for name, drawn in steps.items():
        error = drawn.std(axis=0, ddof=1) / np.sqrt(N_DRAWS)
        away = np.abs(drawn.mean(axis=0) - full)
        assert (away <= 4 * error + 1e-9).all(), name


def test_a_biased_pair_is_found_out():
    """The same test must fail where the algebra says so."""
    steps, full = draws("fedcvr-bolt", 3000, aggregators=["sizes"])
    drawn = steps["sizes"]
    error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - full) > 4 * error).any()


def test_memory_and_strata_reduce_the_variance():
    # 10,000 draws gave 0.19 and 0.35 of FedAvg's.
    names = ["sizes", "importance", "memory"]
    uniform, _ = draws("uniform", 1000, aggregators=names)
    stratified, _ = draws("coalitions, by size", 1000, aggregators=names)
    unit = uniform["sizes"].var(axis=0).sum()
    assert uniform["memory"].var(axis=0).sum() < 0.4 * unit
    assert stratified["importance"].var(axis=0).sum() < 0.6 * unit
