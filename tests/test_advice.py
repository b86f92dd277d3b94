"""Recommendations: each regime gets the method that was measured there, and names that exist."""

import numpy as np
import pytest

import cvrcore
from cvrcore.aggregators import AGGREGATORS, ModelAverage, ServerOptimiser
from cvrcore.head import HeadMap


@pytest.mark.parametrize(
    ("sizes", "method", "reason"),
    [
        ((100, 10, 200, 10_000), "balanced-memory", "seen about 20 times"),
        ((1000, 10, 100, 10_000), "balanced-factor", "seen about 1 times"),
        ((100, 10, 200, 10**7), "balanced-factor", "takes 4,160 MB, above the limit"),
        ((100, 10, 200, 10**8), "pivotal", "13 models do not fit into the limit (5,200 MB)"),
        ((10, 10, 200, 10), "fedavg", "nothing to select"),
        ((100, 10, 5, 10), "fedavg", "5 rounds are too few"),
    ],
)
def test_each_regime_has_its_method(sizes, method, reason):
    found = cvrcore.recommend(*sizes, memory_limit=1e9)
    assert found.method == method
    assert reason in found.reason
    assert reason in str(found)
    assert found.policy in cvrcore.selectors.BUILT_IN
    assert found.aggregator in AGGREGATORS
    ServerOptimiser(**found.server)


def test_methods_are_those_of_the_loop():
    presets = pytest.importorskip("fl.presets", reason="fl needs torch")
    for n_clients in (100, 1000):
        found = cvrcore.recommend(n_clients, 10, 100, 1000, memory_limit=1e9)
        method = presets.METHODS[found.method]
        assert (method.policy, method.aggregator) == (found.policy, found.aggregator)
        assert method.server == {"optimiser": found.server["kind"], "average": found.average}


@pytest.mark.parametrize("name", ["n_clients", "n_select", "n_rounds", "model_size"])
def test_bad_sizes_are_refused_by_name(name):
    sizes = {"n_clients": 10, "n_select": 2, "n_rounds": 20, "model_size": 5, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be"):
        cvrcore.recommend(**sizes)


@pytest.mark.parametrize(
    ("n_rounds", "method"), [(20, "balanced-factor"), (200, "balanced-memory")]
)
def test_what_is_recommended_fits_into_the_limit(n_rounds, method):
    n_clients, n_outputs, n_inputs = 20, 30, 2000
    model = [np.zeros((n_outputs, n_inputs), np.float32), np.zeros(n_outputs, np.float32)]
    size = sum(array.size for array in model)
    n_models = n_outputs + 3 if method == "balanced-factor" else n_clients + 4
    sizes = {"n_clients": n_clients, "n_select": 2, "n_rounds": n_rounds, "model_size": size}
    limit = 4.0 * size * n_models
    less = cvrcore.recommend(**sizes, n_outputs=n_outputs, memory_limit=0.99 * limit)
    assert less.method != method
    advice = cvrcore.recommend(**sizes, n_outputs=n_outputs, memory_limit=limit)
    assert advice.method == method
    given = advice.arguments()
    head, average = HeadMap(model), ModelAverage(given["average"])
    selector = cvrcore.make_selector(
        given["selector"], n_clients, 2, weights=np.ones(n_clients), seed=0, n_features=n_outputs
    )
    rng = np.random.default_rng(0)
    for _ in range(40):
        picked = selector.select()
        models = [
            [array + rng.normal(size=array.shape).astype(np.float32) for array in model]
            for _ in picked.clients
        ]
        selector.observe(picked.clients, head.updates(models, model))
        model = given["aggregator"].aggregate(
            model, models, picked.clients, np.ones(n_clients), picked
        )
        average.update(model)
    kept = given["aggregator"].nbytes + average.nbytes
    assert 0.9 * limit < kept < 1.01 * limit  # features of clients are the hundredth
