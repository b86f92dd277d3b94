"""What guards are, and what they do when told to: off, bounds on reports, settings, state."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from siege import N_CLIENTS, N_FEATURES, N_SELECT, Siege, make
from test_selectors import assert_same

import cvrcore
from cvrcore import Guards


def test_off_by_default_and_then_nothing_is_written(policy):
    selector = make(policy)
    assert selector.guards == Guards()
    state = selector.state_dict()
    assert state["format"] == 1
    assert "guards" not in state
    assert selector.incidents == ()
    assert_array_equal(selector.incident_counts, np.zeros(N_CLIENTS))


def test_guards_that_never_act_change_no_selection(policy):
    plain = Siege(make(policy), 2)
    guarded = Siege(make(policy, max_share=1e9, max_norm=1e15, max_loss=1e15), 2)
    for _ in range(40):
        assert_same(plain.round().plain(), guarded.round().plain())


def test_losses_are_cut_to_three_medians():
    selector = make("active", max_loss="median")
    asked = selector.probe()
    losses = np.linspace(1.0, 2.0, asked.size)
    losses[7] = 1e9
    picked = selector.select(losses=losses)
    expected = losses.copy()
    expected[7] = 3.0 * np.median(losses)
    assert_allclose(picked.scores, np.sqrt(50.0) * expected, rtol=1e-12)
    (incident,) = selector.incidents
    assert (incident.client, incident.kind) == (asked[7], "loss")


def test_losses_are_cut_to_a_number():
    selector = make("power-of-choice", max_loss=1.5)
    asked = selector.probe()
    losses = np.linspace(1.0, 2.0, asked.size)
    losses[0] = np.nan
    picked = selector.select(losses=losses)
    assert_allclose(picked.scores[asked], np.minimum(losses, 1.5))


def test_rows_are_drawn_back_towards_the_median():
    """Against plain NumPy: the row lands on the sphere around the median, same direction."""
    selector = make("fedcvr-bolt", max_norm="median")
    picked = selector.select().clients
    rows = np.random.default_rng(10).normal(size=(N_SELECT, N_FEATURES))
    rows[2] = 1e3
    selector.observe(picked, rows)
    centre = np.median(rows, axis=0)
    distances = np.linalg.norm(rows - centre, axis=1)
    bound = 3.0 * np.median(distances)
    expected = rows.copy()
    expected[2] = centre + (rows[2] - centre) * bound / distances[2]
    assert_allclose(selector.rows[picked], expected, rtol=1e-12)
    (incident,) = selector.incidents
    assert (incident.client, incident.kind) == (picked[2], "norm")


def test_rows_of_a_round_of_two_are_measured_from_the_last_centre():
    selector = make("fedcvr-bolt", max_norm=0.5)
    first = selector.select().clients
    selector.observe(first, np.ones((N_SELECT, N_FEATURES)))
    second = selector.select().clients
    selector.observe(second[:1], np.full((1, N_FEATURES), 9.0))
    away = selector.rows[second[0]] - 1.0
    assert_allclose(np.linalg.norm(away), 0.5, rtol=1e-12)


def test_guards_are_part_of_the_state(policy, tmp_path):
    options = {"max_share": 1.3, "min_share": 0.2, "max_norm": "median", "max_loss": "median"}
    siege = Siege(make(policy, on_invalid="skip", **options), 11)
    for _ in range(30):
        siege.round()
    siege.selector.save(tmp_path / "s.npz")
    again = cvrcore.Selector.load(tmp_path / "s.npz")
    assert again.guards == siege.selector.guards
    assert again.incidents == siege.selector.incidents
    assert again.state_dict()["format"] == 3
    assert_same(again.state_dict(), siege.selector.state_dict())
    other = Siege(again, 0)
    other.rng.bit_generator.state = siege.rng.bit_generator.state
    for _ in range(10):
        assert_same(siege.round().plain(), other.round().plain())


@pytest.mark.parametrize("name", ["counts", "credit", "owed", "attended", "turn"])
def test_a_damaged_guard_state_is_refused(name):
    selector = make("uniform", max_share=1.2)
    selector.select()
    state = selector.state_dict()
    state["guards"][name] = state["guards"][name][:-1]
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        type(selector).from_state_dict(state)


def test_newcomers_begin_with_a_clean_record():
    selector = make("uniform", max_share=1.2, min_share=0.5)
    for _ in range(20):
        selector.select()
        selector.observe([])
    selector.resize(N_CLIENTS + 5, np.ones(5))
    assert_array_equal(selector.incident_counts, np.zeros(N_CLIENTS + 5))
    seen = np.zeros(N_CLIENTS + 5)
    for _ in range(200):
        seen[selector.select().clients] += 1
        selector.observe([])
    assert seen[-5:].min() >= 7
    assert seen[-5:].max() <= 1.2 * 200 * N_SELECT / (N_CLIENTS + 5) + 1


def test_the_record_is_bounded():
    selector = make("power-of-choice", max_loss=1.0, n_candidates=N_CLIENTS)
    for _ in range(40):
        asked = selector.probe()
        selector.select(losses=np.full(asked.size, 2.0))
        selector.observe([])
    assert len(selector.incidents) == 1000
    assert_array_equal(selector.incident_counts, np.full(N_CLIENTS, 40))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_invalid": "ignore"}, "on_invalid must be one of 'raise', 'skip', got 'ignore'"),
        ({"max_norm": "mean"}, "max_norm must be a positive number, 'median' or a multiple"),
        ({"max_norm": 0}, "max_norm must be positive, got 0"),
        ({"max_loss": -1}, "max_loss must be positive, got -1"),
        ({"max_loss": [1]}, "max_loss must be a number"),
        ({"max_share": 1}, "max_share must be above 1, got 1"),
        ({"min_share": 0}, "min_share must be positive, got 0"),
        ({"min_share": 1.5}, "min_share must be at most 1, got 1.5"),
        ({"max_shar": 2}, "max_shar is not an option of uniform; did you mean 'max_share'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make("uniform", **options)


def test_guards_are_set_between_rounds(policy):
    selector = make(policy)
    selector.guard(max_share=1.5, on_invalid="skip")
    assert selector.guards == Guards(max_share=1.5, on_invalid="skip")
    asked = selector.probe()
    selector.select(losses=None if asked is None else np.ones(asked.size))
    before = selector.state_dict()
    with pytest.raises(ValueError, match="guard must come between rounds"):
        selector.guard()
    with pytest.raises(TypeError, match="max_shar"):
        selector.guard(max_shar=2)
    assert_same(selector.state_dict(), before)
    selector.observe([])
    selector.guard()
    assert selector.state_dict()["format"] == 1
