import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from cvrcore.selectors.oort import OortSelector, oort_scores
from cvrcore.selectors.uniform import UniformSelector


def play(selector, rms, n_rounds, durations=None):
    """Run whole rounds in which everybody picked reports."""
    picks = []
    for _ in range(n_rounds):
        picked = selector.select()
        seconds = None if durations is None else durations[picked.clients]
        selector.observe(picked.clients, losses=rms[picked.clients], durations=seconds)
        picks.append(picked)
    return picks


def percentile(selector):
    return selector.state_dict()["learned"]["percentile"]


def test_score_of_a_worked_example():
    # Reference 10, 20, 40, 50 (the last untried, with 50 samples): the clip quantile 0.5
    # is the third, 40; low = 9.99 and the range is 50 - 9.99 = 40.01.
    # Round 8: 0.1 * ln 8 = 0.20794415; its bonus is sqrt(. / 1), sqrt(. / 4), sqrt(. / 7).
    scores = oort_scores(
        np.array([10.0, 45.0, 20.0]),
        np.array([1, 4, 7]),
        round=8,
        reference=np.array([20.0, 50.0, 10.0, 40.0]),
        clip=0.5,
    )
    by_hand = [
        0.00024994 + 0.45600894,
        0.75006248 + 0.22800447,  # 45 is clipped to 40
        0.25018745 + 0.17235518,
    ]
    assert_allclose(scores, by_hand, atol=1e-7)  # eight decimals were written down


def test_the_slow_lose_by_the_square_and_the_unknown_nothing():
    utilities, last = np.array([3.0, 3.0, 3.0, 3.0]), np.array([2, 2, 2, 2])
    plain = oort_scores(utilities, last, round=5)
    timed = oort_scores(
        utilities,
        last,
        round=5,
        durations=np.array([1.0, 2.0, 6.0, np.nan]),
        preferred=2.0,
    )
    assert_allclose(timed / plain, [1.0, 1.0, 1 / 9, 1.0], rtol=1e-12)


def test_older_participation_earns_more():
    scores = oort_scores(np.full(4, 2.0), np.array([1, 3, 9, 10]), round=11)
    assert (np.diff(scores) < 0).all()


@pytest.mark.parametrize("utilities", [[0.0, 0.0], [0.0, 5.0], [5e-324, 0.0], [1e300, 1e-300]])
def test_scores_are_non_negative_and_finite(utilities):
    scores = oort_scores(np.array(utilities), np.array([1, 2]), round=1)
    assert np.isfinite(scores).all()
    assert (scores >= 0).all()


def test_the_first_round_is_uniform():
    weights = np.arange(1.0, 21.0)
    picked = OortSelector(20, 5, weights, 0).select()
    assert_array_equal(picked.clients, UniformSelector(20, 5, weights, 0).select().clients)


@pytest.mark.parametrize(("preset", "last_round"), [("paper", 12), ("repo", 15)])
def test_all_clients_are_explored_in_the_round_that_the_decay_gives(preset, last_round):
    # K=100, P=10: the sum of ceil(P * epsilon_t) reaches 100 in this round, by hand.
    selector = OortSelector(100, 10, np.arange(1.0, 101.0), 1, preset=preset)
    picks = play(selector, np.ones(100), last_round)
    before = np.unique(np.concatenate([p.clients for p in picks[:-1]]))
    after = np.unique(np.concatenate([p.clients for p in picks]))
    assert before.size < 100
    assert after.size == 100


def test_asking_twice_does_not_decay_exploration_twice():
    selector = OortSelector(100, 10, seed=2)
    play(selector, np.ones(100), 1)
    tried = ~np.isnan(selector.select().scores)
    for _ in range(100):
        picked = selector.select()
    assert np.count_nonzero(tried[picked.clients]) == 1


def test_exploration_stays_among_the_largest():
    weights = np.random.default_rng(3).permutation(np.arange(1.0, 201.0))
    selector = OortSelector(200, 4, weights, 3)
    play(selector, np.ones(200), 1)
    picked = selector.select()  # 0 exploited: floor(0.118 * 4)
    untried = np.isnan(picked.scores)
    window = np.sort(weights[untried])[-20:]
    assert_allclose(picked.probabilities.sum(), 1.0, rtol=1e-12)
    assert_array_equal(np.sort(weights[picked.probabilities > 0]), window)
    first = [selector.select().clients[0] for _ in range(3000)]
    law = picked.probabilities
    counts = np.bincount(first, minlength=200)
    assert chisquare(counts[law > 0], law[law > 0] * 3000).pvalue > 1e-4


@pytest.mark.parametrize(("preset", "cut_off"), [("paper", 0.95), ("repo", 0.7)])
def test_exploitation_draws_by_score_above_the_cut_off(preset, cut_off):
    rng = np.random.default_rng(4)
    selector = OortSelector(30, 5, rng.integers(50, 500, 30), 4, preset=preset)
    play(selector, rng.uniform(0.5, 2.0, 30), 30)
    picked = selector.select()
    scores = picked.scores
    pool = scores >= cut_off * np.sort(scores)[::-1][5]
    assert_allclose(picked.probabilities, pool * scores / scores[pool].sum(), rtol=1e-12)
    first = [selector.select().clients[0] for _ in range(3000)]
    counts = np.bincount(first, minlength=30)
    assert counts[~pool].sum() == 0
    assert chisquare(counts[pool], picked.probabilities[pool] * 3000).pvalue > 1e-4


