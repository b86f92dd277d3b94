"""Bounds on reports have a value at all times, and are the medians that they promise."""

import logging

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from siege import N_CLIENTS, N_FEATURES, N_SELECT, make

from cvrcore.guards.bounds import RunningBound, check_bound


def observed_row(selector, rows):
    picked = selector.select().clients[: len(rows)]
    selector.observe(picked, rows)
    return selector.rows[picked]


@pytest.mark.parametrize("n_reports", [1, 2])
def test_the_first_rows_are_bounded_by_the_initial_model(n_reports):
    """Nobody has reported before: the centre is the initial model, the scale its length."""
    initial = np.full(N_FEATURES, 2.0)
    selector = make("fedcvr-bolt", max_norm="median", initial=initial)
    rows = np.full((n_reports, N_FEATURES), 1e6)
    kept = observed_row(selector, rows)
    away = np.linalg.norm(kept - initial, axis=1)
    known = np.append(np.linalg.norm(rows - initial, axis=1), [np.linalg.norm(initial)] * 2)[:3]
    assert_allclose(away, np.minimum(3 * np.median(known), np.linalg.norm(rows - initial, axis=1)))
    if n_reports == 1:
        assert_allclose(away, 3 * np.linalg.norm(initial))


def test_without_an_initial_model_the_scale_is_one_per_coordinate():
    selector = make("fedcvr-bolt", max_norm="median")
    kept = observed_row(selector, np.full((1, N_FEATURES), 1e6))
    assert_allclose(np.linalg.norm(kept[0]), 3 * np.sqrt(N_FEATURES))


def test_rows_that_coincide_do_not_open_the_bound():
    """Three of four reports are the same: the median distance is 0."""
    selector = make("fedcvr-bolt", max_norm="median", initial=np.ones(N_FEATURES))
    rows = np.ones((N_SELECT, N_FEATURES))
    rows[-1] = 1e9
    kept = observed_row(selector, rows)
    assert np.linalg.norm(kept[-1] - 1.0) <= 3 * np.sqrt(N_FEATURES)
    for _ in range(3):
        observed_row(selector, 1 + 0.1 * np.random.default_rng(0).normal(size=rows.shape))
    scale = selector._gate.distances.spread
    kept = observed_row(selector, rows)
    assert np.linalg.norm(kept[-1] - 1.0) <= 3 * scale * (1 + 1e-9)  # the last scale is kept


@pytest.mark.parametrize(
    ("honest", "low", "high"),
    [
        ([2.0, 1.0, 3.0, 2.0], -2.0, 6.0),  # positive median m: m - 2 m and 3 m
        ([-2.0, -1.0, -3.0, -2.0], -6.0, 2.0),  # negative: m - 2 |m| and m + 2 |m|
        ([0.0, 0.0, 0.0, 5.0], -2.0, 2.0),  # most are 0: the default scale, 1
        ([0.0, -1.0, 1.0, 0.5, -0.5], -1.0, 1.0),  # median 0: twice the median distance
    ],
)
def test_losses_are_bounded_on_both_sides(honest, low, high):
    bound = RunningBound("loss", "median")
    found = bound.limits(np.array(honest))
    assert_allclose(found, (low, high))


@pytest.mark.parametrize("policy_name", ["active", "power-of-choice"])
@pytest.mark.parametrize("lie", [1e300, -1e300])
def test_one_loss_cannot_leave_the_bounds(policy_name, lie):
    selector = make(policy_name, max_loss="median")
    asked = selector.probe()
    losses = np.linspace(1.0, 2.0, asked.size)
    losses[0] = lie
    selector.select(losses=losses)
    stored = selector.state_dict()["learned"]["losses"]
    assert np.nanmax(np.abs(stored)) <= 3 * np.median(losses)
    kinds = {incident.kind for incident in selector.incidents}
    assert kinds == {"loss"}


def test_the_first_loss_is_bounded_alone():
    """One client reports, nothing is known: losses count as at most three times 1."""
    selector = make("oort", max_loss="median")
    picked = selector.select().clients
    selector.observe(picked[:1], losses=np.array([1e300]))
    assert selector.state_dict()["learned"]["utilities"].max() == 3.0 * 50.0


def test_a_fallback_is_logged_once(caplog):
    bound = RunningBound("loss", "median")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            bound.limits(np.array([2.0]))
        assert len(caplog.records) == 1
        assert "bound on loss" in caplog.text
        bound.remember(np.arange(3), np.array([1.0, 2.0, 3.0]))
        bound.limits(np.array([2.0]))
        assert len(caplog.records) == 1
        bound.remember(np.arange(9), np.zeros(9))
        assert bound.limits(np.array([0.0])) == (-4.0, 4.0)  # the last spread, 2
        assert len(caplog.records) == 2


def test_every_bound_is_finite_at_all_times():
    """Windows of any content: nothing is ever unbounded or NaN."""
    rng = np.random.default_rng(0)
    for trial in range(300):
        bound = RunningBound("norm", "median")
        for _ in range(4):
            size = rng.integers(0, 4)
            values = rng.choice([0.0, 0.0, 1.0, 1e9, -3.0], size=size)
            low, high = bound.limits(values)
            assert np.isfinite([low, high]).all(), trial
            assert low <= high
            bound.remember(np.arange(size), values)


def test_updates_and_norms_are_bounded_too():
    gate = make("uniform", max_norm="median")._gate
    clients, rows = np.arange(5), np.random.default_rng(1).normal(size=(5, 3))
    rows[2] *= 1e6
    lengths = np.linalg.norm(rows, axis=1)
    from cvrcore.guards import Judged

    judged = gate.judge_signals(Judged(), clients, {"updates": rows, "norms": lengths}, 0)
    bound = 3 * np.median(lengths)
    assert_allclose(np.linalg.norm(judged.signals["updates"], axis=1), np.minimum(lengths, bound))
    assert_allclose(judged.signals["norms"], np.minimum(lengths, bound))


@pytest.mark.parametrize("value", ["mean", "x*median", "-1*median", "0*median", "nan*median", 0])
def test_bounds_are_checked(value):
    with pytest.raises(ValueError, match="max_norm must be"):
        check_bound(value, "max_norm")


def test_multiples_of_the_median():
    assert check_bound("1.50*median", "max_norm") == "1.5*median"
    bound = RunningBound("loss", "2*median")
    assert bound.limits(np.array([1.0, 2.0, 3.0]))[1] == 4.0


def test_the_window_is_saved_with_its_clients(tmp_path):
    selector = make("oort", max_loss="median")
    for _ in range(5):
        picked = selector.select().clients
        selector.observe(picked, losses=1.0 + picked)
    again = type(selector).from_state_dict(selector.state_dict())
    window = again._gate.losses
    assert_array_equal(window.values, 1.0 + window.clients)
    assert window.values.size == 5 * N_SELECT
    state = selector.state_dict()
    state["guards"]["losses_by"] = state["guards"]["losses_by"] + N_CLIENTS
    with pytest.raises(ValueError, match="losses_by must be ids below"):
        type(selector).from_state_dict(state)
