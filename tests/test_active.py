import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from cvrcore.selectors.active import ActiveSelector
from cvrcore.selectors.uniform import UniformSelector

SIZES = np.array([1.0, 4.0, 9.0, 16.0, 25.0, 36.0])
LOSSES = np.array([0.9, 0.2, 0.4, 0.1, 0.3, 0.05])


def swept(selector, losses):
    """Give every client its value; nothing is trained."""
    asked = selector.probe()
    assert_array_equal(asked, np.arange(selector.n_clients))
    selector.select(losses=losses)
    return selector


def softmax(x):
    odds = np.exp(x - x.max())
    return odds / odds.sum()


def test_alpha3_of_one_is_the_uniform_policy_draw_for_draw():
    active = ActiveSelector(12, 4, seed=0, alpha3=1.0)
    uniform = UniformSelector(12, 4, seed=0)
    for _ in range(20):
        assert active.probe() is None  # values would not be read
        assert_array_equal(active.select().clients, uniform.select().clients)


@pytest.mark.parametrize(
    "alphas", [{"alpha1": 0.0, "alpha2": 0.0, "alpha3": 1.0}, {"alpha1": 0.0, "alpha2": 0.0}]
)
def test_without_values_every_pair_is_equally_likely(alphas):
    n_rounds = 6000
    selector = ActiveSelector(5, 2, seed=1, **alphas)
    pairs = np.zeros((5, 5), dtype=int)
    for _ in range(n_rounds):
        asked = selector.probe()
        picked = selector.select(losses=None if asked is None else asked + 1.0)
        i, j = sorted(picked.clients)
        pairs[i, j] += 1
    assert chisquare(pairs[np.triu_indices(5, 1)]).pvalue > 1e-4
    assert_allclose(picked.inclusion, 0.4, rtol=1e-12)


def test_law_is_softmax_of_root_size_times_mean_loss():
    selector = swept(ActiveSelector(6, 1, SIZES, 2, alpha1=0.0), LOSSES)
    picked = selector.select()
    assert_allclose(picked.scores, [0.9, 0.4, 1.2, 0.4, 1.5, 0.3], rtol=1e-12)
    assert_allclose(picked.probabilities, softmax(picked.scores), rtol=1e-12)
    assert_allclose(picked.inclusion, picked.probabilities, rtol=1e-12)
    first = [selector.select().clients[0] for _ in range(6000)]
    assert chisquare(np.bincount(first, minlength=6), picked.probabilities * 6000).pvalue > 1e-4


def test_alpha1_is_the_fraction_dropped():
    selector = swept(ActiveSelector(10, 2, seed=3, alpha2=0.0), np.arange(10.0))
    picks = np.array([selector.select().clients for _ in range(50)])
    assert set(picks.ravel()) == {8, 9}  # 0.8 drops eight


def test_the_drop_leaves_enough_to_draw():
    selector = swept(ActiveSelector(6, 4, seed=4, alpha1=1.0), LOSSES)
    assert set(selector.select().clients) == {0, 1, 2, 4}


@pytest.mark.parametrize(("alpha1", "n_clients", "kept"), [(0.29, 100, 71), (0.57, 100, 43)])
def test_fraction_dropped_survives_rounding(alpha1, n_clients, kept):
    # 0.29 * 100 is 28.999999999999996 in binary.
    selector = ActiveSelector(n_clients, 1, seed=5, alpha1=alpha1, alpha2=0.0)
    swept(selector, np.arange(float(n_clients)))
    assert np.count_nonzero(selector.select().probabilities) == kept


def test_uniform_share_survives_rounding_and_inclusion_is_exact():
    # (1 - 0.9) * 10 is 0.9999999999999998 in binary: one client goes by value.
    n_rounds = 4000
    selector = swept(ActiveSelector(20, 10, seed=6, alpha1=0.8, alpha3=0.9), np.arange(20.0) / 10)
    picks = [selector.select() for _ in range(n_rounds)]
    assert np.count_nonzero(picks[0].probabilities) == 4
    assert_allclose(picks[0].inclusion.sum(), 10, rtol=1e-12)
    frequency = np.bincount(np.concatenate([p.clients for p in picks])) / n_rounds
    expected = picks[0].inclusion
    error = 4 * np.sqrt(expected * (1 - expected) / n_rounds)
    assert (np.abs(frequency - expected) < error).all()


