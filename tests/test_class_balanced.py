import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare

from cvrcore import make_selector
from cvrcore.selectors.class_balanced import ClassBalancedSelector, qcid

COUNTS = np.array([[8, 1, 1], [1, 6, 0], [3, 3, 3], [0, 0, 5], [2, 9, 4]])


def make(n_select, seed, counts=COUNTS, **options):
    return ClassBalancedSelector(len(counts), n_select, None, seed, label_counts=counts, **options)


def skewed_counts(n_clients, n_classes, seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(n_classes, 0.1), n_clients)
    return rng.multinomial(rng.integers(50, 500, n_clients), shares) + np.eye(n_classes)[0]


@pytest.mark.parametrize("clients", [[0], [0, 3], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_qcid_matches_a_direct_count(clients):
    samples = [b for k in clients for b in range(3) for _ in range(COUNTS[k, b])]
    shares = [samples.count(b) / len(samples) for b in range(3)]
    direct = sum((share - 1 / 3) ** 2 for share in shares)
    inner = COUNTS[clients] @ COUNTS[clients].T
    by_products = inner.sum() / COUNTS[clients].sum() ** 2 - 1 / 3
    assert_allclose(qcid(COUNTS[clients].sum(axis=0)), direct, rtol=1e-12, atol=1e-15)
    assert_allclose(by_products, direct, rtol=1e-12, atol=1e-15)


def test_without_beta_and_exploration_every_triple_is_equally_likely():
    n_rounds = 6000
    selector = make(3, 0, beta=0.0, exploration=0.0)
    triples = dict.fromkeys(itertools.combinations(range(5), 3), 0)
    for _ in range(n_rounds):
        picked = selector.select()
        triples[tuple(sorted(picked.clients.tolist()))] += 1
        selector.observe(picked.clients)
    assert chisquare(list(triples.values())).pvalue > 1e-4
    assert_allclose(picked.probabilities, 0.2, rtol=1e-12)
    assert_allclose(picked.inclusion, 0.6, rtol=1e-12)


def test_ordered_draws_follow_the_written_rule():
    # Round 3 after client 2 was picked twice and client 0 once.
    n_draws = 6000
    selector = make(2, 1, beta=0.5, exploration=4.0)
    for available in ([2, 0], [2]):
        selector.select(available)
        selector.observe(selector._pending.clients)
    times = np.array([2, 1, 3, 1, 1])
    first = qcid(COUNTS).clip(1e-12) ** -0.5 + 4.0 * np.sqrt(3 * np.log(3) / (2 * times))
    law = {}
    for i in range(5):
        others = [j for j in range(5) if j != i]
        second = np.array([qcid(COUNTS[i] + COUNTS[j]) ** -1.0 for j in others])
        for j, share in zip(others, second / second.sum(), strict=True):
            law[i, j] = first[i] / first.sum() * share

    draws = dict.fromkeys(law, 0)
    for _ in range(n_draws):
        picked = selector.select()
        draws[tuple(picked.clients.tolist())] += 1

    assert_allclose(picked.probabilities, first / first.sum(), rtol=1e-12)
    assert chisquare(list(draws.values()), np.array(list(law.values())) * n_draws).pvalue > 1e-4


def test_inclusion_is_exact_without_beta():
    n_rounds = 5000
    selector = make(3, 2, beta=0.0)
    for _ in range(3):
        selector.select([0, 1, 2])
        selector.observe(selector._pending.clients)
    picks = [selector.select() for _ in range(n_rounds)]
    expected = picks[0].inclusion
    assert np.ptp(expected) > 0.01  # exploration favours 3 and 4
    assert_allclose(expected.sum(), 3, rtol=1e-12)
    frequency = np.bincount(np.concatenate([p.clients for p in picks])) / n_rounds
    error = 4 * np.sqrt(expected * (1 - expected) / n_rounds)
    assert (np.abs(frequency - expected) < error).all()


def test_pools_are_far_more_balanced_than_uniform_ones():
    counts = skewed_counts(100, 10, seed=3)
    pooled = {}
    for name, options in {"uniform": {}, "fedcbs": {"label_counts": counts}}.items():
        selector = make_selector(name, n_clients=100, n_select=10, seed=3, **options)
        values = []
        for _ in range(100):
            picked = selector.select()
            values.append(qcid(counts[picked.clients].sum(axis=0)))
            selector.observe(picked.clients)
        pooled[name] = np.mean(values)
    assert pooled["fedcbs"] < pooled["uniform"] / 4


def test_a_perfectly_balanced_client_is_likeliest_not_excluded():
    law = make(2, 4, beta=1.0, exploration=0.0).select().probabilities
    assert law.argmax() == 2
    assert law[2] > 1 - 1e-9


def test_large_beta_stays_finite():
    selector = make(5, 5, beta=1e6)
    picked = selector.select()
    assert_array_equal(np.sort(picked.clients), np.arange(5))
    assert np.isfinite(picked.probabilities).all()


def test_exploration_favours_the_rarely_picked():
    same = np.tile([5, 5], (4, 1))
    selector = make(1, 6, counts=same, beta=0.0, exploration=100.0)
    for _ in range(5):
        selector.select([0])
        selector.observe([0])
    law = selector.select().probabilities
    assert law[0] < law[1] == law[2] == law[3]


def test_weights_default_to_the_row_sums():
    assert_array_equal(make(2, 7).weights, COUNTS.sum(axis=1))


def test_an_abandoned_round_does_not_count_as_participation():
    selector = make(2, 8)
    before = selector.state_dict()["learned"]["times_picked"]
    selector.select()
    selector.select()
    assert_array_equal(selector.state_dict()["learned"]["times_picked"], before)


def test_newcomers_bring_their_label_counts():
    selector = make(2, 9)
    with pytest.raises(ValueError, match="label_counts must be given to fedcbs: .* 2 rows"):
        selector.resize(7, [3.0, 3.0])
    with pytest.raises(ValueError, match="got none for row 1 of weight 4"):
        selector.resize(7, [3.0, 4.0], label_counts=[[1, 1, 1], [0, 0, 0]])
    with pytest.raises(ValueError, match=r"label_counts must have shape \(2, 3\), got \(2, 2\)"):
        selector.resize(7, [3.0, 3.0], label_counts=[[1, 1], [1, 1]])
    with pytest.raises(ValueError, match="weights must be non-negative, got -3"):
        selector.resize(7, [3.0, -3.0], label_counts=[[1, 1, 1], [1, 1, 1]])
    assert selector.n_clients == len(selector.label_counts) == 5
    selector.resize(5, [])  # nobody joined: nothing to bring
    selector.resize(7, [3.0, 0.0], label_counts=[[1, 1, 1], [0, 0, 0]])
    assert_array_equal(selector.label_counts[:5], COUNTS)
    seen = {int(k) for _ in range(100) for k in selector.select().clients}
    assert 5 in seen
    assert 6 not in seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "label_counts must be given to fedcbs: .* 5 rows, got None"),
        ({"label_counts": COUNTS[:4]}, r"label_counts must have shape \(5, any\), got \(4, 3\)"),
        ({"label_counts": -COUNTS}, "label_counts must be non-negative, got -9"),
        ({"label_counts": COUNTS * 0, "weights": np.ones(5)}, "got none for row 0 of weight 1"),
        ({"label_counts": COUNTS, "beta": -1}, "beta must be at least 0, got -1"),
        ({"label_counts": COUNTS, "exploration": -1}, "exploration must be at least 0, got -1"),
    ],
)
def test_rejects_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_selector("fedcbs", n_clients=5, n_select=2, **options)
