"""Shares from the first round on: fractions of a pick, abandoned rounds, newcomers, weights."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from siege import N_CLIENTS, N_FEATURES, N_SELECT, make

import cvrcore
from cvrcore import Guards
from cvrcore.selectors import BUILT_IN


@pytest.fixture(params=list(BUILT_IN))
def policy(request):
    """Return the name of each policy in turn, those that came later too."""
    return request.param


def besieged(selector, rounds, attackers, observe=True):
    """Play Power-of-Choice over all clients; attackers claim a loss of a million."""
    picks = np.zeros(selector.n_clients)
    for _ in range(rounds):
        asked = selector.probe()
        losses = np.where(np.isin(asked, attackers), 1e6, 1.0)
        picked = selector.select(losses=losses).clients
        picks[picked] += 1
        if observe:
            selector.observe(picked)
    return picks


@pytest.mark.parametrize("rounds", [1, 7, 30])
def test_the_share_holds_in_expectation_below_one_pick(rounds):
    """A thousand clients, ten places: an even draw would give 0.01 to 0.3 picks."""
    n_clients, n_select, attackers = 1000, 10, np.arange(100)
    found = []
    for seed in range(20):
        selector = cvrcore.make_selector(
            "power-of-choice",
            n_clients,
            n_select,
            seed=seed,
            n_candidates=n_clients,
            max_share=1.25,
        )
        found.append(besieged(selector, rounds, attackers)[attackers].sum())
    even = rounds * n_select * attackers.size / n_clients
    error = np.std(found) / len(found) ** 0.5
    assert np.mean(found) <= 1.25 * even + 4 * error
    assert np.mean(found) > even  # the attack is real


@pytest.mark.parametrize("observe", [True, False])
def test_abandoned_rounds_count_once(observe):
    """Results that never arrive change no share: the picks are the same."""
    options = {"max_share": 1.25, "n_candidates": N_CLIENTS}
    played = make("power-of-choice", **options)
    picks = besieged(played, 60, [0, 1], observe)
    even = 60 * N_SELECT / N_CLIENTS
    assert picks.max() <= 1.25 * even + 1
    before = played._gate.shares.credit.copy()
    if observe:
        asked = played.probe()
        picked = played.select(losses=np.ones(asked.size)).clients
        charged = played._gate.shares.credit.copy()
        played.observe(picked)
        assert_array_equal(played._gate.shares.credit, charged)  # not charged again
        assert_allclose(before[picked] + 1.25 * N_SELECT / N_CLIENTS - 1, charged[picked])


def test_a_refused_select_charges_nothing():
    selector = make("power-of-choice", max_share=1.25)
    selector.probe()
    before = selector.state_dict()["guards"]
    with pytest.raises(ValueError, match="losses must have shape"):
        selector.select(losses=[1.0])
    after = selector.state_dict()["guards"]
    assert_array_equal(after["credit"], before["credit"])


def test_guards_have_a_stream_of_their_own():
    plain, guarded = make("uniform"), make("uniform", max_share=1.25)
    assert plain._rng.bit_generator.state == guarded._rng.bit_generator.state
    state = guarded.state_dict()["guards"]["stream"]
    assert state != guarded._rng.bit_generator.state
    again = type(guarded).from_state_dict(guarded.state_dict())
    for selector in (guarded, again):
        selector.resize(N_CLIENTS + 3, np.ones(3))
    assert_array_equal(guarded._gate.shares.credit, again._gate.shares.credit)
    assert make("uniform", max_share=1.25, seed=2).state_dict()["guards"]["stream"] != state


def rejoin(selector, slots):
    told = {"label_counts": np.full((slots.size, 3), 9)} if selector.name == "fedcbs" else {}
    present = selector.n_clients
    selector.resize(present + slots.size, np.full(slots.size, 500.0), **told)
    return present + np.arange(slots.size)


def whitewashed(policy, rounds, seed, **guards):
    """Four of forty come back under a new identity after each pick; return their picks."""
    selector = make(policy, seed=seed, **guards)
    rng, picks = np.random.default_rng(seed), 0
    slot, hostile = np.arange(N_CLIENTS), np.arange(4)
    for _ in range(rounds):
        asked = selector.probe(slot)
        known = {}
        if asked is not None:
            lies = np.isin(asked, slot[hostile])
            known["losses"] = np.where(lies, 9.0, 1.0 + rng.random(asked.size))
        if "sent" in selector.needs:
            known["sent"] = np.ones(N_FEATURES)
        picked = selector.select(slot, **known).clients
        size = picked.size
        told = {
            "losses": np.where(np.isin(picked, slot[hostile]), 9.0, 1.0),
            "models": rng.normal(size=(size, N_FEATURES)),
            "durations": np.ones(size),
            "norms": np.ones(size),
            "updates": rng.normal(size=(size, N_FEATURES)),
            "utilities": rng.random(size),
        }
        wanted = {"losses", "models", "durations"} | selector.needs
        selector.observe(picked, **{k: v for k, v in told.items() if k in wanted})
        again = hostile[np.isin(slot[hostile], picked)]
        picks += again.size
        if again.size:
            slot[again] = rejoin(selector, slot[again])
    return picks


def test_a_fresh_identity_brings_nothing(policy):
    even = 40 * N_SELECT * 4 / N_CLIENTS
    found = [whitewashed(policy, 40, seed, guards="recommended") for seed in range(4)]
    assert np.mean(found) <= 1.5 * even


def test_without_guards_a_fresh_identity_captures_the_selection():
    assert whitewashed("active", 40, 0) > 3 * 40 * N_SELECT * 4 / N_CLIENTS


def test_newcomers_share_one_budget():
    """Twenty newcomers that everybody prefers: together never above their even share, plus one."""
    selector = make("power-of-choice", max_share=1.25, max_newcomers=1.0, n_candidates=200)
    selector.resize(N_CLIENTS + 20, np.full(20, 50.0))
    new, got, even = np.arange(N_CLIENTS, N_CLIENTS + 20), 0, 0.0
    for _ in range(15):
        asked = selector.probe()
        picked = selector.select(losses=np.where(np.isin(asked, new), 1e6, 1.0)).clients
        got += np.isin(picked, new).sum()
        even += N_SELECT * 20 / (N_CLIENTS + 20)
        assert got <= even + 1
    assert got >= even - 2  # the budget is used, in turn
    assert np.bincount(picked).max() == 1


def test_newcomers_are_served_in_the_order_of_joining():
    selector = make("uniform", max_newcomers=1.0)
    selector.resize(N_CLIENTS + 3, np.full(3, 50.0))
    shares = selector._gate.shares
    shares.pool = 0.05
    admitted = selector._gate.admit(np.ones(N_CLIENTS + 3, bool), N_SELECT, selector.weights)
    assert_array_equal(admitted[-3:], [True, False, False])


def test_a_crowd_of_newcomers_is_not_starved():
    """Two clients at the start, a hundred soon after: they get what an even draw gives."""
    selector = cvrcore.make_selector("uniform", 2, 2, seed=0, guards="recommended")
    selector.observe(selector.select().clients)
    selector.resize(102, np.ones(100))
    picks = np.zeros(102)
    for _ in range(400):
        picked = selector.select().clients
        picks[picked] += 1
    assert picks[2:].sum() >= 0.9 * 800 * 100 / 102


def test_a_newcomer_becomes_a_client_like_any_other():
    selector = make("uniform", max_share=1.25)
    selector.resize(N_CLIENTS + 1, [50.0])
    for _ in range(30):
        selector.select()
    assert selector._gate.shares.attended[-1] >= 2.0
    assert (
        selector._gate.shares._queue(np.ones(N_CLIENTS + 1, bool), 1.0, selector.weights)[-1]
        == np.inf
    )


def test_the_budget_of_newcomers_has_a_default():
    assert Guards().newcomers is None
    assert Guards(max_share=1.25).newcomers == 1.0
    assert Guards(max_share=1.25, max_newcomers=3).newcomers == 3.0
    assert Guards(max_newcomers=0.5).newcomers == 0.5


def test_a_heavy_pick_costs_more_than_one():
    """Weight in the model stays within the share too: a client of twice the mean weight."""
    weights = np.ones(N_CLIENTS)
    weights[0] = 2.0
    guards = {"max_share": 1.25, "max_weight": 2.0, "n_candidates": N_CLIENTS}
    picks = []
    for seed in range(30):
        selector = make("power-of-choice", weights=weights, seed=seed, **guards)
        picks.append(besieged(selector, 20, [0])[0])
    even, cost = 20 * N_SELECT / N_CLIENTS, 2.0 / weights.mean()
    limit = 1.25 * even / cost
    assert np.mean(picks) <= limit + 4 * np.std(picks) / 30**0.5
    assert np.mean(picks) >= 0.8 * limit
