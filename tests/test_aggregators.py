import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import Selection
from cvrcore.aggregators import AGGREGATORS, make_aggregator, weighted_mean

WEIGHTS = np.array([10.0, 30.0, 5.0, 15.0, 40.0, 0.0])


def random_models(n, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [
        [rng.normal(size=(4, 3)).astype(dtype), rng.normal(size=5).astype(dtype)] for _ in range(n)
    ]


def selection(coalitions):
    return Selection(
        clients=np.array([0, 1, 3]),
        coalitions=None if coalitions is None else np.array(coalitions),
    )


def test_sizes_is_the_weighted_mean_of_reports():
    updates = random_models(3)
    got = make_aggregator("sizes").aggregate(updates[0], updates, [4, 0, 2], WEIGHTS)
    for i, array in enumerate(got):
        expected = (40 * updates[0][i] + 10 * updates[1][i] + 5 * updates[2][i]) / 55
        assert_allclose(array, expected, rtol=1e-12)


def test_mean_counts_reporters_alike():
    updates = random_models(3)
    got = make_aggregator("mean").aggregate(updates[0], updates, [4, 0, 5], WEIGHTS)
    assert_allclose(got[1], np.mean([u[1] for u in updates], axis=0), rtol=1e-12)


def test_coalition_mass_weighs_each_representative_by_its_whole_coalition():
    # Coalitions {0, 2} of mass 15 and {1, 3, 4} of mass 85, shared 30 : 15 by its reporters.
    updates = random_models(3)
    picked = selection([0, 1, 0, 1, 1, 0])
    got = make_aggregator("coalition-mass").aggregate(
        updates[0], updates, [0, 1, 3], WEIGHTS, picked
    )
    shares = [0.15, 0.85 * 30 / 45, 0.85 * 15 / 45]
    for i, array in enumerate(got):
        expected = sum(s * u[i] for s, u in zip(shares, updates, strict=True))
        assert_allclose(array, expected, rtol=1e-12)


def test_coalition_mass_drops_a_coalition_without_reports():
    updates = random_models(1)
    picked = selection([0, 1, 0, 1, 1, 0])
    got = make_aggregator("coalition-mass").aggregate(updates[0], updates, [3], WEIGHTS, picked)
    assert_allclose(got[0], updates[0][0], rtol=1e-12)


@pytest.mark.parametrize("picked", [None, selection(None)])
def test_coalition_mass_is_sizes_without_coalitions(picked):
    updates = random_models(3)
    arguments = (updates[0], updates, [0, 1, 3], WEIGHTS, picked)
    plain = make_aggregator("sizes").aggregate(*arguments)
    mass = make_aggregator("coalition-mass").aggregate(*arguments)
    for a, b in zip(plain, mass, strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_no_report_leaves_the_model_as_it_is(name):
    (current,) = random_models(1)
    got = make_aggregator(name).aggregate(current, [], [], WEIGHTS, selection([0, 1, 0, 1, 1, 0]))
    for a, b in zip(got, current, strict=True):
        assert_array_equal(a, b)
        assert a is not b


@pytest.mark.parametrize("name", AGGREGATORS)
def test_state_round_trips_and_refuses_another(name):
    aggregator = make_aggregator(name)
    aggregator.load_state_dict(aggregator.state_dict())
    with pytest.raises(ValueError, match="state must be of aggregator"):
        aggregator.load_state_dict({"aggregator": "else"})


def test_dtype_and_shape_are_kept():
    updates = random_models(2, dtype=np.float32)
    updates = [[*u, np.array([2], dtype=np.int64)] for u in updates]
    got = weighted_mean(updates, np.array([0.5, 0.5]))
    assert [a.dtype for a in got] == [np.float32, np.float32, np.int64]
    assert [a.shape for a in got] == [(4, 3), (5,), (1,)]


@pytest.mark.parametrize(
    ("clients", "n_updates", "message"),
    [
        ([0, 1], 1, "updates must have length 2, got 1"),
        ([0, 6], 2, r"clients must be ids in 0..5, got 6"),
        ([5], 1, "must sum above 0, got 0"),
    ],
)
def test_bad_reports_are_refused(clients, n_updates, message):
    updates = random_models(n_updates)
    with pytest.raises(ValueError, match=message):
        make_aggregator("sizes").aggregate(random_models(1)[0], updates, clients, WEIGHTS)


def test_update_of_another_shape_is_refused():
    (current,) = random_models(1)
    with pytest.raises(ValueError, match="updates of client 1 must be"):
        make_aggregator("sizes").aggregate(current, [[np.ones(2)]], [1], WEIGHTS)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'coalition-mass'"):
        make_aggregator("coalition_mass")


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_what_does_not_fit_the_selection_is_refused(name):
    """Sizes of the picked clients alone are the natural mistake: they would be merged wrongly."""
    aggregator, model = make_aggregator(name), [np.zeros((2, 3)), np.zeros(2)]
    sent_back = [[np.ones((2, 3)), np.ones(2)]] * 2
    picked = Selection(np.array([1, 3]), inclusion=np.full(6, 1 / 3))
    with pytest.raises(ValueError, match=r"weights must have shape \(6,\), got \(4,\)"):
        aggregator.aggregate(model, sent_back, [1, 3], np.ones(4), picked)
    with pytest.raises(
        ValueError, match="clients must have been selected this round, got client 2"
    ):
        aggregator.aggregate(model, sent_back, [1, 2], np.ones(6), picked)
    after = aggregator.aggregate(model, sent_back, [1, 3], np.ones(6), picked)
    assert all(np.isfinite(array).all() for array in after)


def test_a_model_is_a_list_of_arrays():
    aggregator = make_aggregator("sizes")
    with pytest.raises(TypeError, match=r"current must be a list of arrays, got one array: pass"):
        aggregator.aggregate(np.zeros(3), [np.ones(3)], [0], np.ones(2))
    with pytest.raises(TypeError, match="updates of client 1 must be a list of arrays, got a dict"):
        aggregator.aggregate([np.zeros(3)], [{"w": np.ones(3)}], [1], np.ones(2))
