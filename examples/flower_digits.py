"""FedAvg in Flower's simulation, with clients selected by cvrcore: digits, offline, a minute.

    pip install '.[flower]' scikit-learn
    python examples/flower_digits.py [POLICY]

Softmax regression in NumPy, 20 clients of two classes each.
"""

import functools
import os
import sys

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from cvrcore.integrations.flower import SelectingStrategy, Waiting
from cvrcore.integrations.flower_client import Reveal, partition_id, report_loss, selectable

N_CLIENTS, N_CLASSES = 20, 10


@functools.cache
def digits():
    """Return images, labels and, for each client, the indices of its samples."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    by_class = np.argsort(y[:1500], kind="stable")  # the rest is for testing
    shards = np.random.default_rng(0).permutation(2 * N_CLIENTS).reshape(N_CLIENTS, 2)
    parts = np.array_split(by_class, 2 * N_CLIENTS)
    return x / 16.0, y, [np.concatenate([parts[a], parts[b]]) for a, b in shards]


def initial_model():
    return {"weight": np.zeros((N_CLASSES, 64)), "bias": np.zeros(N_CLASSES)}


def probabilities(model, x):
    scores = x @ model["weight"].T + model["bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def loss(model, client):
    """Mean cross entropy over the client's samples."""
    x, y, parts = digits()
    own = parts[client]
    return float(-np.log(probabilities(model, x[own])[np.arange(len(own)), y[own]]).mean())


def train(model, client, steps=20, rate=0.5):
    """Gradient descent over the client's samples."""
    x, y, parts = digits()
    own = parts[client]
    wanted = np.eye(N_CLASSES)[y[own]]
    weight, bias = model["weight"].copy(), model["bias"].copy()
    for _ in range(steps):
        delta = (probabilities({"weight": weight, "bias": bias}, x[own]) - wanted) / len(own)
        weight -= rate * delta.T @ x[own]
        bias -= rate * delta.sum(axis=0)
    return {"weight": weight, "bias": bias}


def accuracy(model):
    x, y, _ = digits()
    return float((probabilities(model, x[1500:]).argmax(axis=1) == y[1500:]).mean())


# -- the client ---------------------------------------------------------------

app = ClientApp(mods=[Reveal()])  # the mod acts with private=True only


@app.train()
def on_train(message, context):
    client = partition_id(context)
    received = unpack(message.content["arrays"])
    content = {
        "arrays": pack(train(received, client)),
        "metrics": MetricRecord({"num-examples": len(digits()[2][client])}),
    }
    return report_loss(Message(RecordDict(content), reply_to=message), loss(received, client))


selectable(
    app,
    size=lambda context: len(digits()[2][partition_id(context)]),
    label_counts=lambda context: np.bincount(
        digits()[1][digits()[2][partition_id(context)]], minlength=N_CLASSES
    ).tolist(),
    loss=lambda message, context: loss(unpack(message.content["arrays"]), partition_id(context)),
)


def pack(model):
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def unpack(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


# -- the server ---------------------------------------------------------------


def make_strategy(policy, n_select=5, seed=0, warmup=4, **options):
    """Return FedAvg with clients selected by `policy`."""
    if policy == "fedcvr-bolt":
        options = {"warmup": warmup, "n_features": 300, **options}
    return SelectingStrategy(
        FedAvg(fraction_evaluate=0.0), policy, n_select=n_select, seed=seed, **options
    )


def show(rounds, model):
    """Print the clients selected in each round, and the accuracy of the last model."""
    for number, one in enumerate(rounds, start=1):
        lost = f", failed {one.failed}" if one.failed else ""
        print(f"round {number:2d}: clients {one.selected}{lost}")
    print(f"test accuracy {accuracy(model):.3f}")


def simulate(policy="fedcvr-bolt", rounds=12, seed=0, **options):
    """Run the federation; return the record of each round, and the last model."""
    from flwr.simulation import run_simulation

    strategy = make_strategy(policy, seed=seed, n_clients=N_CLIENTS, **options)
    simulated, results = ServerApp(), []

    @simulated.main()
    def main(grid, context):
        results.append(strategy.start(grid, pack(initial_model()), num_rounds=rounds, timeout=120))

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local", "num_cpus": 2, "include_dashboard": False},
    }
    run_simulation(simulated, app, num_supernodes=N_CLIENTS, backend_config=backend)
    return strategy.rounds, unpack(results[0].arrays)


server = ServerApp()


@server.main()
def on_server(grid, context):
    """Run under `flwr run`: the settings are those of pyproject.toml, and of ``--run-config``."""
    config = context.run_config
    strategy = make_strategy(
        config["policy"],
        config["select"],
        config["seed"],
        config["warmup"],
        n_clients=config["clients"],
        identity=config["identity"],
        waiting=Waiting(enough=config["enough"], grace=config["grace"], connect=config["wait"]),
        checkpoint=config["state"] or None,
        restore=config["state"] if config["resume"] else None,
    )
    start = pack(initial_model())
    result = strategy.start(grid, start, num_rounds=config["rounds"], timeout=config["timeout"])
    show(strategy.rounds, unpack(result.arrays or start))


def main(*arguments):
    """Run one policy and show the clients that it selected."""
    show(*simulate(*arguments))


if __name__ == "__main__":
    import flower_digits  # by name: Ray's workers import it, and keep what it has cached

    flower_digits.main(*sys.argv[1:2])
