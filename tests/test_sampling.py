import naive
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

import cvrcore
from cvrcore.draws.coalition_draw import Law, draw_selection
from cvrcore.draws.laws import Groups, draw, inclusion_of, log_law, places_of, probabilities_of


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_law_matches_naive(rtol, temperature):
    rng = np.random.default_rng(0)
    scores, labels, mask = rng.normal(size=30), np.arange(30) % 7, rng.random(30) < 0.6
    expected = naive.boltzmann(scores, labels, temperature, mask)
    found = cvrcore.boltzmann(scores, labels, temperature, available=mask)
    assert_allclose(found, expected, rtol=rtol)


def test_temperature_limits_are_argmax_and_uniform():
    scores, labels = np.array([1.0, 3.0, 3.0, 2.0, 5.0]), np.array([0, 0, 0, 1, 1])
    cold = cvrcore.boltzmann(scores, labels, temperature=1e-300)
    assert_array_equal(cold, [0, 0.5, 0.5, 0, 1])
    hot = cvrcore.boltzmann(scores, labels, temperature=1e300)
    assert_allclose(hot, [1 / 3, 1 / 3, 1 / 3, 0.5, 0.5], rtol=1e-12)


@given(
    scores=hnp.arrays(np.float64, 12, elements=st.floats(-1e12, 1e12)),
    temperature=st.floats(1e-6, 1e6),
    mask=hnp.arrays(bool, 12),
    score=st.sampled_from(["raw", "zscore", "log"]),
)
@settings(max_examples=150, deadline=None)
def test_law_is_always_a_law(scores, temperature, mask, score):
    labels = np.arange(12) % 5
    scores = np.abs(scores) if score == "log" else scores
    law = cvrcore.boltzmann(scores, labels, temperature, mask, score)
    assert (law >= 0).all()
    assert not law[~mask].any()
    for p in range(5):
        total = law[labels == p].sum()
        assert total == pytest.approx(1.0 if mask[labels == p].any() else 0.0, abs=1e-12)


@given(
    labels=hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 6)),
    data=st.data(),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_sorting_by_label_is_a_stable_sort(kernels, labels, data):
    kept = data.draw(hnp.arrays(bool, labels.size))
    order = np.full(labels.size, -1)
    starts, sizes = np.empty((2, 7), dtype=np.int64)
    n_kept = kernels["sort_by_label"](labels, kept.view(np.uint8), order, starts, sizes)
    ids = np.flatnonzero(kept)
    assert_array_equal(order[:n_kept], ids[np.argsort(labels[ids], kind="stable")])
    assert_array_equal(sizes, np.bincount(labels[ids], minlength=7))
    assert_array_equal(starts, np.cumsum(sizes) - sizes)


def test_labels_of_clients_not_kept_are_not_read(kernels):
    labels, order = np.array([10**9, 1, -1, 0]), np.empty(4, dtype=np.int64)
    kept = np.array([0, 1, 0, 1], dtype=np.uint8)
    starts, sizes = np.empty((2, 2), dtype=np.int64)
    assert kernels["sort_by_label"](labels, kept, order, starts, sizes) == 2
    assert_array_equal(order[:2], [3, 1])


