import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score

from cvrcore import Selection
from fl.meter import SCALAR, Meter, adjusted_rand, boltzmann_distances, entropy

EVERYBODY = np.ones(6, dtype=bool)
NOBODY = np.empty(0, dtype=np.int64)


def pick(*clients, **more):
    return Selection(clients=np.array(clients), **more)


@pytest.mark.parametrize("seed", range(10))
def test_adjusted_rand_equals_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, 5, size=(2, 40))
    assert_allclose(adjusted_rand(first, second), adjusted_rand_score(first, second), atol=1e-12)
    assert adjusted_rand(first, (first + 1) % 5) == 1.0


@pytest.mark.parametrize("labels", [np.zeros(4, dtype=int), np.arange(4), np.zeros(1, dtype=int)])
def test_adjusted_rand_of_a_trivial_partition_with_itself_is_one(labels):
    assert adjusted_rand(labels, labels) == 1.0


def test_distance_from_uniform_is_taken_over_eligible_clients():
    labels = np.array([0, 0, 0, 1, 1, 2])
    law = np.array([0.5, 0.5, 0.0, 0.9, 0.1, 0.0])
    eligible = np.array([True, True, False, True, True, False])
    assert_allclose(boltzmann_distances(law, labels, eligible), [0.0, 0.4], atol=1e-15)


def test_entropy_is_log_k_when_all_were_picked_alike():
    assert_allclose(entropy(np.full(8, 3)), np.log(8))
    assert entropy(np.array([4, 0])) == 0.0
    assert entropy(np.zeros(3, dtype=int)) == 0.0


def test_bytes_of_a_probe_a_drop_out_and_several_models():
    meter = Meter(6, model_bytes=1000)
    record = meter.round(
        pick(0, 1, 2), EVERYBODY, np.array([1, 3, 4]), np.array([0, 2]), np.array([1]), 2, True
    )
    assert record["probe_bytes"] == 2 * 1000 + 3 * SCALAR
    assert record["downlink"] == (3 * 2 + 2) * 1000
    assert record["uplink"] == 2 * (1000 + SCALAR) + 3 * SCALAR
    assert (record["probed"], record["failed"], record["reported"]) == (3, [1], [0, 2])


def test_coverage_coalitions_and_state():
    labels = np.array([0, 0, 1, 1, 2, 2])
    law = np.full(6, 0.5)
    meter = Meter(6, 10)

    def go(meter, *clients):
        selection = pick(*clients, coalitions=labels, probabilities=law)
        return meter.round(selection, EVERYBODY, NOBODY, selection.clients, NOBODY, 1, False)

    first = go(meter, 0, 2)
    assert "ari" not in first
    assert first["covered"] == 2
    other = Meter(6, 10)
    other.load_state_dict(meter.state_dict())
    second = go(meter, 0, 4)
    assert (second["covered"], second["ari"], second["tv_max"]) == (3, 1.0, 0.0)
    assert go(other, 0, 4) == second


def test_a_model_that_diverged_was_uploaded_all_the_same():
    picked = np.array([1, 2, 3])
    shape = (Selection(picked), EVERYBODY, NOBODY, picked[:1], picked[1:], 1, True)
    lost = Meter(EVERYBODY.size, 100).round(*shape)["uplink"]
    spoilt = Meter(EVERYBODY.size, 100).round(*shape, 2)["uplink"]
    assert (lost, spoilt) == (108, 324)
