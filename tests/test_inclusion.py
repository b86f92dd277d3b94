"""Stated inclusion probabilities against enumeration and against frequencies."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import Selection, make_selector
from cvrcore.draws.inclusion import N_DRAWS, filled_in, sampled_inclusion, successive_inclusion

K, M = 24, 5
RNG = np.random.default_rng(5)
WEIGHTS = RNG.integers(1, 60, K).astype(float)
WEIGHTS[[2, 9]] = 0.0
COUNTS = RNG.integers(0, 9, (K, 3)) + 1
LOSSES = RNG.gamma(2.0, size=K)
LOSSES[10:13] = LOSSES[10]  # ties


def enumerated(weights, size):
    """The definition: sum over all ordered draws without replacement."""
    chance = np.zeros(len(weights))
    for drawn in itertools.permutations(range(len(weights)), size):
        p, left = 1.0, list(range(len(weights)))
        for i in drawn:
            p *= weights[i] / sum(weights[j] for j in left)
            left.remove(i)
        chance[list(drawn)] += p
    return chance


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_successive_draws_match_enumeration(size, spread):
    weights = np.exp(spread * np.random.default_rng(3).normal(size=7))
    found = successive_inclusion(np.log(weights), size)
    assert_allclose(found, enumerated(weights, size), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 500.0])
@pytest.mark.parametrize(("n", "size"), [(2, 1), (30, 7), (200, 60)])
def test_successive_inclusion_sums_to_size_and_increases_with_weights(n, size, scale):
    logs = scale * np.random.default_rng(1).normal(size=n)
    found = successive_inclusion(logs, size)
    assert found.sum() == pytest.approx(size, rel=1e-9)
    assert (found <= 1).all()
    assert (np.diff(found[np.argsort(logs)]) >= -1e-9).all()


def test_clients_of_weight_zero_are_excluded_and_all_others_included_if_places_suffice():
    logs = np.array([0.0, -np.inf, 1.0])
    assert_array_equal(successive_inclusion(logs, 2), [1, 0, 1])
    assert_array_equal(successive_inclusion(logs, 0), [0, 0, 0])


def test_estimate_repeats_the_draw_and_keeps_the_picked_above_zero():
    def draw(rng, n):
        return np.argsort(rng.random((n, 5)), axis=1)[:, :2]

    eligible = np.array([True] * 5 + [False, True])
    found = sampled_inclusion(draw, eligible, np.array([0, 6]), round=3)
    assert_allclose(found[:5], 0.4, atol=4 * np.sqrt(0.24 / N_DRAWS))
    assert found[5] == 0
    assert 0 < found[6] < 1 / N_DRAWS
    again = sampled_inclusion(draw, eligible, np.array([0, 6]), round=3)
    assert_array_equal(found, again)


def test_unknown_losses_are_replaced_by_known_ones():
    found = filled_in(np.array([1.0, np.nan, 3.0]), np.random.default_rng(0), 400)
    assert_array_equal(found[:, [0, 2]], np.tile([1.0, 3.0], (400, 1)))
    assert set(found[:, 1]) == {1.0, 3.0}
    assert not filled_in(np.array([np.nan]), np.random.default_rng(0), 2).any()


def bolt(**options):
    return "fedcvr-bolt", {"n_features": 4, "warmup": 2, **options}


CASES = {
    "uniform": ("uniform", {}),
    "power-of-choice": ("power-of-choice", {}),
    "power-of-choice by size": ("power-of-choice", {"n_candidates": M}),
    "power-of-choice all": ("power-of-choice", {"n_candidates": K}),
    "active": ("active", {"alpha1": 0.5, "alpha2": 0.05}),
    "active ties": ("active", {"alpha1": 0.55, "alpha2": 0.0}),
    "active goetz": ("active", {"preset": "goetz"}),
    "active scripts": ("active", {"preset": "scripts"}),
    "active scripts, all stages": ("active", {"preset": "scripts", "alpha1": 0.2, "alpha3": 0.4}),
    "oort": ("oort", {}),
    "oort fedscale": ("oort", {"preset": "fedscale"}),
    "fedcbs": ("fedcbs", {"label_counts": COUNTS}),
    "fedcbs one": ("fedcbs", {"label_counts": COUNTS, "beta": 0.0}),
    "fedcvr-bolt": bolt(),
    "fedcvr-bolt log": bolt(score="log"),
    "fedcvr-bolt size": bolt(within="size", n_coalitions=3),
    "fedcvr-bolt neyman": bolt(within="neyman", places="neyman", n_coalitions="silhouette"),
}


class World:
    """A policy after a few rounds, then asked again and again without being told anything."""

    def __init__(self, case, available=None):
        name, options = CASES[case]
        weights = WEIGHTS if "ties" not in case else np.where(WEIGHTS > 0, 9.0, 0.0)
        self.selector = make_selector(name, K, M, weights=weights, seed=4, **options)
        self.available = available
        rng = np.random.default_rng(0)
        for _ in range(4):
            clients = self.ask().clients
            self.selector.observe(clients, rng.normal(size=(M, 4)), LOSSES[clients])

    def ask(self):
        asked = self.selector.probe(self.available)
        losses = None if asked is None else LOSSES[asked]
        return self.selector.select(self.available, losses)


@pytest.mark.parametrize("few", [False, True], ids=["all here", "some here"])
@pytest.mark.parametrize("case", CASES)
def test_stated_inclusion_is_the_frequency(case, few):
    available = np.arange(K) % 4 != 1 if few else None
    world = World(case, available)
    n_draws = 3000
    counts = np.zeros(K)
    for _ in range(n_draws):
        picked = world.ask()
        counts[picked.clients] += 1
    stated = picked.inclusion
    assert stated.sum() == pytest.approx(M)
    error = 4 * np.sqrt(stated * (1 - stated) * (1 / n_draws + 1 / N_DRAWS))
    # A chance too small to be met in N_DRAWS draws may be met in n_draws.
    assert (np.abs(counts / n_draws - stated) <= error + 8 / n_draws).all()
    assert not stated[WEIGHTS == 0].any()


@pytest.mark.parametrize(
    "options", [{"within": "argmax", "n_coalitions": 2}, {"temperature": 1e-320}], ids=str
)
def test_lazy_inclusion_belongs_to_its_draw(options):
    rng = np.random.default_rng(1)
    given = {"n_features": 5, "warmup": 0, "seed": 2, **options}
    both = [make_selector("fedcvr-bolt", 24, 6, **given) for _ in range(2)]
    for _ in range(30):
        early, late = (selector.select() for selector in both)
        stated = early.inclusion.copy()
        models = rng.normal(size=(6, 5))
        for selector in both:
            selector.observe(early.clients, models)
        assert_array_equal(late.inclusion, stated)
        assert (stated[late.clients] > 0).all()


@pytest.mark.parametrize("case", CASES)
def test_reading_inclusion_changes_no_selection(case):
    silent, curious = World(case), World(case)
    for _ in range(10):
        first, second = silent.ask(), curious.ask()
        assert second.inclusion is not None
        assert_array_equal(first.clients, second.clients)
        for world, picked in ((silent, first), (curious, second)):
            clients = picked.clients
            world.selector.observe(clients, np.ones((M, 4)), LOSSES[clients])
    assert silent.selector.state_dict()["rng"] == curious.selector.state_dict()["rng"]


def test_inclusion_is_lazy_and_computed_once():
    calls = []

    def work_out():
        calls.append(1)
        return np.ones(2)

    picked = Selection(clients=np.array([0, 1]), inclusion=work_out)
    assert picked.plain()["inclusion"] is None
    assert not calls
    assert_array_equal(picked.inclusion, [1, 1])
    assert_array_equal(picked.plain()["inclusion"], picked.inclusion)
    assert len(calls) == 1
    assert Selection(clients=np.array([0])).inclusion is None


@pytest.mark.parametrize("name", ["uniform", "fedcvr-bolt", "oort"])
def test_lazy_fields_belong_to_their_round(name):
    """Arrays of all clients are copied when they are first read: from the round they are of."""

    def play(late):
        rng = np.random.default_rng(3)
        options = {"n_features": 6, "warmup": 2} if name == "fedcvr-bolt" else {}
        selector = make_selector(name, n_clients=30, n_select=5, seed=1, **options)
        rounds = []
        for _ in range(8):
            picked = selector.select()
            clients = picked.clients.copy()
            picked.clients[:] = 0  # neither who writes to it nor when it is read matters
            if not late:
                rounds.append(picked.plain())
            selector.observe(
                clients, rng.normal(size=(5, 6)), losses=rng.random(5), durations=rng.random(5)
            )
            if late:
                rounds.append(picked.plain())
        return rounds

    for early, late in zip(play(False), play(True), strict=True):
        for field, value in early.items():
            assert_array_equal(late[field], value)
