"""The best clients by score, against a full sort; and checks of short arrays."""

import numpy as np
import pytest
import scipy.stats

from cvrcore.draws.ranking import best_of
from cvrcore.validation import check_finite


@pytest.mark.parametrize("n", [1, 5, 60])
def test_best_of_is_a_sort_without_ties(n):
    rng = np.random.default_rng(n)
    for size in range(n + 1):
        scores = rng.normal(size=n)
        np.testing.assert_array_equal(best_of(scores, size, rng), np.argsort(-scores)[:size])


def test_ties_are_uniform_and_only_ties_vary():
    scores, rng = np.array([5.0, 1.0, 3.0, 3.0, 3.0, 0.0]), np.random.default_rng(0)
    counts = np.zeros(6)
    for _ in range(3000):
        found = best_of(scores, 3, rng)
        assert found[0] == 0
        counts[found] += 1
    assert counts[[1, 5]].tolist() == [0, 0]
    assert scipy.stats.chisquare(counts[2:5]).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 5000])
def test_finite_arrays_of_any_length_and_size_pass_and_others_do_not(dtype, size):
    array = np.zeros(size, dtype=dtype)
    array[1] = 0.9 * np.finfo(dtype).max  # its square overflows
    check_finite(array, "x")
    with pytest.raises(ValueError, match="x must stay within 10"):
        check_finite(array, "x", 10.0)
    array[1] = 9.0
    array[2] = -9.0  # together above 10 in norm
    check_finite(array, "x", 10.0)
    for wrong in (np.nan, np.inf, -np.inf):
        array[2] = wrong
        with pytest.raises(ValueError, match=r"x must be finite, got .* at \[2\]"):
            check_finite(array, "x")
