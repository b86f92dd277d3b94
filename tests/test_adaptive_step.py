"""The adaptive server step: its variance against enumeration, its length where it is known."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cvrcore.aggregators import AGGREGATORS, ModelAverage, ServerOptimiser, make_aggregator
from cvrcore.aggregators.noise import step_variance
from cvrcore.selection import Selection

K, P = 8, 3
SIZES = np.arange(1.0, K + 1)
MODEL = [np.zeros((3, 4)), np.zeros(3)]


def selection(clients, inclusion=P / K):
    return Selection(np.sort(clients), inclusion=np.full(K, inclusion))


def models(seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=a.shape) + shift for a in MODEL] for _ in range(K)]


def test_variance_of_simple_random_sampling_is_unbiased():
    """For equal inclusion Hajek's form is the textbook estimator of s^2 (1 - n/N) / n."""
    rows = np.random.default_rng(0).normal(size=(K, 5))
    samples = [list(s) for s in itertools.combinations(range(K), P)]
    factors, pi = np.full(P, 1 / P), np.full(P, P / K)
    means = np.array([rows[s].mean(axis=0) for s in samples])
    truth = np.square(means - rows.mean(axis=0)).sum(axis=1).mean()
    found = np.mean([step_variance(factors, rows[s], pi) for s in samples])
    assert_allclose(found, truth, rtol=1e-12)


def test_certain_clients_have_no_variance_and_a_single_report_says_nothing():
    rows = np.ones((2, 3))
    assert step_variance(np.ones(2), rows * [[1.0], [2.0]], np.ones(2)) == 0.0
    assert step_variance(np.ones(1), rows[:1], np.array([0.5])) == np.inf


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_every_aggregator_measures_its_noise(name):
    aggregator = make_aggregator(name, server=ServerOptimiser("adaptive"))
    clients, model = [0, 3, 5], [a.copy() for a in MODEL]
    for t in range(3):
        received = models(t)
        back = [[m + a for m, a in zip(model, received[k], strict=True)] for k in clients]
        model = aggregator.aggregate(model, back, clients, SIZES, selection(clients))
        assert aggregator.inner.noise > 0
    assert 1.0 <= aggregator.server.last_lr <= 1.1**3


def test_the_step_grows_a_tenth_a_round_on_a_straight_slope():
    """Full participation and equal updates have no noise; equal rounds have no curvature."""
    for name, clients, pi in (("sizes", np.arange(K), 1.0), ("memory", np.arange(P), P / K)):
        aggregator = make_aggregator(name, server=ServerOptimiser("adaptive", lr=2.5))
        one = models(4)[0]
        lengths = []
        for _ in range(12):
            got = aggregator.aggregate(
                MODEL, [one] * len(clients), clients, np.ones(K), selection(clients, pi)
            )
            lengths.append(aggregator.server.last_lr)
            assert_allclose(got[1], lengths[-1] * one[1], rtol=1e-6)
        assert_allclose(lengths, np.minimum(1.1 ** np.arange(1, 13), 2.5), rtol=1e-6)


def noisy_descent(noise, curvature=0.25, rounds=400):
    """Return the mean of the late step lengths where reports and steps carry noise."""
    rng, size, lengths = np.random.default_rng(0), 50, []
    server = ServerOptimiser("adaptive", lr=20.0, min_lr=1e-3, caution=1.0)
    for _ in range(rounds):
        x = rng.normal(size=size)  # afresh, so that the lengths of slope and noise keep their ratio
        for _ in range(2):
            update = -curvature * x + noise * rng.normal(size=size)
            fresh = -curvature * x + noise * rng.normal(size=size)
            [x] = server.step([x], [x + update], noise=size * noise**2, fresh=[fresh])
            lengths.append(server.last_lr)
    return np.mean(lengths[rounds:])


def test_noise_shortens_the_step():
    """The best step on a quadratic is the share of the update that is no noise, over h."""
    quiet, loud = noisy_descent(0.01), noisy_descent(0.25)
    assert loud < 0.75 * quiet


def test_state_goes_on_and_a_bad_one_is_refused():
    first, second = ServerOptimiser("adaptive"), ServerOptimiser("adaptive")
    first.step([np.zeros(2)], [np.ones(2)], noise=0.5)
    second.load_state_dict(first.state_dict())
    pair = [one.step([np.zeros(2)], [np.ones(2)], noise=1.5)[0] for one in (first, second)]
    assert_allclose(pair[0], pair[1], rtol=0)
    for wrong in ([np.ones(3)], [-np.ones(2)], [np.ones(2), np.ones(2)]):
        with pytest.raises(ValueError, match="first must"):
            second.load_state_dict({**first.state_dict(), "first": wrong})


@pytest.mark.parametrize("noise", [None, -1.0, float("nan")])
def test_noise_must_be_told(noise):
    with pytest.raises(ValueError, match="noise must be a non-negative number"):
        ServerOptimiser("adaptive").step([np.zeros(2)], [np.ones(2)], noise=noise)
    with pytest.raises(ValueError, match="min_lr must be at most lr"):
        ServerOptimiser("adaptive", lr=0.5)


def descend(curvature, server, rounds=30):
    """Return the end and the step lengths of a server on a quadratic; reports are -A x."""
    x, lengths = np.full(len(curvature), 5.0), []
    for _ in range(rounds):
        update = -np.asarray(curvature) * x
        [x] = server.step([x], [x + update], noise=0.0, fresh=[update])
        lengths.append(server.last_lr)
    return x, lengths


