"""HiCS: entropies against SciPy, groups against the labels that were planted, places by chance."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax
from scipy.stats import chisquare, entropy

from cvrcore.selectors.hics import HiCSSelector, label_entropy

PLANTED = np.repeat(np.arange(4), 10)  # three groups of one label, one balanced


def updates(seed=0):
    rng = np.random.default_rng(seed)
    rows = 0.02 * rng.normal(size=(40, 3)) * 0.01
    for k in range(40):
        if PLANTED[k] < 3:
            rows[k, PLANTED[k]] += 0.01
    return rows


def seen(rows, n_select, seed=0, **options):
    selector = HiCSSelector(len(rows), n_select, n_features=rows.shape[1], seed=seed, **options)
    while not selector._seen.all():
        picked = selector.select().clients
        selector.observe(picked, updates=rows[picked])
    return selector


def test_entropy_is_scipys_also_where_exponentials_overflow():
    rows = np.random.default_rng(0).normal(size=(20, 7))
    for temperature in (1.0, 0.01):
        expected = [entropy(softmax(row / temperature)) for row in rows]
        assert_allclose(label_entropy(rows, temperature), expected, atol=1e-12)
    assert_allclose(label_entropy([[1e4, 0.0]], 1e-3), [0.0], atol=1e-300)


def test_groups_are_those_of_the_labels():
    selector = seen(updates(), 4)
    found = selector._groups(selector._rows, label_entropy(selector._rows, 0.001))
    assert len(set(zip(PLANTED.tolist(), found.tolist(), strict=True))) == 4


def test_balanced_clients_come_first_and_all_groups_alike_at_the_end():
    """Early, places are in proportion to exp(gamma H); late, gamma is 0."""
    rows = updates()
    selector = seen(rows, 1, n_groups=4, n_rounds=1000, gamma=1.0)
    H = label_entropy(rows, 0.001)
    mean = np.array([H[PLANTED == g].mean() for g in range(4)])
    for moment in (40, 1000):
        selector.round = moment
        law = np.exp(1.0 * (1 - moment / 1000) * mean)
        drawn = [PLANTED[selector.select().clients[0]] for _ in range(4000)]
        counts = np.bincount(drawn, minlength=4)
        assert chisquare(counts, 4000 * law / law.sum()).pvalue > 1e-4


def test_group_gives_no_more_places_than_it_has_clients():
    selector = seen(updates(), 35, gamma=50.0)
    picked = selector.select().clients
    assert len(set(picked)) == 35


def test_zero_updates_and_few_clients_work():
    selector = seen(np.zeros((6, 3)), 4)
    assert len(set(selector.select().clients)) == 4
    assert len(selector.select(available=[2]).clients) == 1
    with pytest.raises(ValueError, match="n_clients must be at most 10000 for hics"):
        HiCSSelector(10_001, 2, n_features=1)
