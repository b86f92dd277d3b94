"""What hostile and broken clients cannot do, whatever the policy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from test_selectors import assert_same

import cvrcore
from cvrcore import Guards, make_selector
from cvrcore.selectors import BUILT_IN

N_CLIENTS, N_SELECT, N_FEATURES = 40, 4, 5
ATTACKERS = np.arange(4)
OPTIONS = {
    "fedcbs": {"label_counts": np.random.default_rng(0).integers(1, 20, (N_CLIENTS, 3))},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 3},
}


def make(name, **options):
    common = {"weights": np.full(N_CLIENTS, 50.0), "seed": 1, **OPTIONS.get(name, {})}
    return make_selector(name, N_CLIENTS, N_SELECT, **(common | options))


@pytest.fixture(params=list(BUILT_IN))
def policy(request):
    return request.param


class Siege:
    """Honest clients, and a few that report whatever gets them picked again."""

    def __init__(self, selector, seed, away=0.0):
        self.selector, self.rng, self.away = selector, np.random.default_rng(seed), away
        self.picks = np.zeros(selector.n_clients)
        self.even = np.zeros(selector.n_clients)  # picks of a uniform draw, in expectation

    def losses(self, clients):
        honest = self.rng.gamma(2.0, size=clients.size)
        return np.where(np.isin(clients, ATTACKERS), 1e6, honest)

    def round(self):
        selector = self.selector
        here = self.rng.random(selector.n_clients) >= self.away
        here[-3:] = True
        self.here = here
        asked = selector.probe(here)
        losses = None if asked is None else self.losses(asked)
        picked = selector.select(here, losses)
        models = 1.0 + 0.1 * self.rng.normal(size=(len(picked), N_FEATURES))
        crafted = np.isin(picked.clients, ATTACKERS)
        models[crafted] += 1e3 * np.eye(N_FEATURES)[picked.clients[crafted] % N_FEATURES]
        selector.observe(picked.clients, models, self.losses(picked.clients))
        self.picks[picked.clients] += 1
        self.even[here] += len(picked) / here.sum()
        return picked


# ---- off, they leave no mark


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


# ---- broken reports

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


# ---- shares


@pytest.mark.parametrize("away", [0.0, 0.3])
def test_nobody_takes_more_than_its_share(policy, away):
    siege = Siege(make(policy, max_share=1.25), 5, away)
    for _ in range(600):
        siege.round()
    assert (siege.picks <= 1.25 * siege.even + 1 + 1e-9).all()


def test_without_a_cap_they_do():
    """The sieges of these tests are real: the loss-based policies fall to them."""
    for policy in ("power-of-choice", "active", "oort"):
        siege = Siege(make(policy), 5)
        for _ in range(200):
            siege.round()
        assert siege.picks[ATTACKERS].sum() > 1.9 * siege.even[ATTACKERS].sum(), policy


def test_no_stretch_of_rounds_lets_saved_up_picks_loose():
    """A client that slept for long cannot take every round afterwards."""
    selector = make("power-of-choice", max_share=1.5, n_candidates=N_CLIENTS)
    tops = []
    for t in range(400):
        asked = selector.probe()
        sleeper = 9.0 if t >= 300 else 0.0
        losses = np.where(asked == 0, sleeper, np.random.default_rng(t).random(asked.size))
        picked = selector.select(losses=losses).clients
        selector.observe(picked)
        tops.append(0 in picked)
    even = 100 * N_SELECT / N_CLIENTS
    assert sum(tops[:300]) == 0
    assert 1.4 * even <= sum(tops[300:]) <= 1.5 * even + 3


def test_a_round_is_filled_even_from_those_above_their_share():
    selector = make("uniform", max_share=1.01)
    for _ in range(50):
        assert len(selector.select(available=[1, 2, 3, 4, 5])) == N_SELECT
        selector.observe([])


@pytest.mark.parametrize("away", [0.0, 0.4])
def test_everybody_gets_its_minimum(policy, away):
    """2,000 rounds under siege: nobody available is left out."""
    siege = Siege(make(policy, min_share=0.5), 6, away)
    for _ in range(2000):
        siege.round()
    assert (siege.picks >= np.floor(0.5 * siege.even) - 1).all()


@pytest.mark.parametrize("score", ["raw", "zscore", "log"])
@pytest.mark.parametrize("within", ["boltzmann", "argmax"])
def test_coverage_holds_for_every_law_of_fedcvr_bolt(score, within):
    siege = Siege(make("fedcvr-bolt", min_share=0.3, score=score, within=within), 7)
    for _ in range(2000):
        picked = siege.round()
        assert np.isfinite(picked.probabilities).all()
    assert (siege.picks >= np.floor(0.3 * siege.even) - 1).all()
    assert siege.picks.min() >= 58


@pytest.mark.parametrize("away", [0.0, 0.4])
@pytest.mark.parametrize("score", ["zscore", "log"])
def test_bounded_scores_leave_everybody_available_a_chance(score, away):
    """2,000 rounds beside peers whose score is a million times larger, without any guard."""
    siege = Siege(make("fedcvr-bolt", score=score), 12, away)
    least = 1.0
    for _ in range(2000):
        picked = siege.round()
        here = siege.here
        least = min(least, picked.probabilities[here].min(), picked.inclusion[here].min())
        assert not picked.probabilities[~here].any()
    assert least > 0


def test_raw_scores_leave_some_none():
    """The siege of the test above is real: with the article's own scale somebody starves."""
    siege = Siege(make("fedcvr-bolt"), 12)
    starved = 0
    for _ in range(300):
        starved += siege.round().probabilities.min() == 0.0
    assert starved > 100