@pytest.mark.parametrize("curvature", [0.1, 0.3, 0.6])
def test_without_noise_the_step_is_a_part_of_that_to_the_minimum(curvature):
    """One direction: the minimum is one step of length 1 / curvature away."""
    server = ServerOptimiser("adaptive", lr=5.0, min_lr=0.1, caution=0.75)
    _, lengths = descend([curvature], server, rounds=60)
    assert_allclose(lengths[-1], min(5.0, 0.75 / curvature), rtol=1e-3)


def test_a_fixed_step_that_diverges_is_shortened():
    """A step that overshoots along the steepest direction is followed by shorter ones."""
    curvature = [0.9, 0.2, 0.05]
    fixed, _ = descend(curvature, ServerOptimiser(lr=3.0), rounds=60)
    careful, _ = descend(curvature, ServerOptimiser(lr=1.0), rounds=60)
    ours, _ = descend(curvature, ServerOptimiser("adaptive", lr=3.0, min_lr=0.5), rounds=60)
    assert np.linalg.norm(fixed) > 1e6
    assert np.linalg.norm(ours) < 0.2 * np.linalg.norm(careful)


def test_noise_of_the_draw_does_not_count_as_curvature():
    """d = g + noise, f measures g: on a straight slope the estimate of the curvature is 0."""
    rng, size = np.random.default_rng(0), 400
    server = ServerOptimiser("adaptive", lr=3.0, min_lr=0.1)
    g = np.ones(size)
    for _ in range(60):
        d, f = (g + rng.normal(size=size) for _ in range(2))  # variance: size in all
        server.step([np.zeros(size)], [d], noise=float(size), fresh=[f])
    # The curvature is 0 but for sampling errors, which let a step of 2 pass at least.
    assert server.last_lr > 2.0


def test_the_curvature_is_measured_by_reports_not_by_memory():
    """The remembered update still points on where the reports point back."""
    aggregator = make_aggregator("memory", server=ServerOptimiser("adaptive"))
    x, everyone = [np.array([5.0])], np.arange(K)
    for t in range(12):
        clients = everyone[t % 4 :: 4]
        back = [[0.1 * x[0]] for _ in clients]  # one local step goes nine tenths of the way
        x = aggregator.aggregate(x, back, clients, np.ones(K), selection(clients, len(clients) / K))
    assert aggregator.server.last_lr == 1.0


def test_a_state_without_curvature_still_loads():
    old = ServerOptimiser("adaptive").state_dict() | {"first": [np.array([2.0, 1.0])], "steps": 1}
    del old["last"], old["last_lr"]
    server = ServerOptimiser("adaptive")
    server.load_state_dict(old)
    server.step([np.zeros(2)], [np.ones(2)], noise=0.0)
    assert 1.0 <= server.last_lr <= 3.0
    for wrong in ({"last_lr": -1.0}, {"last": [np.array([np.nan])]}, {"last": 3}):
        with pytest.raises(ValueError, match="last"):
            server.load_state_dict(old | wrong)


def test_half_precision_and_arrays_that_do_not_move():
    """Squares of float16 overflow beyond 65,504: sums are taken in float64."""
    server = ServerOptimiser("adaptive")
    model = [np.zeros(10_000, dtype=np.float16), np.array([True, False]), np.arange(3)]
    for _ in range(4):
        after = [model[0] + np.float16(4.0), model[1], model[2]]
        server.step(model, after, noise=0.0, fresh=[np.full(10_000, 4.0), *model[1:]])
    other = ServerOptimiser("adaptive")
    other.load_state_dict(server.state_dict())
    assert_allclose(other.last_lr, 1.1**4, rtol=1e-9)
    aggregator = make_aggregator("sizes", server=ServerOptimiser("adaptive"))
    got = aggregator.aggregate(model, [model] * 2, [0, 1], np.ones(K), selection([0, 1]))
    assert got[1].dtype == bool


def test_other_kinds_say_their_own_step():
    assert ServerOptimiser(lr=2.0).last_lr == 2.0


def averaged_loss(server, ratio, seed, rounds=60):
    """Return the mean loss of the average, decay 0.8, over the last ten rounds of a descent.

    The noise of an update is `ratio` times as long as the slope, and a little more.
    """
    rng, curvature = np.random.default_rng(seed), np.geomspace(0.02, 0.3, 40)
    x, average, losses = np.full(40, 2.0), ModelAverage(decay=0.8), []
    for _ in range(rounds):
        slope = -curvature * x
        noise = np.hypot(ratio * np.linalg.norm(slope) / 40**0.5, 0.01)
        update = slope + noise * rng.normal(size=40)
        [x] = server.step([x], [x + update], noise=40 * noise**2, fresh=[update])
        [mean] = average.update([x])
        losses.append(0.5 * curvature @ mean**2)
    return np.mean(losses[-10:])


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5])
def test_with_averages_the_rule_comes_near_to_the_best_fixed_step(ratio):
    """The longest fixed steps diverge once noise grows with the update; the rule does not."""

    def loss(**options):
        return np.mean([averaged_loss(ServerOptimiser(**options), ratio, s) for s in range(5)])

    fixed = [loss(lr=lr) for lr in (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)]
    told = loss(kind="adaptive", averaged=True)
    assert told < 1.5 * min(fixed)
    assert told < 0.2 * fixed[0]
    assert fixed[-1] > 1e6


def test_what_is_averaged_is_said_of_adaptive_alone():
    told = ServerOptimiser("adaptive", averaged=True)
    assert (told.lr, told.caution) == (8.0, 1.5)
    assert ServerOptimiser("adaptive", averaged=True, lr=4.0, caution=0.5).caution == 0.5
    with pytest.raises(ValueError, match="averaged must be False with kind 'sgd', got True"):
        ServerOptimiser(averaged=True)
