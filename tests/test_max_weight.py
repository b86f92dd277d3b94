"""Sample counts are believed up to a bound, in the selection and in every aggregator."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from siege import N_CLIENTS, N_FEATURES, make

import cvrcore
from cvrcore.aggregators import AGGREGATORS, make_aggregator
from cvrcore.selectors import BUILT_IN


@pytest.fixture(params=list(BUILT_IN))
def policy(request):
    """Return the name of each policy in turn, those that came later too."""
    return request.param


HUGE = 9e18


def claimed(n_hostile=2):
    weights = np.linspace(40.0, 60.0, N_CLIENTS)
    weights[:n_hostile] = HUGE
    return weights


@pytest.mark.parametrize(
    ("setting", "bound"),
    [(70.0, 70.0), ("2*median", 2.0), ("median", 3.0), ("1*median", 1.0)],
)
def test_the_selection_uses_bounded_counts(policy, setting, bound):
    weights = claimed()
    selector = make(policy, weights=weights, max_weight=setting)
    largest = bound if isinstance(setting, float) else bound * np.median(weights)
    assert_array_equal(selector.weights, np.minimum(weights, largest))
    again = type(selector).from_state_dict(selector.state_dict())
    assert_array_equal(again.weights, selector.weights)


def test_counts_that_are_clipped_once_are_not_clipped_again_on_loading():
    selector = make("uniform", weights=claimed(), max_weight="0.5*median")
    again = type(selector).from_state_dict(selector.state_dict())
    assert_array_equal(again.weights, selector.weights)


def test_newcomers_do_not_move_the_bound(policy):
    selector = make(policy, weights=claimed(), max_weight="1.5*median")
    largest = selector.weights.max()
    for _ in range(3):
        told = {"label_counts": np.full((60, 3), HUGE)} if policy == "fedcbs" else {}
        selector.resize(selector.n_clients + 60, np.full(60, HUGE), **told)
    assert selector.weights.max() <= 1.5**4 * largest
    one = make(policy, weights=claimed(), max_weight="1*median")
    largest = one.weights.max()
    one.resize(one.n_clients + 60, np.full(60, HUGE), **told)
    assert_allclose(one.weights.max(), largest, rtol=0.05)


def test_class_counts_follow_the_bound():
    counts = np.full((N_CLIENTS, 3), 20.0)
    counts[0] = [HUGE, 0.0, 0.0]
    selector = make("fedcbs", label_counts=counts, weights=None, max_weight="1*median")
    assert_allclose(selector.label_counts[0], [60.0, 0.0, 0.0])
    assert_allclose(selector.label_counts[1:], counts[1:])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_overflowing_counts_are_refused_with_the_client(name, policy):
    weights = np.ones(6)
    weights[[2, 4]] = 1.7e308
    with pytest.raises(ValueError, match=r"weights must have a finite sum, got 1.7e\+308 for cl"):
        make_aggregator(name).aggregate([np.zeros(2)], [[np.ones(2)]], [2], weights)
    many = np.concatenate([weights, np.ones(N_CLIENTS - 6)])
    with pytest.raises(ValueError, match="finite sum, got .* for client 2"):
        make(policy, weights=many)
    weights[2] = np.inf
    with pytest.raises(ValueError, match=r"weights must be finite, got inf at \[2\]"):
        make_aggregator(name).aggregate([np.zeros(2)], [[np.ones(2)]], [2], weights)


def test_joining_with_an_overflowing_count_changes_nothing(policy):
    selector = make(policy, weights=np.full(N_CLIENTS, 1e306))
    before = selector.state_dict()
    told = {"label_counts": np.ones((1, 3))} if policy == "fedcbs" else {}
    with pytest.raises(ValueError, match="finite sum, got .* for client 40"):
        selector.resize(N_CLIENTS + 1, [1.7e308], **told)
    assert selector.n_clients == N_CLIENTS
    assert_array_equal(selector.state_dict()["config"]["weights"], before["config"]["weights"])


def aggregated(name, weights, **options):
    """Return the share of the model that one client has: it alone sends ones."""
    aggregator = make_aggregator(name, **options)
    clients = np.arange(4)
    model = [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)]
    updates = [[np.full(a.shape, float(k == 0), a.dtype) for a in model] for k in clients]
    selection = cvrcore.Selection(
        clients=clients, coalitions=np.array([0, 1, 2, 3, 0, 1, 2, 3]), inclusion=np.full(8, 0.5)
    )
    return float(aggregator.aggregate(model, updates, clients, weights, selection)[1][0])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_two_huge_claims_do_not_own_the_model(name):
    weights = np.full(8, 10.0)
    honest = aggregated(name, weights)
    weights[0] = HUGE
    alone = aggregated(name, weights)
    bounded = aggregated(name, weights, guards="recommended")
    assert bounded <= 1.3 * honest + 1e-6
    if name != "mean":
        assert alone > 1.5 * honest


@pytest.mark.parametrize("name", ["memory", "coalition-memory", "factor-memory", "importance"])
def test_large_counts_stay_finite_in_float32(name):
    """1e39 samples are more than float32 can hold; the model is that of the same shares."""
    weights = np.linspace(1.0, 2.0, 8)
    assert_allclose(aggregated(name, 1e39 * weights), aggregated(name, weights), rtol=1e-5)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_updates_are_bounded_by_the_norm_guard(name):
    """One update a million times longer than the others: what is merged and remembered of it."""
    rng = np.random.default_rng(0)
    aggregator = make_aggregator(name, guards=cvrcore.Guards(max_norm="median"))
    model = [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)]
    weights, clients = np.ones(8), np.arange(5)
    selection = cvrcore.Selection(
        clients=clients, coalitions=np.arange(8) % 2, inclusion=np.full(8, 0.6)
    )
    updates = [[rng.normal(size=a.shape).astype(a.dtype) for a in model] for _ in clients]
    updates[3] = [1e6 * array for array in updates[3]]
    lengths = [np.sqrt(sum(np.square(a, dtype=float).sum() for a in u)) for u in updates]
    bound = 3 * np.median(lengths)
    updates[3] = list(updates[3])
    merged = aggregator.aggregate(model, updates, clients, weights, selection)
    short = [*updates[:3], [a * (bound / lengths[3]) for a in updates[3]], updates[4]]
    expected = make_aggregator(name).aggregate(model, short, clients, weights, selection)
    for found, wanted in zip(merged, expected, strict=True):
        assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    if name == "memory":
        rows = aggregator.state_dict()["bank"]["rows"]
        assert np.linalg.norm(rows, axis=1).max() <= bound * (1 + 1e-5)
    updates[1][0][0, 0] = np.nan
    with pytest.raises(ValueError, match="updates of client 1 must be finite"):
        aggregator.aggregate(model, updates, clients, weights, selection)
    again = make_aggregator(name, guards=cvrcore.Guards(max_norm="median"))
    again.load_state_dict(aggregator.state_dict())
    assert_array_equal(again._guard.lengths.values, aggregator._guard.lengths.values)


def test_recommended_is_one_name_everywhere():
    wanted = cvrcore.Guards.recommended()
    assert cvrcore.make_selector("oort", 5, 2, guards="recommended").guards == wanted
    bolt = cvrcore.CoalitionSelector(
        n_clients=5, n_features=N_FEATURES, n_select=2, guards="recommended"
    )
    assert bolt.guards == wanted
    bolt.guard()
    bolt.guard("recommended")
    assert bolt.guards == wanted
    for value, kind in (("strong", ValueError), (3, TypeError)):
        with pytest.raises(kind, match="guards must be a cvrcore.Guards or 'recommended'"):
            cvrcore.make_selector("oort", 5, 2, guards=value)
        with pytest.raises(kind, match="guards must be a cvrcore.Guards or 'recommended'"):
            make_aggregator("sizes", guards=value)
    with pytest.raises(TypeError, match="max_share must be given once"):
        cvrcore.make_selector("oort", 5, 2, guards="recommended", max_share=2)
    with pytest.raises(TypeError, match="max_share must not be given together"):
        bolt.guard("recommended", max_share=2)
