"""Recommendations: each regime gets the method that was measured there, and names that exist."""

import pytest

import cvrcore
from cvrcore.aggregators import AGGREGATORS, ServerOptimiser


@pytest.mark.parametrize(
    ("sizes", "method", "reason"),
    [
        ((100, 10, 200, 10_000), "balanced-memory", "seen about 20 times"),
        ((1000, 10, 100, 10_000), "balanced-factor", "seen about 1 times"),
        ((100, 10, 200, 10**7), "balanced-factor", "takes 4,080 MB, above the limit"),
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