def test_utility_is_size_times_reported_rms():
    selector = OortSelector(4, 4, [10, 20, 30, 40], 5)
    play(selector, np.array([1.0, 2.0, 0.5, 0.1]), 1)
    assert_allclose(selector.state_dict()["learned"]["utilities"], [10, 40, 15, 4], rtol=1e-12)


def test_a_failed_client_is_tried_but_earns_nothing():
    selector = OortSelector(12, 3, np.full(12, 10.0), 6)
    failing = np.arange(12) < 3
    times = np.zeros(12, dtype=int)
    for _ in range(200):
        picked = selector.select()
        failed = picked.clients[failing[picked.clients]]
        reported = picked.clients[~failing[picked.clients]]
        selector.observe(reported, losses=np.ones(reported.size), failed=failed)
        times[picked.clients] += 1
    assert not np.isnan(selector.select().scores).any()  # nobody is left to explore
    assert times[failing].max() < times[~failing].min()
    assert_array_equal(selector.state_dict()["learned"]["utilities"][failing], 0.0)


def test_a_failure_keeps_the_utility_of_before():
    selector = OortSelector(3, 3, np.full(3, 10.0), 7)
    play(selector, np.full(3, 2.0), 1)
    selector.select()
    selector.observe([0, 1], losses=[1.0, 1.0], failed=[2])
    assert_allclose(selector.state_dict()["learned"]["utilities"], [10, 10, 20], rtol=1e-12)


def test_equal_durations_change_no_selection():
    rng = np.random.default_rng(8)
    weights, rms = rng.integers(1, 99, 40), rng.uniform(0.1, 3.0, 40)
    without = play(OortSelector(40, 5, weights, 8), rms, 60)
    equal = play(OortSelector(40, 5, weights, 8), rms, 60, durations=np.full(40, 7.0))
    for a, b in zip(without, equal, strict=True):
        assert_array_equal(a.clients, b.clients)


def test_the_slow_are_picked_less():
    durations = np.where(np.arange(40) < 20, 1.0, 10.0)
    selector = OortSelector(40, 5, np.full(40, 10.0), 9, percentile=30)
    picks = play(selector, np.ones(40), 80, durations)
    late = np.concatenate([p.clients for p in picks[30:]])
    assert (late >= 20).mean() < 0.05


@pytest.mark.parametrize(
    ("preset", "loss_after", "expected"),
    [
        ("paper", 0.5, 15.0),  # fell: up
        ("paper", 2.0, 10.0),  # rose: stays
        ("repo", 1.0, 15.0),  # flat: up
        ("repo", 0.5, 10.0),  # fell by half: stays
        ("repo", 9.0, 5.0),  # ninefold: down
    ],
)
def test_pacer_moves_the_preferred_percentile(preset, loss_after, expected):
    selector = OortSelector(4, 4, seed=10, preset=preset)
    play(selector, np.ones(4), 21)  # the first round exploits nobody
    play(selector, np.full(4, loss_after), 18)
    assert percentile(selector) == 10.0
    play(selector, np.full(4, loss_after), 1)
    assert percentile(selector) == expected


def test_zero_losses_leave_a_valid_draw():
    selector = OortSelector(6, 3, seed=11, exploration_min=0.0, decay=0.0)
    for picked in play(selector, np.zeros(6), 30):
        assert np.unique(picked.clients).size == 3
        assert_allclose(picked.probabilities.sum(), 1.0, rtol=1e-12)


def test_selecting_all_tried_clients_works():
    selector = OortSelector(5, 5, seed=12)
    for picked in play(selector, np.ones(5), 5):
        assert_array_equal(np.sort(picked.clients), np.arange(5))
        assert_allclose(picked.inclusion, 1.0, rtol=1e-12)


def test_losses_are_required_and_non_negative():
    selector = OortSelector(5, 2, seed=13)
    clients = selector.select().clients
    with pytest.raises(ValueError, match=r"losses must be given to oort: .* 2 clients"):
        selector.observe(clients)
    with pytest.raises(ValueError, match=r"losses must be non-negative .*got -1"):
        selector.observe(clients, losses=[-1.0, 1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "plato"}, "preset must be one of 'paper', 'repo', 'fedscale', got 'plato'"),
        ({"cut_off": 1.1}, "cut_off must be at most 1, got 1.1"),
        ({"clip": -0.1}, "clip must be at least 0, got -0.1"),
        ({"percentile": 101}, "percentile must be at most 100, got 101"),
        ({"penalty": -1}, "penalty must be at least 0, got -1"),
    ],
)
def test_rejects_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        OortSelector(5, 2, **options)
