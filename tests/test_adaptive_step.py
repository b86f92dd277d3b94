"""The adaptive server step: its variance against enumeration, its length where it is known."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from cvrcore.aggregators import AGGREGATORS, ServerOptimiser, make_aggregator
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
    assert 1.0 <= aggregator.server.last_lr < 3.0


def test_full_participation_and_equal_updates_take_the_longest_step():
    for name, clients, pi in (("sizes", np.arange(K), 1.0), ("memory", np.arange(P), P / K)):
        aggregator = make_aggregator(name, server=ServerOptimiser("adaptive", lr=2.5))
        one = models(4)[0]
        got = aggregator.aggregate(
            MODEL, [one] * len(clients), clients, np.ones(K), selection(clients, pi)
        )
        assert_allclose(got[1], 2.5 * one[1], rtol=1e-6)


def test_step_is_the_share_that_the_noise_leaves():
    server = ServerOptimiser("adaptive", lr=3.0, min_lr=0.5)
    got = server.step([np.zeros(2)], [np.array([3.0, 4.0])], noise=10.0)
    assert_allclose(got[0], 3.0 * (1 - 10 / 25) * np.array([3.0, 4.0]))
    # Running means: both numbers of the second round count a tenth beside nine hundredths.
    server.step([np.zeros(2)], [np.array([3.0, 4.0])], noise=30.0)
    v = (0.9 * 10 + 25) / (0.9 * 25 + 25)
    assert_allclose(server.last_lr, max(3.0 * (1 - v), 0.5))
    for _ in range(40):
        server.step([np.zeros(2)], [np.array([3.0, 4.0])], noise=1e9)
    assert server.last_lr == 0.5


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
