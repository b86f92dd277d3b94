"""The example in Flower's own simulation, on Ray: a minute of real runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

import cvrcore
from cvrcore.features import FeatureMap

ROOT = Path(__file__).parents[2]
ROUNDS, SEED = 8, 3

# A process of its own: Ray leaves threads, environment and warnings behind. One simulation
# serves all modes: the example starts a strategy that runs them one after another.
SCRIPT = """
import json, sys
import flower_digits as example

policy, rounds, seed, modes = json.loads(sys.argv[1])
make_strategy, runs = example.make_strategy, {}


class EachMode:
    def __init__(self, *arguments, **settings):
        self.strategies = {
            mode: make_strategy(*arguments, **settings, **options)
            for mode, options in modes.items()
        }

    def start(self, grid, arrays, **settings):
        for mode, strategy in self.strategies.items():
            result = strategy.start(grid, example.pack(example.unpack(arrays)), **settings)
            model = example.unpack(result.arrays)
            runs[mode] = {
                "picked": [one.selected for one in strategy.rounds],
                "failed": [sorted(one.failed.items()) for one in strategy.rounds],
                "model": {name: array.tolist() for name, array in model.items()},
                "accuracy": example.accuracy(model),
            }
        self.rounds = strategy.rounds
        return result


example.make_strategy = EachMode
example.simulate(policy, rounds, seed)
print(json.dumps(runs))
"""
MODES = {"full updates": {}, "watched coordinates only": {"private": True}}


@pytest.fixture(scope="module")
def runs():
    """What the example's simulation did in each mode, one after the other."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(["fedcvr-bolt", ROUNDS, SEED, MODES])],
        capture_output=True,
        text=True,
        timeout=250,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def by_hand():
    return plain_loop("fedcvr-bolt")


def plain_loop(policy, **options):
    """The same federation by hand: our own loop, no framework."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import flower_digits as example
    finally:
        sys.path.pop(0)
    x, y, parts = example.digits()
    model = example.initial_model()
    features = FeatureMap.last_layer(model, 300, SEED)
    if policy == "fedcvr-bolt":
        options |= {"n_features": 300, "initial": features.extract(model), "warmup": 4}
    sizes = [len(part) for part in parts]
    selector = cvrcore.make_selector(
        policy, example.N_CLIENTS, 5, weights=sizes, seed=SEED, **options
    )
    picked = []
    for _ in range(ROUNDS):
        asked = selector.probe()
        losses = None if asked is None else [example.loss(model, k) for k in asked]
        selection = selector.select(losses=losses)
        picked.append(selection.clients.tolist())
        clients = np.sort(selection.clients)
        updates = [example.train(model, k) for k in clients]
        losses = [example.loss(model, k) for k in clients]
        selector.observe(clients, features.extract_all(updates), losses)
        shares = np.array([sizes[k] for k in clients]) / sum(sizes[k] for k in clients)
        model = {
            name: sum(w * update[name] for w, update in zip(shares, updates, strict=True))
            for name in model
        }
    return picked, model, example.accuracy(model)


@pytest.mark.parametrize("mode", MODES)
def test_simulation_picks_and_learns_as_our_own_loop_does(runs, by_hand, mode):
    """Twice with one seed, in full and in private mode, and by hand: the same picks."""
    (picked, model, accuracy), found = by_hand, runs[mode]
    assert found["picked"] == picked
    assert not any(found["failed"])
    for name, array in model.items():
        assert_allclose(found["model"][name], array, rtol=1e-9, atol=1e-12)
    assert found["accuracy"] == accuracy
    assert accuracy > 0.5
