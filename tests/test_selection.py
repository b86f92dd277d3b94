import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models

import cvrcore


def test_select_is_the_steps_in_order(backend):
    """Lines 3 to 9 of Algorithm 1, called one by one."""
    rng = np.random.default_rng(0)
    models, _ = planted_models(40, 12, 5, rng)
    weights, factor = rng.integers(1, 9, size=40), rng.normal(size=(12, 40, 40))
    cov = factor @ factor.transpose(0, 2, 1)
    available = rng.random(40) < 0.5

    picked = cvrcore.select(models, 5, weights, cov, temperature=50.0, available=available, seed=3)

    assert_array_equal(picked.coalitions, cvrcore.coalitions(models, 5, seed=3))
    assert_allclose(picked.scores, naive.variance_reduction(cov, weights), rtol=1e-10)
    law = naive.boltzmann(picked.scores, picked.coalitions, 50.0, available)
    assert_allclose(picked.probabilities, law, rtol=1e-9)
    assert available[picked.clients].all()
    assert_array_equal(np.sort(picked.coalitions[picked.clients]), np.arange(5))
    assert_allclose(picked.inclusion, picked.probabilities)


def test_without_covariance_every_score_is_d():
    models = flat_models(20, 6, np.random.default_rng(1))
    assert_array_equal(cvrcore.select(models, 4, seed=0).scores, np.full(20, 6.0))


def test_same_seed_same_selection(backend):
    models = flat_models(60, 30, np.random.default_rng(2))
    one, two = (cvrcore.select(models, 6, seed=7) for _ in range(2))
    assert_array_equal(one.clients, two.clients)
    many = {tuple(cvrcore.select(models, 6, seed=s).clients) for s in range(5)}
    assert len(many) == 5


def test_global_random_state_is_neither_read_nor_written():
    models = flat_models(20, 6, np.random.default_rng(3))
    clients = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        clients.append(cvrcore.select(models, 4, seed=0).clients)
        assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert_array_equal(*clients)


def test_client_without_data_is_never_picked():
    models = flat_models(12, 4, np.random.default_rng(4))
    weights = np.ones(12)
    weights[:9] = 0
    for seed in range(20):
        picked = cvrcore.select(models, 5, weights, seed=seed)
        assert sorted(picked.clients) == [9, 10, 11]


def test_float32_models_are_accepted_as_they_are():
    models = planted_models(30, 8, 3, np.random.default_rng(5))[0]
    double = cvrcore.select(models, 3, seed=0)
    single = cvrcore.select(models.astype(np.float32), 3, seed=0)
    assert naive.same_partition(double.coalitions, single.coalitions)
    assert single.scores.dtype == single.probabilities.dtype == np.float64
    assert single.clients.dtype == single.coalitions.dtype == np.int64


def test_repr_tells_round_clients_and_coalitions():
    picked = cvrcore.Selection(
        clients=np.array([3, 1]), coalitions=np.array([0, 1, 1, 0]), scores=np.arange(4.0), round=9
    )
    assert repr(picked) == (
        "Selection(round=9, clients=[3, 1], 2 coalitions of 2-2 clients, scores 0..3)"
    )
    assert "warm-up" in repr(cvrcore.Selection(clients=np.array([0]), warmup=True))


@pytest.mark.parametrize("available", [np.array([2, 5, 7]), [2, 5, 7], np.arange(9) % 5 == 2])
def test_available_is_a_mask_or_ids(available):
    models = flat_models(9, 4, np.random.default_rng(6))
    picked = cvrcore.select(models, 3, available=available, seed=0)
    assert set(picked.clients) <= {2, 5, 7}


def test_available_may_be_a_set_of_ids():
    models = np.random.default_rng(0).normal(size=(8, 3))
    picked = cvrcore.select(models, n_select=2, available={6, 1, 3}, seed=0)
    same = cvrcore.select(models, n_select=2, available=[1, 3, 6], seed=0)
    assert_array_equal(picked.clients, same.clients)
    assert set(picked.clients) <= {1, 3, 6}


@pytest.mark.parametrize("within", ["boltzmann", "argmax", "uniform", "size", "neyman"])
def test_select_takes_the_laws_of_the_selector(within):
    """The stateless call and the selector state the same law on the same coalitions."""
    rng = np.random.default_rng(2)
    models, _ = planted_models(40, 12, 5, rng)
    weights = rng.integers(1, 9, size=40).astype(float)
    weights[:3] = 0.0
    picked = cvrcore.select(models, 5, weights, seed=0, within=within)
    eligible = weights > 0
    expected = np.zeros(40)
    for p in range(5):
        mine = (picked.coalitions == p) & eligible
        share = weights[mine] / weights[mine].sum()
        members = models[(picked.coalitions == p)]
        centre = np.average(members, axis=0, weights=weights[picked.coalitions == p])
        worth = weights[mine] * np.linalg.norm(models[mine] - centre, axis=1)
        expected[mine] = {
            "size": share,
            "neyman": 0.7 * worth / worth.sum() + 0.3 * share,
        }.get(within, np.full(mine.sum(), 1 / mine.sum()))  # equal scores: uniform
    assert_allclose(picked.probabilities, expected, rtol=1e-9)
    selector = cvrcore.CoalitionSelector(
        40, 12, 5, weights, warmup=0, seed=0, initial=models + 1e-12, within=within
    )
    if within != "neyman":  # the selector knows no row yet: it takes all distances as equal
        theirs = selector.select()
        assert_array_equal(theirs.coalitions, picked.coalitions)
        assert_allclose(theirs.probabilities, picked.probabilities, rtol=1e-6)


def test_select_refuses_an_unknown_law():
    with pytest.raises(ValueError, match="within must be one of .*'size', 'neyman', got 'best'"):
        cvrcore.select(np.eye(4), 2, within="best")


def test_repr_leaves_out_scores_that_are_not_known():
    scores = np.array([np.nan, 0.5, np.nan, 2.0])
    shown = repr(cvrcore.Selection(np.array([1, 3]), scores=scores))
    assert "scores 0.5..2 of 2 clients" in shown
    assert "nan" not in repr(cvrcore.Selection(np.array([1]), scores=np.full(3, np.nan)))
    assert "scores 0..1)" in repr(cvrcore.Selection(np.array([1]), scores=np.array([0.0, 1.0])))
