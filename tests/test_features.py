import json

import numpy as np
from numpy.testing import assert_array_equal

from cvrcore.features import FeatureMap

RNG = np.random.default_rng(0)
STATE = {
    "conv.weight": RNG.normal(size=(2, 1, 3, 3)),
    "fc.weight": RNG.normal(size=(5, 4)),
    "fc.bias": RNG.normal(size=5),
    "head.weight": RNG.normal(size=(10, 5)),
    "head.bias": RNG.normal(size=10),
}


def test_last_layer_is_its_weights_and_bias():
    watched = FeatureMap.last_layer(STATE)
    assert watched.names == ["head.weight", "head.bias"]
    assert watched.n_features == 60
    expected = np.concatenate([STATE["head.weight"].ravel(), STATE["head.bias"]])
    assert_array_equal(watched.extract(STATE), expected)


def test_a_list_of_arrays_gives_the_same_coordinates():
    arrays = list(STATE.values())
    ours = FeatureMap.last_layer(arrays).extract(arrays)
    assert_array_equal(ours, FeatureMap.last_layer(STATE).extract(STATE))


def test_layer_without_bias_and_model_of_one_vector():
    assert FeatureMap.last_layer([np.ones((3, 2)), np.ones(3), np.ones((4, 3))]).n_features == 12
    assert FeatureMap.last_layer([np.ones(1)]).n_features == 1


def test_subset_is_seeded_distinct_and_part_of_the_state():
    watched = FeatureMap.last_layer(STATE, n_features=20, seed=3)
    assert len(set(watched.index)) == watched.n_features == 20
    assert_array_equal(watched.index, FeatureMap.last_layer(STATE, 20, seed=3).index)
    assert set(watched.index) != set(FeatureMap.last_layer(STATE, 20, seed=4).index)
    state = watched.state_dict()
    json.dumps({**state, "index": state["index"].tolist()})
    again = FeatureMap.from_state_dict(state)
    assert_array_equal(again.extract(STATE), watched.extract(STATE))
    whole = FeatureMap.last_layer(STATE).extract(STATE)
    assert_array_equal(watched.extract(STATE), whole[watched.index])


def test_subset_of_the_whole_model_and_small_layers_are_watched_whole():
    assert FeatureMap.subset(STATE, 30, seed=0).n_features == 30
    assert FeatureMap.whole(STATE).n_features == sum(a.size for a in STATE.values())
    assert FeatureMap.last_layer(STATE, n_features=1000).index is None


def test_several_models_become_rows():
    watched = FeatureMap.last_layer(STATE, 7)
    rows = watched.extract_all([STATE, {k: 2 * v for k, v in STATE.items()}])
    assert rows.shape == (2, 7)
    assert_array_equal(rows[1], 2 * rows[0])
    assert watched.extract_all([]).shape == (0, 7)
    assert "7 coordinates of head.weight, head.bias" in repr(watched)
