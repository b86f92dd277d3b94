"""Balanced draws inside and across coalitions, against enumeration and frequencies."""

from collections import Counter

import numpy as np
import pytest
import scipy.spatial.distance
from numpy.testing import assert_allclose, assert_array_equal
from test_pivotal import fits, included

import cvrcore
from cvrcore.aggregators import make_aggregator
from cvrcore.draws.coalition_draw import draw_selection
from cvrcore.draws.pivotal import stratified_pivotal
from cvrcore.draws.pps import capped_inclusion


def stratified_law(inclusion, features, strata):
    """Return the probability of each sample: pairs of one stratum first, then the rest."""
    distance = scipy.spatial.distance.cdist(features, features)
    law = Counter()

    def pairs(values, chance, among):
        """Yield every outcome in which at most one client of `among` is undecided."""
        undecided = [k for k in among if 1e-12 < values[k] < 1 - 1e-12]
        if len(undecided) < 2:
            yield values, chance
            return
        for i in undecided:
            j = min((k for k in undecided if k != i), key=lambda k: distance[i, k])
            a, b, part = values[i], values[j], chance / len(undecided)
            if a + b < 1:
                ends = [({i: a + b, j: 0.0}, a / (a + b)), ({i: 0.0, j: a + b}, b / (a + b))]
            else:
                rest = a + b - 1
                ends = [
                    ({i: 1.0, j: rest}, (1 - b) / (2 - a - b)),
                    ({i: rest, j: 1.0}, (1 - a) / (2 - a - b)),
                ]
            for changed, share in ends:
                yield from pairs({**values, **changed}, part * share, among)

    states = [(dict(enumerate(inclusion)), 1.0)]
    groups = [np.flatnonzero(strata == s).tolist() for s in np.unique(strata)]
    for among in [*groups, range(len(inclusion))]:
        states = [end for state in states for end in pairs(*state, among)]
    for values, chance in states:
        last = [k for k, v in values.items() if 1e-12 < v < 1 - 1e-12]
        sure = frozenset(k for k, v in values.items() if v > 0.5 and k not in last)
        for k in last:
            law[sure | {k}] += chance * values[k]
            law[sure] += chance * (1 - values[k])
        if not last:
            law[sure] += chance
    return law


@pytest.mark.parametrize(
    ("inclusion", "strata"),
    [
        ([0.5, 0.5, 0.5, 0.5, 0.5, 0.5], [0, 0, 0, 1, 1, 1]),
        ([0.7, 0.6, 0.4, 0.3, 0.6, 0.4], [0, 1, 0, 2, 1, 0]),
        ([1.0, 0.2, 0.9, 0.4, 0.25], [1, 1, 0, 0, 0]),
    ],
)
def test_samples_follow_the_enumerated_law(inclusion, strata):
    inclusion, strata = np.array(inclusion), np.array(strata)
    features = np.random.default_rng(5).normal(size=(inclusion.size, 2))
    law = stratified_law(inclusion, features, strata)
    assert_allclose(included(law, inclusion.size), inclusion, atol=1e-12)
    rng = np.random.default_rng(1)
    fits(lambda: stratified_pivotal(inclusion, features, strata, rng), law, 6000)


def test_every_stratum_gets_its_expected_number_rounded():
    rng = np.random.default_rng(2)
    for _ in range(200):
        strata = rng.integers(0, 7, size=60)
        inclusion = capped_inclusion(rng.lognormal(sigma=1.5, size=60), 13)
        drawn = stratified_pivotal(inclusion, rng.normal(size=(60, 3)), strata, rng)
        assert drawn.size == 13
        expected = np.bincount(strata, inclusion, minlength=7)
        found = np.bincount(strata[drawn], minlength=7)
        assert (np.abs(found - expected) < 1 + 1e-6).all()


# -- the policy ----------------------------------------------------------------

K, P, D = 30, 7, 3
WEIGHTS = np.ceil(np.random.default_rng(3).lognormal(3.0, 0.7, K))
WEIGHTS[4] = 0.0


def world(seed=0, **options):
    """Return a policy in steady state, and the rows of its clients: three groups."""
    rng = np.random.default_rng(seed)
    rows = 4.0 * np.eye(3)[np.arange(K) % 3] + 0.5 * rng.normal(size=(K, D))
    selector = cvrcore.CoalitionSelector(
        K, D, P, weights=WEIGHTS, warmup=0, initial=rows, seed=1, n_coalitions=3, **options
    )
    for _ in range(6):
        picked = selector.select()
        selector.observe(picked.clients, rows[picked.clients] + 0.1 * rng.normal(size=(P, D)))
    return selector, rows


def laws(within, available, coalitions, selection):
    """Return what inclusion should be in proportion to, across coalitions, before the cap."""
    if within == "size":
        return np.where(available, WEIGHTS, 0.0)
    eligible = available & (WEIGHTS > 0)
    here = np.bincount(coalitions[eligible], minlength=3)
    return selection.probabilities * here[coalitions] * eligible


