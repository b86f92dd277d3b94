"""Learned policies: features by hand, any function as a scorer, state without code."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.selectors.learned import FEATURES, LearnedSelector


def test_features_are_what_the_table_says():
    selector = LearnedSelector(
        4, 2, weights=[1, 2, 3, 2], seed=0, scorer=np.zeros(7), features=list(FEATURES)
    )
    assert selector.needs == {"losses", "norms", "durations"}
    assert_allclose(selector.client_features()[2], [1.5, 0, 1, 0, 0, 0, 0])
    picked = selector.select().clients
    selector.observe(picked, losses=[3.0, 4.0], norms=[5.0, 6.0], durations=[7.0, 8.0])
    first = selector.client_features()[picked[0]]
    # Two of four clients reported once: twice the mean; a round ago, of two that a pass takes.
    assert_allclose(first[1:], [2.0, 0.5, 1.0, 3.0, 5.0, 7.0])


def test_any_function_ranks():
    selector = LearnedSelector(5, 2, weights=[5, 1, 4, 2, 3], scorer=lambda x: -x[:, 0])
    assert sorted(selector.select().clients) == [1, 3]
    assert sorted(selector.select(available=[0, 2, 4]).clients) == [2, 4]


def test_explored_places_are_uniform_over_the_rest():
    selector = LearnedSelector(
        6, 2, weights=[9, 1, 1, 1, 1, 1], seed=0, scorer=[1.0], features=["size"], explore=0.5
    )
    counts = np.zeros(6)
    for _ in range(3000):
        selection = selector.select()
        counts[selection.clients] += 1
    assert_allclose(selection.inclusion, [1.0] + [0.2] * 5)
    assert counts[0] == 3000
    assert np.abs(counts[1:] - 600).max() < 4 * np.sqrt(3000 * 0.2 * 0.8)


def test_linear_scorer_is_saved_and_a_function_is_asked_for_again(tmp_path):
    def scorer(rows):
        return rows[:, 0]

    linear = LearnedSelector(6, 2, seed=1, scorer=[0.0, -1.0, 1.0])
    linear.save(tmp_path / "linear.npz")
    again = cvrcore.Selector.load(tmp_path / "linear.npz")
    assert_array_equal(again.select().clients, linear.select().clients)

    function = LearnedSelector(6, 2, seed=1, scorer=scorer)
    function.save(tmp_path / "function.npz")
    with pytest.raises(ValueError, match="scorer must be given"):
        LearnedSelector.load(tmp_path / "function.npz")
    with pytest.raises(ValueError, match="scorer must be given"):
        cvrcore.Selector.load(tmp_path / "function.npz")
    loaded = LearnedSelector.load(tmp_path / "function.npz", scorer=scorer)
    assert_array_equal(loaded.select().clients, function.select().clients)
    function.load_state_dict(loaded.state_dict())
    assert function.scorer is scorer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["colour"]}, "features must be among size, picks"),
        ({"features": []}, "features must be distinct and at least one"),
        ({"features": ["size", "size"], "scorer": [1, 1]}, "must be distinct"),
        ({"scorer": [1.0]}, "scorer must have shape"),
        ({"explore": 1.5}, "explore must be at most 1"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LearnedSelector(4, 2, **options)


def test_scores_must_fit_and_be_finite():
    for wrong in (lambda x: x[:2, 0], lambda x: np.full(len(x), np.nan)):
        selector = LearnedSelector(4, 2, scorer=wrong)
        with pytest.raises(ValueError, match="scores of the scorer"):
            selector.select()


@pytest.mark.parametrize("explore", [0.0, 0.5])
def test_clients_that_tie_share_their_places(explore):
    """Frequencies over seeds within four standard errors, where sizes of two clients tie."""
    counts, trials = np.zeros(6), 3000
    for seed in range(trials):
        selector = LearnedSelector(
            6, 4, [9, 5, 5, 5, 1, 1], seed, scorer=[1.0], features=["size"], explore=explore
        )
        picked = selector.select()
        counts[picked.clients] += 1
    expected = [1, 1, 1, 1, 0, 0] if explore == 0 else [1, *[1 / 3 + 2 / 3 * 0.5] * 3, 0.5, 0.5]
    assert_allclose(picked.inclusion, expected)
    error = np.sqrt(picked.inclusion * (1 - picked.inclusion) / trials)
    assert (np.abs(counts / trials - picked.inclusion) <= 4 * error + 1e-12).all()


def test_all_clients_tie_at_the_start():
    picked = cvrcore.make_selector("learned", n_clients=8, n_select=3, seed=0).select()
    assert_allclose(picked.inclusion, 3 / 8)
