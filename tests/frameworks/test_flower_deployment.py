"""The example as a deployment: SuperLink and SuperNodes in processes of their own."""

import importlib.metadata
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_deployment import BIN, Deployment, write_certificate, write_node_key

import cvrcore
from cvrcore.features import FeatureMap

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import flower_digits as example  # noqa: E402

NAMES = ["ann", "bob", "eve"]
VERSION = tuple(map(int, importlib.metadata.version("flwr").split(".")[:2]))

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(VERSION < (1, 41), reason="older SuperLinks take other options"),
    pytest.mark.skipif(not shutil.which(BIN / "flower-superlink"), reason="no flower-superlink"),
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A folder with the SuperLink's certificate and the key of each node."""
    folder = tmp_path_factory.mktemp("keys")
    write_certificate(folder)
    for name in NAMES:
        write_node_key(folder, name)
    return folder


def join_all(deployment, names):
    with ThreadPoolExecutor() as pool:  # each takes seconds, most of them to start
        list(pool.map(deployment.register, names))
    for name in names:
        deployment.join(name, NAMES.index(name))


@pytest.fixture(scope="module")
def second(keys):
    """The second of two deployments with the same keys; the first has run two rounds.

    Yields the deployment, and the rounds and node ids of the first.
    """
    with Deployment(keys) as first:
        join_all(first, NAMES)
        found = first.run(rounds=2, resume=False, **config(keys))
        nodes = first.node_ids()
    with Deployment(keys) as deployment:
        join_all(deployment, NAMES[::-1])
        yield deployment, found, nodes


def config(keys):
    state = str(keys / "selector.npz")
    return {"identity": "name", "clients": 3, "wait": 300, "warmup": 1, "state": state}


def plain_loop(policy, legs, n_select=2, seed=0):
    """The same federation by hand; every leg begins with the first model, as a run does."""
    sizes = [len(example.digits()[2][k]) for k in range(len(NAMES))]
    watched = FeatureMap.last_layer(example.initial_model(), 300, seed)
    first = watched.extract(example.initial_model())
    selector = cvrcore.make_selector(
        policy, len(NAMES), n_select, weights=sizes, seed=seed,
        n_features=300, warmup=1, initial=first,
    )  # fmt: skip
    picked = []
    for rounds in legs:
        model = example.initial_model()
        for _ in range(rounds):
            selection = selector.select()
            clients = np.sort(selection.clients)
            updates = [example.train(model, k) for k in clients]
            selector.observe(clients, watched.extract_all(updates))
            shares = np.array([sizes[k] for k in clients]) / sum(sizes[k] for k in clients)
            model = {
                name: sum(w * update[name] for w, update in zip(shares, updates, strict=True))
                for name in model
            }
            picked.append([NAMES[k] for k in selection.clients])
    return picked


def test_clients_are_known_again_after_everything_was_restarted(keys, second):
    """By the name that their keys prove: node ids are new, slots and picks go on."""
    deployment, found, before = second
    found = found + deployment.run(rounds=2, resume=True, **config(keys))
    after = deployment.node_ids()
    assert [len(before), len(after)] == [3, 3]
    assert not before & after
    assert all(failed == {} for _, failed in found)
    assert [picked for picked, _ in found] == plain_loop("fedcvr-bolt", legs=[2, 2])


def test_the_template_runs_as_it_is_printed(second):
    """Its pyproject, its package and its settings, on the same nodes."""
    deployment, _, _ = second
    found = deployment.run(app="examples/flower_app", rounds=2, clients=3, select=2)
    assert [failed for _, failed in found] == [{}, {}]
    assert all(len(set(picked)) == 2 and set(picked) <= {0, 1, 2} for picked, _ in found)


def test_a_node_killed_while_it_trains_is_reported_as_failed_and_delays_no_other(second):
    deployment, _, _ = second
    busy, seen = "Receiving: train message", deployment.log("eve", whole=True)
    n_before = seen.count(busy)

    def kill_when_busy():
        deadline = time.monotonic() + 300
        while deployment.log("eve", whole=True).count(busy) == n_before:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        deployment.kill("eve")

    killer = threading.Thread(target=kill_when_busy)
    killer.start()
    try:
        found = deployment.run(
            policy="uniform", select=3, clients=3, wait=300, rounds=2, identity="name",
            enough=0.6, grace=2.0,
        )  # fmt: skip
    finally:
        killer.join(timeout=310)
    assert found[0][1] == {"eve": "no answer in time"}  # and the round went on without it
    for picked, failed in found[1:]:  # the SuperLink may still believe it to be there
        assert set(picked) - set(failed) == {"ann", "bob"}
