"""The app to copy, examples/flower_app, in Flower's own simulation on Ray."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

import cvrcore
from cvrcore.features import FeatureMap

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower_app"
CONFIG = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
ROUNDS = 6

# `run_simulation` knows no run config: the settings of pyproject.toml are put in by hand. The
# test of a deployment starts the app by `flwr run`.
SCRIPT = """
import json, sys
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from selecting_app import client_app, server_app

simulated = ServerApp()


@simulated.main()
def main(grid, context):
    context.run_config = json.loads(sys.argv[1])
    server_app.main(grid, context)


backend = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
}
run_simulation(simulated, client_app.app, num_supernodes=10, backend_config=backend)
"""


def simulate(**changes):
    """Return the clients of each round, and the test accuracy that the app prints."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(CONFIG | changes)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{APP}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rounds = re.findall(r"^round +\d+: clients (\[.*?\])(.*)$", done.stdout, re.MULTILINE)
    assert not any(rest for _, rest in rounds), rounds
    (accuracy,) = re.findall(r"^test accuracy (\S+)$", done.stdout, re.MULTILINE)
    return [ast.literal_eval(picked) for picked, _ in rounds], float(accuracy)


def test_the_app_selects_and_learns_as_a_loop_by_hand():
    sys.path.insert(0, str(APP))
    try:
        from selecting_app import task
    finally:
        sys.path.pop(0)
    data = [task.load_data(k) for k in range(task.N_CLIENTS)]
    sizes, model = [len(y) for _, y in data], task.make_model()
    watched = FeatureMap.last_layer(model, None, CONFIG["seed"])
    selector = cvrcore.make_selector(
        CONFIG["policy"], task.N_CLIENTS, CONFIG["select"], weights=sizes, seed=CONFIG["seed"],
        n_features=watched.n_features, initial=watched.extract(model), n_rounds=ROUNDS,
    )  # fmt: skip
    picked = []
    for _ in range(ROUNDS):
        clients = selector.select().clients
        picked.append(clients.tolist())
        clients = np.sort(clients)
        updates = [task.train(model, *data[k], steps=CONFIG["local-steps"]) for k in clients]
        selector.observe(clients, watched.extract_all(updates))
        shares = np.array([sizes[k] for k in clients]) / sum(sizes[k] for k in clients)
        model = {
            name: sum(w * update[name] for w, update in zip(shares, updates, strict=True))
            for name in model
        }
    found, accuracy = simulate(rounds=ROUNDS)
    assert found == picked
    assert accuracy == pytest.approx(task.accuracy(model, *task.load_test_data()), abs=0.01)
    assert accuracy > 0.3  # a tenth before training


def test_the_recommended_method_runs_in_the_simulation():
    picked, accuracy = simulate(rounds=12, policy="recommended")
    assert [len(clients) for clients in picked] == [CONFIG["select"]] * 12
    assert accuracy > 0.5
