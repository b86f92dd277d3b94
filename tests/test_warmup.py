"""Warm-up: how many uniform rounds "auto" takes, who decides, and what the log says."""

import logging
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import cvrcore
from cvrcore.selectors.warmup import auto_warmup

GOLDEN = Path(__file__).parent / "golden"


def exact_warmup(n_clients, n_select, n_rounds=None):
    """Return the first t with 1 - (1 - P/K)^t >= 0.95, in exact arithmetic, with both caps."""
    unseen = 1 - Fraction(n_select, n_clients)
    needed = next((t for t in range(1, 31) if 1 - unseen**t >= Fraction(95, 100)), 30)
    return needed if n_rounds is None else min(needed, math.floor(Fraction(n_rounds, 3)))


def make(n_clients=20, n_select=5, seed=0, **options):
    return cvrcore.CoalitionSelector(n_clients, 4, n_select, seed=seed, **options)


def play(selector, rounds, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), 4)))
        yield picked


@pytest.mark.parametrize("n_clients", [1, 2, 3, 10, 20, 50, 97, 100, 1000, 10**6])
@pytest.mark.parametrize("n_rounds", [None, 1, 2, 3, 20, 89, 90, 1000])
def test_auto_is_the_exact_rule(n_clients, n_rounds):
    for n_select in {1, max(1, n_clients // 20), max(1, n_clients * 95 // 100), n_clients}:
        found = auto_warmup(n_clients, n_select, n_rounds)
        assert found == exact_warmup(n_clients, n_select, n_rounds)


def test_auto_has_seen_95_percent_of_the_clients():
    """The promise itself, played by the selector: the share seen when warm-up ends."""
    shares = []
    for seed in range(40):
        selector = make(n_clients=40, n_select=5, seed=seed)
        seen = set()
        for picked in play(selector, selector.warmup):
            assert picked.warmup
            seen |= set(picked.clients.tolist())
        assert not selector.select().warmup
        shares.append(len(seen) / 40)
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) >= 0.95 - 3 * error
    assert np.mean(shares) <= 0.97 + 3 * error  # and not much later


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({}, 11),  # 1 - 0.75^11 = 0.958
        ({"warmup": "auto"}, 11),
        ({"n_rounds": 12}, 4),
        ({"warmup": 7}, 7),
        ({"warmup": 7, "n_rounds": 60}, 7),
        ({"warmup": 0}, 0),
        ({"preset": "paper"}, 30),
        ({"preset": "scripts"}, 30),
        ({"preset": "paper", "warmup": "auto"}, 11),
        ({"preset": "paper", "warmup": 3}, 3),
        ({"weights": [1.0] * 10 + [0.0] * 10}, 5),  # 10 clients can be picked
    ],
)
def test_who_decides(options, rounds):
    assert make(**options).warmup == rounds


def test_unnamed_preset_computes_the_paper():
    assert make().predictor == "regression"
    assert make().preset == "paper"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": "fast"}, "warmup must be a number of rounds or 'auto', got 'fast'"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"n_rounds": 0}, "n_rounds must be at least 1, got 0"),
        ({"preset": ""}, "preset must be one of 'paper', 'scripts', got ''"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_short_run_acts_after_a_third():
    """A newcomer's five rounds: the policy acts in four of them."""
    picks = list(play(make(n_rounds=5), 5))
    assert [picked.warmup for picked in picks] == [True, False, False, False, False]


def test_log_says_how_long(caplog):
    caplog.set_level(logging.INFO, "cvrcore")
    make(n_rounds=30)
    assert "the first 10 rounds of 30 are warm-up (auto)" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_log_warns_when_no_round_is_left(caplog):
    make(warmup=30, n_rounds=20)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "fedcvr-bolt will not act: all 20 announced rounds are warm-up" in record.message
    assert "warmup='auto', or at most warmup=6" in record.message


def test_clients_that_join_in_warm_up_prolong_it():
    selector = make()
    list(play(selector, 4))
    selector.resize(40, weights=[1.0] * 20)
    assert selector.warmup == exact_warmup(40, 5)
    list(play(selector, selector.warmup - 4))
    selector.resize(80, weights=[1.0] * 40)
    assert not selector.select().warmup  # a warm-up that is over stays over
    fixed = make(warmup=7)
    fixed.resize(40, weights=[1.0] * 20)
    assert fixed.warmup == 7


@pytest.mark.parametrize("n_rounds", [None, 24])
def test_saved_state_keeps_the_rule(tmp_path, n_rounds):
    selector = make(n_rounds=n_rounds)
    list(play(selector, 3))
    selector.save(tmp_path / "state.npz")
    loaded = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert loaded.warmup == selector.warmup
    for one in (selector, loaded):
        one.resize(60, weights=[1.0] * 40)
    assert loaded.warmup == selector.warmup == exact_warmup(60, 5, n_rounds)
    for ours, theirs in zip(play(selector, 40), play(loaded, 40), strict=True):
        assert ours.clients.tolist() == theirs.clients.tolist()
        assert ours.warmup == theirs.warmup


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*fedcvr-bolt.npz")), ids=lambda p: p.stem)
def test_old_states_keep_their_warm_up(path):
    selector = cvrcore.CoalitionSelector.load(path)
    assert selector.warmup in (2, 3)
    before = selector.warmup
    selector.resize(selector.n_clients + 5, weights=[1.0] * 5)
    assert selector.warmup == before
