"""What broken and hostile reports cannot do, whatever the policy."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from siege import N_CLIENTS, N_FEATURES, N_SELECT, make
from test_selectors import assert_same

BROKEN = {
    "NaN": np.full(N_FEATURES, np.nan),
    "Inf": np.array([1.0, np.inf, 0, 0, 0]),
    "huge": np.array([1e30, 0, 0, 0, 0]),
    "short": np.ones(N_FEATURES - 1),
    "flat": 3.0,
    "text": ["a"] * N_FEATURES,
    "nothing": None,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", BROKEN)
def test_broken_model_is_set_aside_and_the_others_count(case, dtype):
    """As if the caller had told of a failure: nothing else differs but the record."""
    selector = make("fedcvr-bolt", on_invalid="skip", dtype=dtype)
    twin = make("fedcvr-bolt", on_invalid="skip", dtype=dtype)
    rng = np.random.default_rng(3)
    for round in range(12):
        picked, same = selector.select().clients, twin.select().clients
        assert_array_equal(picked, same)
        rows = list(rng.normal(size=(picked.size, N_FEATURES)))
        bad = round % picked.size
        twin.observe(np.delete(picked, bad), np.delete(rows, bad, axis=0), failed=picked[[bad]])
        rows[bad] = BROKEN[case]
        selector.observe(picked, rows)
        last = selector.incidents[-1]
        assert (last.round, last.client, last.kind) == (round, picked[bad], "invalid")
        assert "models must" in last.detail
    assert selector.incident_counts.sum() == len(selector.incidents) == 12
    ours, theirs = selector.state_dict(), twin.state_dict()
    for name in ("record", "counts"):
        del ours["guards"][name], theirs["guards"][name]
    assert_same(ours, theirs)


@pytest.mark.parametrize("case", BROKEN)
def test_broken_model_is_refused_by_default(case):
    selector = make("fedcvr-bolt")
    picked = selector.select().clients
    rows = list(np.ones((picked.size, N_FEATURES)))
    rows[1] = BROKEN[case]
    before = selector.state_dict()
    with pytest.raises((ValueError, TypeError), match="models must"):
        selector.observe(picked, rows)
    assert_same(selector.state_dict(), before)


@pytest.mark.parametrize("policy", ["active", "oort"])
@pytest.mark.parametrize("field", ["losses", "durations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_broken_numbers_are_set_aside(policy, field, value):
    selector = make(policy, on_invalid="skip")
    asked = selector.probe()
    picked = selector.select(losses=None if asked is None else np.ones(asked.size)).clients
    news = {"losses": np.ones(N_SELECT), "durations": np.ones(N_SELECT)}
    news[field][2] = value
    selector.observe(picked, **news)
    counts = np.zeros(N_CLIENTS)
    sound = policy == "active" and field == "losses" and value == -1.0  # a mean may be negative
    counts[picked[2]] = not sound
    assert_array_equal(selector.incident_counts, counts)


def test_a_round_of_nothing_but_broken_reports_is_closed(policy):
    selector = make(policy, on_invalid="skip")
    for _ in range(5):
        asked = selector.probe()
        losses = None if asked is None else np.full(asked.size, np.inf)
        picked = selector.select(losses=losses).clients
        selector.observe(picked, np.full((N_SELECT, N_FEATURES), np.nan), [np.nan] * N_SELECT)
    assert selector.round == 5
    assert selector.incident_counts.sum() >= 5 * N_SELECT


def test_mistakes_of_the_caller_are_errors_all_the_same():
    selector = make("fedcvr-bolt", on_invalid="skip")
    picked = selector.select().clients
    before = selector.state_dict()
    for clients, models in (
        (picked, np.ones((N_SELECT + 1, N_FEATURES))),
        (picked, None),
        (picked, 3.0),
        ([N_CLIENTS], np.ones((1, N_FEATURES))),
        (np.repeat(picked[:1], 2), np.ones((2, N_FEATURES))),
    ):
        with pytest.raises((ValueError, TypeError)):
            selector.observe(clients, models)
        assert_same(selector.state_dict(), before)


def test_a_broken_value_is_named_with_its_client():
    """The row of a matrix says little: rows are in the order of the report."""
    for policy, field in (("fedcvr-bolt", "models"), ("active", "losses"), ("optimal", "norms")):
        selector = make(policy)
        asked = selector.probe()
        picked = selector.select(losses=None if asked is None else np.ones(asked.size)).clients
        values = np.ones((N_SELECT, N_FEATURES) if field == "models" else N_SELECT)
        values[2, ...] = np.nan
        before = selector.state_dict()
        message = f"{field} must be finite, got nan at .*, of client {picked[2]}: .* in failed="
        with pytest.raises(ValueError, match=message):
            selector.observe(picked, **{field: values})
        assert_same(selector.state_dict(), before)
        values[2, ...] = 1.0
        sound = np.delete(picked, 2)
        selector.observe(sound, **{field: np.delete(values, 2, axis=0)}, failed=picked[[2]])


@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e-160, 1e15])
@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"preset": "scripts"}])
def test_extreme_but_finite_rows_keep_everything_finite(value, options):
    selector = make("fedcvr-bolt", score="zscore", **options)
    rng = np.random.default_rng(4)
    for _ in range(30):
        picked = selector.select()
        for law in (picked.scores, picked.probabilities):
            assert law is None or np.isfinite(law).all()
        rows = rng.normal(size=(len(picked), N_FEATURES))
        rows[0] = value * rng.choice([-1, 1], N_FEATURES)
        selector.observe(picked.clients, rows)
    assert np.isfinite(selector.scores).all()
