"""The worked example of the policy `learned`: what it trains, and what its page says."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install scikit-learn")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))
import learned_digits as example  # noqa: E402


@pytest.fixture(scope="module")
def scorer():
    return example.fit(*example.past_runs())


def test_past_runs_are_uniform_and_gains_are_relative_to_their_round():
    rows, gains = example.past_runs([40, 41], n_rounds=30)
    assert rows.shape == (2 * 30 * example.N_SELECT, len(example.FEATURES))
    by_round = gains.reshape(-1, example.N_SELECT)
    np.testing.assert_allclose(by_round.mean(axis=1), 0.0, atol=1e-9)
    np.testing.assert_allclose(by_round.std(axis=1), 1.0, atol=1e-6)
    size = rows[:, example.FEATURES.index("size")]
    # Uniform picks have the mean size of all clients, 1, up to four standard errors.
    assert abs(size.mean() - 1.0) < 4 * size.std() / len(size) ** 0.5


def test_the_ranker_predicts_gains_in_runs_that_it_has_not_seen(scorer):
    rows, gains = example.past_runs(range(50, 58))
    found = np.corrcoef(scorer(rows), gains)[0, 1]
    assert found > 5 / len(gains) ** 0.5  # five standard errors of no correlation


def test_training_and_comparison_share_no_seed():
    assert not set(example.PAST_SEEDS) & set(example.NEW_SEEDS)
    first, second = example.Federation(0), example.Federation(20)
    assert not np.array_equal(first.sizes, second.sizes)
    assert not set(first.validation) & {int(i) for own in first.clients for i in own}


def test_the_page_states_what_the_example_prints(scorer):
    page = (ROOT / "docs" / "policies" / "learned.md").read_text()
    stated = re.findall(r"\| (0|0\.4) \| ([\d.]+) \| ([\d.]+) \| ([+-][\d.]+) \[", page)
    assert [float(explore) for explore, *_ in stated] == [0.0, 0.4]
    for explore, *numbers in stated:
        found = example.compare(scorer, explore=float(explore))
        mean, low, high = example.paired(found)
        assert low < mean < high
        wanted = 100 * np.array([*found.mean(axis=0), mean])
        # Another BLAS rounds otherwise, and one other pick changes a run a little.
        assert np.abs(wanted - np.array(numbers, dtype=float)).max() < 1.5
