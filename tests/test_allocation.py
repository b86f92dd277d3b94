"""Neyman's rules and the number of coalitions, against brute force and scikit-learn."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.clustering.coalition_count import eigengap, silhouette
from cvrcore.draws.allocation import FLOOR, expected_distances, neyman_places, size_law
from cvrcore.draws.laws import Groups, probabilities_of
from cvrcore.features import FeatureMap

LABELS = np.array([0, 1, 0, 2, 1, 1, 0, 2, 0, 1])
WEIGHTS = np.array([5.0, 9, 2, 7, 1, 30, 4, 4, 8, 2])
EVERYBODY = np.ones(10, dtype=bool)


def law_of(kind, distances, eligible=EVERYBODY):
    groups = Groups.of(LABELS, eligible)
    return probabilities_of(size_law(kind, groups, WEIGHTS, distances), groups, 10)


def test_distances_are_from_the_weighted_mean_of_the_coalition():
    rng = np.random.default_rng(0)
    rows, known = rng.normal(size=(10, 4)), EVERYBODY.copy()
    known[[3, 7, 2]] = False  # all of coalition 2, and one of coalition 0
    found = expected_distances(rows, LABELS, WEIGHTS, known)
    for p in (0, 1):
        inside = (LABELS == p) & known
        centre = np.average(rows[inside], axis=0, weights=WEIGHTS[inside])
        assert_allclose(found[inside], np.linalg.norm(rows[inside] - centre, axis=1), rtol=1e-12)
    inside = (LABELS == 0) & known
    assert found[2] == pytest.approx(np.average(found[inside], weights=WEIGHTS[inside]))
    everybody = np.average(found[known], weights=WEIGHTS[known])
    assert_allclose(found[[3, 7]], everybody, rtol=1e-12)
    assert_array_equal(expected_distances(rows, LABELS, WEIGHTS, ~EVERYBODY), np.ones(10))


@pytest.mark.parametrize("eligible", [EVERYBODY, np.arange(10) % 3 != 0])
def test_laws_by_size_and_by_neyman_are_their_formulas(eligible):
    distances = np.random.default_rng(1).gamma(2.0, size=10)
    sizes, neyman = law_of("size", None, eligible), law_of("neyman", distances, eligible)
    for p in np.unique(LABELS[eligible]):
        inside = (LABELS == p) & eligible
        by_size = WEIGHTS[inside] / WEIGHTS[inside].sum()
        worth = WEIGHTS[inside] * distances[inside]
        assert_allclose(sizes[inside], by_size, rtol=1e-12)
        expected = (1 - FLOOR) * worth / worth.sum() + FLOOR * by_size
        assert_allclose(neyman[inside], expected, rtol=1e-12)
    assert not neyman[~eligible].any()


def test_clients_that_do_not_differ_are_drawn_by_size():
    assert_allclose(law_of("neyman", np.zeros(10)), law_of("size", None), rtol=1e-12)


def test_neyman_draws_have_the_least_variance():
    """Of the estimate around the coalition's centre, over random laws on the simplex."""
    rng = np.random.default_rng(2)
    weights, away = rng.gamma(2.0, size=6), rng.normal(size=(6, 3))
    lengths = np.linalg.norm(away, axis=1)

    def second_moment(law):
        return float((weights**2 * lengths**2 / law).sum())

    best = weights * lengths / (weights * lengths).sum()
    others = rng.dirichlet(np.ones(6), size=2000)
    assert second_moment(best) <= min(second_moment(law) for law in others)


@pytest.mark.parametrize("seed", range(20))
def test_places_are_the_best_of_all_whole_numbers(seed):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(4), rng.integers(0, 4, 14)])
    weights, distances = rng.gamma(1.0, size=18), rng.gamma(1.0, size=18)
    groups = Groups.of(labels, np.ones(18, dtype=bool))
    places = neyman_places(groups, weights, distances, 9)
    worth = np.bincount(labels, weights * distances)

    def variance(counts):
        return (worth**2 / np.array(counts)).sum()

    limits = [range(1, n + 1) for n in np.bincount(labels)]
    every = [c for c in itertools.product(*limits) if sum(c) == 9]
    assert tuple(places) in set(every)
    assert variance(places) == pytest.approx(min(map(variance, every)))


