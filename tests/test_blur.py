"""Less revealing features: what is kept of a row, and that no report adds to it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore.aggregators import make_aggregator
from cvrcore.head import Blur
from cvrcore.selection import Selection

ROWS = np.array([[0.6, -0.8, 0.0], [0.0, 0.0, 0.0], [-3.0, 4.0, 0.0]])
CLIENTS = np.array([4, 0, 9])


def test_without_noise_and_coarseness_rows_stay():
    assert Blur().is_identity
    assert_array_equal(Blur()(ROWS, CLIENTS), ROWS)


def test_coarse_rows_by_hand():
    half = 0.5**0.5
    assert_allclose(
        Blur(coarse="sign")(ROWS, CLIENTS), [[half, -half, 0], [0, 0, 0], [-half, half, 0]]
    )
    assert_array_equal(Blur(coarse="top")(ROWS, CLIENTS), [[1, 0, 0], [0, 0, 0], [0, 1, 0]])


def test_noise_has_the_stated_size_and_rows_length_one():
    blur = Blur(noise=0.2, seed=5)
    rows = np.zeros((4000, 6))
    rows[:, 2] = 7.0
    found = blur(rows, np.arange(4000))
    assert_allclose(np.linalg.norm(found, axis=1), 1.0)
    # Before the scaling to length 1, coordinates 0 and 2 are 0.2 g and 1 + 0.2 h.
    rng = [np.random.default_rng([5, k]).standard_normal(6) for k in range(4000)]
    noisy = 0.2 * np.array(rng) + np.eye(6)[2]
    assert_allclose(found, noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    assert abs(noisy[:, 0].std() - 0.2) < 4 * 0.2 / np.sqrt(2 * 4000)


def test_a_client_that_reports_again_reveals_no_more():
    blur = Blur(noise=1.0, seed=1)
    once, again = blur(ROWS[:1], [4]), Blur(noise=1.0, seed=1)(2 * ROWS[:1], [4])
    assert_allclose(once, again)
    assert not np.allclose(once, blur(ROWS[:1], [5]))
    assert not np.allclose(once, Blur(noise=1.0, seed=2)(ROWS[:1], [4]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"noise": -0.1}, ValueError, "noise must be at least 0, got -0.1"),
        ({"noise": "much"}, TypeError, "noise must be a number"),
        ({"coarse": "k-means"}, ValueError, "coarse must be one of 'none', 'sign', 'top'"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Blur(**options)


def test_bad_rows_are_refused():
    with pytest.raises(ValueError, match=r"clients must have shape \(3,\), got \(2,\)"):
        Blur()(ROWS, [1, 2])
    with pytest.raises(ValueError, match="clients must be at least 0, got -1"):
        Blur()(ROWS, [1, 2, -1])
    with pytest.raises(ValueError, match=r"rows must be a matrix, got shape \(3,\)"):
        Blur()(ROWS[0], [1, 2, 3])


def test_factor_memory_keeps_blurred_features_alone():
    aggregator = make_aggregator("factor-memory", coarse="top")
    sent = [np.zeros((3, 2)), np.zeros(3)]
    models = [[np.ones((3, 2)), np.array([0.1, 0.5, -0.2])], [np.ones((3, 2)), np.ones(3) * -0.1]]
    models[1][1][0] = 0.3
    picked = Selection(np.array([0, 2]), inclusion=np.full(4, 0.5))
    aggregator.aggregate(sent, models, [0, 2], np.ones(4), picked)
    kept = aggregator.state_dict()["features"]
    assert_array_equal(kept[[0, 2]], [[0, 1, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match="must be left out with given features"):
        make_aggregator("factor-memory", features=np.ones((4, 2)), noise=0.1)