@given(
    scores=hnp.arrays(np.float64, 15, elements=st.floats(-50, 50)),
    temperature=st.sampled_from([1e-300, 0.3, 1.0, 20.0]),
    mask=hnp.arrays(bool, 15),
    seed=st.integers(0, 99),
)
@settings(
    max_examples=160, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_compiled_draw_picks_the_clients_of_the_gumbel_keys(
    backend, scores, temperature, mask, seed
):
    """One place each: same law, and the same clients from the same random numbers."""
    if not mask.any():
        return
    labels = np.arange(15) * 7 % 15 % 4
    law = Law.of(scores, labels, mask, temperature)
    picked = law.draw(labels, mask, np.random.default_rng(seed))
    with np.errstate(over="ignore"):
        expected = naive.boltzmann(scores, labels, temperature, mask)
    assert_allclose(law.probabilities, expected, rtol=1e-13, atol=1e-300)
    sizes = np.bincount(labels[mask], minlength=4)
    assert_array_equal(law.counts, sizes)
    groups = Groups.of(labels, mask)
    logs = log_law(scores, groups, "boltzmann", temperature)
    ones = np.ones(groups.sizes.size, dtype=np.int64)
    assert_array_equal(picked, draw(logs, scores, groups, ones, np.random.default_rng(seed)))


def chi_square_p(counts, law):
    expected = law * counts.sum()
    kept = expected > 0
    assert not counts[~kept].any()
    if kept.sum() < 2:
        return 1.0
    return stats.chisquare(counts[kept], expected[kept]).pvalue


def test_draws_follow_the_boltzmann_law():
    rng = np.random.default_rng(1)
    scores, labels, n_draws = rng.normal(size=20), np.arange(20) % 4, 20_000
    eligible = np.ones(20, dtype=bool)
    counts = np.zeros(20)
    for _ in range(n_draws):
        counts[draw_selection(labels, scores, eligible, 4, rng).clients] += 1
    law = cvrcore.boltzmann(scores, labels)
    for p in range(4):
        assert chi_square_p(counts[labels == p], law[labels == p]) > 1e-4


def test_extra_places_are_drawn_without_replacement_by_the_same_law():
    """Two from one coalition: the sequential law, against NumPy's own sampler."""
    scores, labels = np.array([0.0, 1.0, 2.0, 0.5]), np.zeros(4, dtype=np.int64)
    eligible, n_draws = np.ones(4, dtype=bool), 20_000
    law = cvrcore.boltzmann(scores, labels)
    ours, theirs = np.random.default_rng(2), np.random.default_rng(3)
    counts = np.zeros((2, 4, 4))
    for _ in range(n_draws):
        first, second = draw_selection(labels, scores, eligible, 2, ours).clients
        counts[0, first, second] += 1
        first, second = theirs.choice(4, size=2, replace=False, p=law)
        counts[1, first, second] += 1
    pairs = ~np.eye(4, dtype=bool)
    table = counts[:, pairs]
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert chi_square_p(counts[0].sum(axis=1), law) > 1e-4


@pytest.mark.parametrize("law", ["boltzmann", "argmax", "uniform"])
def test_stated_inclusion_is_the_frequency(law):
    rng = np.random.default_rng(4)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
    scores = np.array([1, 2, 2, 0, 1, 5, 5, 5, 5, 5.0])  # equal where two places fall
    eligible = np.ones(10, dtype=bool)
    n_draws, counts = 8000, np.zeros(10)
    for _ in range(n_draws):
        picked = draw_selection(labels, scores, eligible, 4, rng, within=law)
        counts[picked.clients] += 1
    assert picked.inclusion is not None
    error = 4 * np.sqrt(picked.inclusion * (1 - picked.inclusion) / n_draws)
    assert (np.abs(counts / n_draws - picked.inclusion) <= error + 1e-12).all()
    assert picked.inclusion.sum() == pytest.approx(4)


def test_inclusion_of_several_unequal_places_is_exact():
    groups = Groups.of(np.zeros(3, dtype=np.int64), np.ones(3, dtype=bool))
    scores = np.array([0.0, 1.0, 2.0])
    weights = log_law(scores, groups)
    law = probabilities_of(weights, groups, 3)
    found = inclusion_of(law, weights, scores, groups, np.array([2]))()
    first, second, third = law
    left_out = first * second / (1 - first) + second * first / (1 - second)  # the third
    assert found[2] == pytest.approx(1 - left_out, rel=1e-12)
    assert found.sum() == pytest.approx(2, rel=1e-12)


def test_inclusion_of_clients_without_probability_goes_by_score():
    groups = Groups.of(np.zeros(4, dtype=np.int64), np.ones(4, dtype=bool))
    scores = np.array([3.0, 1.0, 2.0, 3.0])
    weights = log_law(scores, groups, "argmax")
    law = probabilities_of(weights, groups, 4)
    for places, expected in ((1, [0.5, 0, 0, 0.5]), (2, [1, 0, 0, 1]), (3, [1, 0, 1, 1])):
        found = inclusion_of(law, weights, scores, groups, np.array([places]))
        assert_allclose(found() if callable(found) else found, expected)


def test_argmax_shares_equal_scores_and_takes_the_next_best():
    rng = np.random.default_rng(5)
    labels, scores = np.zeros(4, dtype=np.int64), np.array([1.0, 7.0, 7.0 * (1 + 1e-14), 3.0])
    eligible = np.ones(4, dtype=bool)
    firsts = {
        draw_selection(labels, scores, eligible, 1, rng, within="argmax").clients[0].item()
        for _ in range(50)
    }
    assert firsts == {1, 2}  # a rounding error decides nothing
    three = draw_selection(labels, scores, eligible, 3, rng, within="argmax").clients
    assert set(three[:2]) == {1, 2}
    assert three[2] == 3


def test_spare_places_go_to_the_coalition_with_most_clients_left():
    labels = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
    eligible = np.array([0, 0, 1, 0, 0, 1, 1, 1, 1], dtype=bool)
    groups = Groups.of(labels, eligible)
    assert_array_equal(groups.sizes, [1, 4])
    assert_array_equal(places_of(groups, 3), [1, 2])
    assert_array_equal(places_of(groups, 9), [1, 4])
    assert_array_equal(places_of(groups, 1), [1, 1])  # one each is the least


@given(
    labels=hnp.arrays(np.int64, 15, elements=st.integers(0, 4)),
    eligible=hnp.arrays(bool, 15).filter(lambda mask: mask.any()),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_always_distinct_eligible_clients(labels, eligible, seed):
    groups = Groups.of(labels, eligible)
    places = places_of(groups, 5)
    log_weights = log_law(np.arange(15.0), groups, "boltzmann", 1e-3)
    clients = draw(log_weights, np.arange(15.0), groups, places, np.random.default_rng(seed))
    assert len(set(clients.tolist())) == clients.size == min(5, eligible.sum())
    assert eligible[clients].all()
    assert set(labels[clients]) == set(labels[eligible])  # each coalition is heard


def test_zscore_ignores_the_scale_of_scores_and_log_makes_it_a_power():
    labels = np.array([0, 0, 0, 1, 1, 1])
    scores = np.array([1.0, 2.0, 4.0, 5.0, 6.0, 7.0])
    one = cvrcore.boltzmann(scores, labels, score="zscore")
    assert_allclose(cvrcore.boltzmann(1e-6 * scores, labels, score="zscore"), one, rtol=1e-9)
    power = cvrcore.boltzmann(scores, labels, temperature=0.5, score="log")
    assert_allclose(power[:3], scores[:3] ** 2 / np.sum(scores[:3] ** 2), rtol=1e-12)
    flat = cvrcore.boltzmann(np.full(6, 3.0) * (1 + 1e-15), labels, score="zscore")
    assert_allclose(flat, 1 / 3, rtol=1e-12)