def test_places_never_exceed_clients_and_fall_back_to_size():
    groups = Groups.of(np.array([0, 0, 1, 1, 1, 1]), np.ones(6, dtype=bool))
    far = np.array([9.0, 9, 0, 0, 0, 0])
    assert_array_equal(neyman_places(groups, np.ones(6), far, 5), [2, 3])
    alike = neyman_places(groups, np.array([4.0, 4, 1, 1, 1, 1]), np.zeros(6), 3)
    assert_array_equal(alike, [2, 1])
    assert neyman_places(groups, np.ones(6), far, 20).sum() == 6


def test_silhouette_is_that_of_scikit_learn():
    from sklearn.metrics import silhouette_score

    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(40, 3)), rng.integers(0, 4, 40)
    labels[0] = 4  # alone
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels))


def test_eigengap_keeps_within_its_bounds():
    assert eigengap(np.array([0.9, 0.8, 0.7, 0.1]), most=10) == 4
    assert eigengap(np.array([0.9, 0.8, 0.7, 0.1]), most=3) in (2, 3)
    assert eigengap(np.array([0.9]), most=2) == 2


def planted(n_groups, rng, n_clients=36, n_features=12):
    middles = np.linalg.qr(rng.normal(size=(n_features, n_features)))[0][:n_groups]
    group = np.arange(n_clients) % n_groups
    return group, 3 * middles[group] + 0.1 * rng.normal(size=(n_clients, n_features))


@pytest.mark.parametrize("how", ["eigengap", "silhouette"])
@pytest.mark.parametrize("n_groups", [2, 3, 5])
def test_planted_groups_are_counted(how, n_groups):
    group, rows = planted(n_groups, np.random.default_rng(n_groups))
    selector = cvrcore.CoalitionSelector(
        36, 12, 8, warmup=0, seed=0, initial=rows, n_coalitions=how, gamma="median"
    )
    for _ in range(3):
        picked = selector.select()
        assert len(picked) == 8
        assert picked.coalitions.max() + 1 == n_groups
        assert len(set(zip(picked.coalitions, group, strict=True))) == n_groups
        selector.observe(picked.clients, rows[picked.clients])


def test_a_number_of_coalitions_below_the_budget():
    group, rows = planted(3, np.random.default_rng(0))
    selector = cvrcore.CoalitionSelector(
        36, 12, 7, warmup=0, seed=0, initial=rows, n_coalitions=3, within="size"
    )
    picked = selector.select()
    assert picked.coalitions.max() + 1 == 3
    assert sorted(np.bincount(picked.coalitions[picked.clients])) == [2, 2, 3]
    assert picked.inclusion.sum() == pytest.approx(7)


def test_places_go_where_clients_differ():
    rng = np.random.default_rng(0)
    group, rows = planted(2, rng)
    rows[group == 1] += 0.5 * rng.normal(size=(18, 12))
    options = {"warmup": 0, "initial": rows, "n_coalitions": 2, "places": "neyman"}
    picked = cvrcore.CoalitionSelector(36, 12, 8, seed=0, **options).select()
    counts = np.bincount(group[picked.clients])
    assert counts[1] > 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_coalitions": 0}, "n_coalitions must be at least 1, got 0"),
        ({"n_coalitions": 6}, "n_coalitions must be at most 5, got 6"),
        ({"n_coalitions": "gap"}, "n_coalitions must be one of 'eigengap', 'silhouette'"),
        ({"places": "most"}, "places must be one of 'even', 'neyman', got 'most'"),
        ({"within": "newman"}, "within must be one of .*'neyman', got 'newman'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cvrcore.CoalitionSelector(10, 3, 5, **options)


def test_updates_are_models_minus_the_model_sent():
    sent = [np.ones((2, 3)), np.zeros(2)]
    back = [[a + k for a in sent] for k in (1.0, 2.0)]
    watch = FeatureMap.last_layer(sent)
    assert_array_equal(watch.updates(back, sent), [[1.0] * 8, [2.0] * 8])
    assert watch.updates([], sent).shape == (0, 8)
