"""Our own exponential, against the C library's."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore._exponential import LEAST, exponential


def inputs():
    rng = np.random.default_rng(0)
    near = -np.exp(rng.uniform(-40, math.log(-LEAST), size=9_990))
    halves = np.log(2.0) * (np.arange(-999, 0) + 0.5)  # where the number of doublings changes
    edges = [0.0, -0.0, -1e-320, LEAST, np.nextafter(LEAST, -1e3), -1e6, -np.inf]
    return np.concatenate([near, halves, np.nextafter(halves, 0), edges])


def test_it_is_within_two_units_of_the_last_place():
    x = inputs()
    x = x[x >= LEAST]
    expected = np.array([math.exp(value) for value in x])
    found = np.array([exponential(value) for value in x])
    assert np.abs(found - expected).max() > 0  # or it is not ours that is tested
    assert (np.abs(found - expected) <= 2 * np.spacing(expected)).all()
    assert exponential(0.0) == exponential(-0.0) == 1.0


def test_far_below_nothing_is_left():
    for value in (np.nextafter(LEAST, -1e3), -1e6, -1e300, -np.inf):
        assert exponential(value) == 0.0


@pytest.mark.parametrize("gamma", [1.0, 0.37])
@pytest.mark.parametrize("n", [1, 3, 4, 11])
def test_rows_decay_to_the_same_bits_in_every_build(kernels, gamma, n):
    distances = -inputs()
    distances = distances[: distances.size // n * n].reshape(-1, n)
    expected = [[exponential(-gamma * value) for value in row] for row in distances]
    found = distances.copy()
    kernels["decay_rows"](found, gamma)
    assert_array_equal(found, expected)
    with np.errstate(under="ignore"):
        assert_allclose(found, np.exp(-gamma * distances), rtol=1e-15, atol=1e-300)
    kernels["decay_rows"](np.empty((0, n)), gamma)