@pytest.mark.parametrize("within", ["boltzmann", "uniform", "size", "neyman", "argmax"])
@pytest.mark.parametrize("balance", ["within", "across"])
@pytest.mark.parametrize("few", [False, True], ids=["all here", "some here"])
def test_stated_inclusion_is_the_frequency(within, balance, few):
    selector, _ = world(within=within, balance=balance)
    available = np.arange(K) % 4 != 1 if few else np.ones(K, dtype=bool)
    n_draws, counts = 2000, np.zeros(K)
    for _ in range(n_draws):
        picked = selector.select(available)
        counts[picked.clients] += 1
        assert len(picked) == P
    stated = picked.inclusion
    assert_allclose(stated.sum(), P)
    assert not stated[~available | (WEIGHTS == 0)].any()
    error = 4 * np.sqrt(stated * (1 - stated) / n_draws)
    assert (np.abs(counts / n_draws - stated) <= error + 8 / n_draws).all()
    if balance == "across" and within != "neyman":
        law = laws(within, available, picked.coalitions, picked)
        assert_allclose(stated[law > 0], capped_inclusion(law[law > 0], P), rtol=1e-9)


def test_one_place_each_is_the_paper_s_draw():
    rng = np.random.default_rng(4)
    given = {"n_clients": 24, "n_features": 5, "n_select": 6, "warmup": 2, "seed": 2}
    plain = cvrcore.CoalitionSelector(**given)
    balanced = cvrcore.CoalitionSelector(**given, balance="within")
    for _ in range(20):
        first, second = plain.select(), balanced.select()
        assert_array_equal(first.clients, second.clients)
        models = rng.normal(size=(6, 5))
        plain.observe(first.clients, models)
        balanced.observe(second.clients, models)


def test_clients_come_coalition_by_coalition_and_in_random_order_inside():
    selector, _ = world(within="uniform", balance="across")
    descending = 0
    for _ in range(60):
        picked = selector.select()
        groups = picked.coalitions[picked.clients]
        assert_array_equal(groups, np.sort(groups))
        descending += picked.clients[0] > picked.clients[1]
    assert 10 < descending < 50  # ascending ids would favour the first as representatives


@pytest.mark.parametrize("aggregator", ["importance", "memory"])
@pytest.mark.parametrize("balance", ["within", "across"])
@pytest.mark.parametrize("within", ["boltzmann", "size"])
def test_steps_are_unbiased(within, balance, aggregator):
    selector, updates = world(within=within, balance=balance)
    rng = np.random.default_rng(5)
    merging, model = make_aggregator(aggregator), np.zeros(D)
    for _ in range(8):
        picked = selector.select()
        noisy = [[updates[k] + rng.normal(size=D)] for k in picked.clients]
        merging.aggregate([model], noisy, picked.clients, WEIGHTS, picked)
    state = merging.state_dict()
    steps = np.empty((800, D))
    for i in range(len(steps)):
        picked = selector.select()
        if aggregator == "memory":
            merging.load_state_dict(state)
        models = [[updates[k]] for k in picked.clients]
        (steps[i],) = merging.aggregate([model], models, picked.clients, WEIGHTS, picked)
    full = WEIGHTS / WEIGHTS.sum() @ updates
    error = steps.std(axis=0) / len(steps) ** 0.5
    assert (np.abs(steps.mean(axis=0) - full) <= 4.5 * error + 1e-6).all()


def test_totals_of_smooth_functions_vary_less():
    """Horvitz-Thompson totals over two wide coalitions of twenty clients, five places each."""
    rng = np.random.default_rng(6)
    rows = np.linspace(0.0, 1.0, 40)[:, None]
    labels, worth = np.repeat([0, 1], 20), np.sin(4 * rows[:, 0])
    eligible = np.ones(40, dtype=bool)

    def variance(balance):
        totals = []
        for _ in range(500):
            picked = draw_selection(
                labels,
                np.zeros(40),
                eligible,
                10,
                rng,
                within="uniform",
                balance=balance,
                rows=rows,
            )
            totals.append((worth / picked.inclusion)[picked.clients].sum())
        return np.var(totals)

    successive = variance(None)
    assert variance("within") < 0.3 * successive
    assert variance("across") < 0.3 * successive


@pytest.mark.parametrize("balance", ["within", "across"])
def test_guards_and_states_hold(balance, tmp_path):
    selector, rows = world(balance=balance, within="size", max_share=1.5, min_share=0.3)
    for t in range(30):
        picked = selector.select(np.arange(K) % 5 != t % 5)
        assert (picked.inclusion[picked.clients] > 0).all()
        selector.observe(picked.clients[:-1], rows[picked.clients[:-1]])
    selector.save(tmp_path / "state.npz")
    twin = cvrcore.Selector.load(tmp_path / "state.npz")
    assert twin.rule.balance == balance
    for _ in range(5):
        picked, other = selector.select(), twin.select()
        assert_array_equal(picked.clients, other.clients)
        assert_array_equal(picked.inclusion, other.inclusion)


def test_a_state_without_balance_is_that_of_earlier_releases():
    assert "balance" not in world()[0].state_dict()["config"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": "both"}, "balance must be one of 'within', 'across', got 'both'"),
        ({"balance": "across", "places": "neyman"}, "places must be 'even' with balance 'across'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cvrcore.CoalitionSelector(K, D, P, **options)