def test_forced_places_stay_in_the_coalition_and_their_law_is_stated():
    selector = make("fedcvr-bolt", min_share=0.9)
    rng, forced = np.random.default_rng(8), 0
    for _ in range(200):
        due = selector._gate._due(np.ones(N_CLIENTS, dtype=bool), N_SELECT)
        picked = selector.select()
        assert np.unique(picked.clients).size == N_SELECT
        assert_array_equal(picked.inclusion[due], 1.0)
        assert due.sum() == np.isin(np.flatnonzero(due), picked.clients).sum()
        assert_allclose(picked.inclusion.sum(), N_SELECT, rtol=1e-9)
        if picked.coalitions is not None and due.sum() == 1:
            forced += 1
            # It took the place of its own coalition: every one is still represented.
            assert np.unique(picked.coalitions[picked.clients]).size == N_SELECT
            own = picked.coalitions == picked.coalitions[due]
            assert not picked.inclusion[own & ~due].any()
        selector.observe(picked.clients, rng.normal(size=(N_SELECT, N_FEATURES)))
    assert forced > 10


def test_inclusion_with_forced_places_is_what_happens():
    """Uniform draws with two clients due, four thousand times over."""
    selector = make("uniform", min_share=0.5)
    selector._gate.owed[:] = 0.0
    selector._gate.owed[[3, 11]] = 2.0
    counts, state = np.zeros(N_CLIENTS), selector.state_dict()
    for seed in range(4000):
        again = type(selector).from_state_dict(state)
        again._rng = np.random.default_rng(seed)
        picked = again.select()
        counts[picked.clients] += 1
    assert_allclose(counts / 4000, picked.inclusion, atol=4 * 0.5 / 4000**0.5)
    assert_allclose(picked.inclusion[0], 2 / (N_CLIENTS - 2))


def test_probabilities_of_those_barred_are_zero(policy):
    siege = Siege(make(policy, max_share=1.2), 9)
    barred = 0
    for _ in range(100):
        before = siege.selector._gate.credit.copy()
        picked = siege.round()
        out = before + 1.2 * N_SELECT / N_CLIENTS <= 0
        if out.any() and picked.probabilities is not None:
            barred += 1
            assert not picked.probabilities[out].any()
            assert not np.isin(picked.clients, np.flatnonzero(out)).any()
    assert barred or policy == "power-of-choice"


# ---- sizes


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


# ---- state and settings


def test_guards_are_part_of_the_state(policy, tmp_path):
    options = {"max_share": 1.3, "min_share": 0.2, "max_norm": "median", "max_loss": "median"}
    siege = Siege(make(policy, on_invalid="skip", **options), 11)
    for _ in range(30):
        siege.round()
    siege.selector.save(tmp_path / "s.npz")
    again = cvrcore.Selector.load(tmp_path / "s.npz")
    assert again.guards == siege.selector.guards
    assert again.incidents == siege.selector.incidents
    assert again.state_dict()["format"] == 2
    assert_same(again.state_dict(), siege.selector.state_dict())
    other = Siege(again, 0)
    other.rng.bit_generator.state = siege.rng.bit_generator.state
    for _ in range(10):
        assert_same(siege.round().plain(), other.round().plain())


@pytest.mark.parametrize("name", ["counts", "credit", "owed", "eligible"])
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
        ({"max_norm": "mean"}, "max_norm must be one of 'median', got 'mean'"),
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