def test_values_change_only_for_participants():
    selector = swept(ActiveSelector(6, 2, SIZES, 7), LOSSES)
    picked = selector.select()
    reported, failed = picked.clients
    selector.observe([reported], losses=[3.0], failed=[failed])
    values = selector.select().scores
    expected = np.sqrt(SIZES) * LOSSES
    expected[reported] = np.sqrt(SIZES[reported]) * 3.0
    assert_allclose(values, expected, rtol=1e-12)  # the dropped keep theirs too


def test_probe_returns_clients_without_a_value():
    selector = ActiveSelector(6, 2, seed=8)
    assert_array_equal(selector.probe([0, 1, 2, 3]), [0, 1, 2, 3])
    selector.select([0, 1, 2, 3], losses=[1.0, np.nan, 2.0, 3.0])
    assert_array_equal(selector.probe(), [1, 4, 5])
    selector.select(losses=[1.0, 1.0, 1.0])
    assert selector.probe() is None
    selector.select()
    selector.resize(8, [5.0, 5.0])
    assert_array_equal(selector.probe(), [6, 7])


def test_clients_without_an_answer_are_drawn_only_if_too_few_answered():
    selector = ActiveSelector(5, 2, seed=9)
    for _ in range(30):
        selector.probe()
        answers = np.array([np.nan, -3.0, np.nan, -4.0, np.nan])[np.isnan(selector._losses)]
        assert set(selector.select(losses=answers).clients) == {1, 3}
    alone = ActiveSelector(5, 2, seed=9)
    alone.probe()
    assert len(alone.select(losses=np.full(5, np.nan))) == 2


def test_scripts_preset_ranks_fresh_losses_of_uniform_candidates():
    n_rounds = 4000
    selector = ActiveSelector(9, 2, np.arange(1.0, 10.0), 10, preset="scripts")
    loss, asked_count = np.linspace(-1, 1, 9), np.zeros(9)
    for _ in range(n_rounds):
        asked = selector.probe()
        asked_count[asked] += 1
        picked = selector.select(losses=loss[asked])
        assert set(picked.clients) <= set(asked)
        selector.observe(picked.clients, losses=[100.0, 100.0])  # not remembered
    law = np.zeros(9)
    law[asked] = softmax(loss[asked])
    assert_allclose(picked.probabilities, law, rtol=1e-12)
    error = 4 * np.sqrt(4 / 9 * 5 / 9 / n_rounds)
    assert_allclose(asked_count / n_rounds, 4 / 9, atol=error)


@pytest.mark.parametrize("preset", ["paper", "goetz", "scripts"])
@pytest.mark.parametrize("alpha2", [None, 1e9])
def test_extreme_losses_neither_overflow_nor_repeat(preset, alpha2):
    selector = ActiveSelector(8, 4, np.full(8, 1e6), 11, preset=preset, alpha2=alpha2)
    loss = np.array([1.7e308, -1.7e308, 1e200, 0.0, 1.0, 1.7e308, -1e-300, 50.0])
    asked = selector.probe()
    picked = selector.select(losses=loss[asked])
    assert np.unique(picked.clients).size == 4
    assert_allclose(picked.probabilities.sum(), 1.0, rtol=1e-12)


def test_missing_losses_are_named():
    selector = ActiveSelector(6, 2, seed=12)
    with pytest.raises(ValueError, match="losses must be given to active while no eligible"):
        selector.select()
    swept(selector, LOSSES)
    with pytest.raises(ValueError, match=r"losses must be given to active: .* 2 clients"):
        selector.observe(selector.select().clients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "authors"}, "preset must be one of 'paper', 'goetz', 'scripts', got 'authors'"),
        ({"alpha1": 1.5}, "alpha1 must be at most 1, got 1.5"),
        ({"alpha2": -1}, "alpha2 must be at least 0, got -1"),
        ({"alpha3": float("nan")}, "alpha3 must be finite, got nan"),
    ],
)
def test_rejects_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ActiveSelector(6, 2, **options)
