"""Counts, sizes and needs: what a policy may pick, and what it must be told."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import Selection, Selector
from cvrcore.aggregators import make_aggregator
from cvrcore.selectors import BUILT_IN, policy_class
from cvrcore.testing import ConformanceError, check_selector


class Coin(Selector):
    """Every eligible client with probability n_select / n_clients, independently."""

    name = "coin"
    size_rule = "random"
    needs = frozenset({"norms", "updates", "sent"})

    def __init__(self, n_clients, n_select, weights=None, seed=None):
        super().__init__(n_clients, n_select, weights, seed)
        self.told = []

    def _choose(self, eligible, probe):
        chance = eligible * min(1.0, self.n_select / self.n_clients)
        clients = np.flatnonzero(self._rng.random(self.n_clients) < chance)
        return Selection(clients=clients, inclusion=chance, round=self.round)

    def _check_sent(self, sent):
        if sent is None:
            raise ValueError("sent must be given to coin, got None")
        return np.asarray(sent, dtype=np.float64)

    def _learn(self, report):
        self.told.append((report.selection.sent, report.signals))


class Repeating(Selector):
    """n_select draws with replacement, each eligible client alike."""

    name = "repeating"
    size_rule = "at-most"

    def _choose(self, eligible, probe):
        law = eligible / eligible.sum()
        drawn = self._rng.multinomial(self.n_select, law)
        clients = np.flatnonzero(drawn)
        return Selection(
            clients=clients,
            inclusion=1 - (1 - law) ** self.n_select,
            counts=drawn[clients],
            expected=self.n_select * law,
            round=self.round,
        )


class Silent(Repeating):
    """Draws with replacement and does not say how often."""

    name = "silent"

    def _choose(self, eligible, probe):
        return super()._choose(eligible, probe).changed(counts=None, expected=None)


@pytest.mark.parametrize("kind", [Coin, Repeating])
def test_other_sizes_conform(kind):
    check_selector(kind)


def test_a_policy_that_draws_twice_must_say_so():
    with pytest.raises(ConformanceError, match=r"must state Selection\.counts"):
        check_selector(Silent, only=["picks"])


def test_a_fixed_size_that_is_not_kept_is_found():
    class Wrong(Coin):
        name = "wrong"
        size_rule = "fixed"

    with pytest.raises(ConformanceError, match="declare another size_rule"):
        check_selector(Wrong, only=["picks"])


def test_a_missing_need_says_what_the_client_must_send():
    selector = Coin(4, 4, seed=0)
    picked = selector.select(sent=[1.0, 2.0])
    with pytest.raises(ValueError, match="norms must be given to coin: each of the 4 .*norm of"):
        selector.observe(picked.clients, updates=np.ones((4, 2)))
    with pytest.raises(ValueError, match="updates must be given to coin: .* watched coordinates"):
        selector.observe(picked.clients, norms=np.ones(4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'norm'"):
        selector.observe(picked.clients, norm=np.ones(4))
    with pytest.raises(ValueError, match="norms must be non-negative"):
        selector.observe(picked.clients, norms=-np.ones(4), updates=np.ones((4, 2)))
    selector.observe(picked.clients, norms=np.ones(4), updates=np.ones((4, 2)))
    sent, signals = selector.told[0]
    assert_array_equal(sent, [1.0, 2.0])
    assert set(signals) == {"norms", "updates"}


def test_broken_signals_are_skipped_client_by_client():
    selector = Coin(4, 4, seed=0)
    selector.guard(on_invalid="skip")
    picked = selector.select(sent=[1.0])
    norms = [1.0, np.nan, 2.0, -1.0]
    selector.observe(picked.clients, norms=norms, updates=np.ones((4, 1)))
    assert_array_equal(selector.told[0][1]["norms"], [1.0, 2.0])
    assert [incident.client for incident in selector.incidents] == [1, 3]


def test_needs_of_the_policies():
    needs = {name: policy_class(name).needs for name in BUILT_IN}
    assert needs["uniform"] == frozenset()
    assert needs["oort"] == {"losses"}
    assert needs["active"] == {"losses", "probe"}
    assert needs["power-of-choice"] == {"probe"}
    assert needs["fedcbs"] == {"label_counts"}
    assert needs["fedcvr-bolt"] == {"models"}


def test_an_unknown_need_is_refused_when_the_class_is_made():
    with pytest.raises(ValueError, match="needs of Odd must be among probe.*got 'mood'"):
        type("Odd", (Coin,), {"needs": frozenset({"mood"})})


def test_counts_survive_a_state():
    selector = Repeating(20, 20, seed=0)
    picked = selector.select()
    assert picked.counts.max() > 1
    twin = Repeating.from_state_dict(selector.state_dict())
    assert_array_equal(twin._pending.counts, picked.counts)
    state = selector.state_dict()
    state["pending"]["counts"] = np.zeros(len(picked), dtype=np.int64)
    with pytest.raises(ValueError, match="pending counts must be at least 1"):
        Repeating.from_state_dict(state)


def drawn_twice():
    expected = np.array([1.5, 1.0, 0.5])
    return Selection(
        clients=np.array([0, 2]),
        counts=np.array([2, 1]),
        expected=expected,
        inclusion=np.array([0.9, 0.7, 0.4]),
    )


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("mean", [2 / 3, 1 / 3]),
        ("sizes", [2 * 10 / 50, 30 / 50]),
        ("coalition-mass", [2 * 10 / 50, 30 / 50]),
        ("importance", [2 * (10 / 60) / 1.5, (30 / 60) / 0.5]),
    ],
)
def test_aggregators_weigh_by_counts(name, shares):
    models = [[np.array([1.0, 0.0])], [np.array([0.0, 1.0])]]
    (merged,) = make_aggregator(name).aggregate(
        [np.zeros(2)], models, [0, 2], [10, 20, 30], drawn_twice()
    )
    assert_allclose(merged, shares, rtol=1e-12)


def test_memory_weighs_by_counts():
    models = [[np.array([1.0, 0.0])], [np.array([0.0, 1.0])]]
    (merged,) = make_aggregator("memory").aggregate(
        [np.zeros(2)], models, [0, 2], [10, 20, 30], drawn_twice()
    )
    assert_allclose(merged, [2 * (10 / 60) / 1.5, (30 / 60) / 0.5], rtol=1e-6)


def test_a_round_without_anybody_steps_by_the_memory():
    aggregator = make_aggregator("memory")
    everyone = Selection(clients=np.arange(2), inclusion=np.ones(2))
    (model,) = aggregator.aggregate([np.zeros(1)], [[np.ones(1)], [np.ones(1) * 3]], [0, 1], [1, 1],
                                    everyone)  # fmt: skip
    assert_allclose(model, [2.0])
    nobody = Selection(clients=np.arange(0), inclusion=np.full(2, 0.5))
    (model,) = aggregator.aggregate([model], [], [], [1, 1], nobody)
    assert_allclose(model, [4.0])
    (model,) = aggregator.aggregate([model], [], [], [1, 1], everyone)  # both failed
    assert_allclose(model, [4.0])
    for name in ("sizes", "mean", "importance", "coalition-memory"):
        (kept,) = make_aggregator(name).aggregate([np.ones(1)], [], [], [1, 1], nobody)
        assert_array_equal(kept, [1.0])


def test_a_policy_that_needs_the_model_sent_must_check_it():
    with pytest.raises(TypeError, match="Careless needs `sent`: define _check_sent"):

        class Careless(Repeating):
            needs = frozenset({"sent"})
