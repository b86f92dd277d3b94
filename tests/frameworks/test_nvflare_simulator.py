"""The adapter in NVFlare's simulator: real messages, real clients, real failures."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(Path(__file__).parent)]

import nvflare_digits as example  # noqa: E402
import softmax_digits as digits  # noqa: E402

import cvrcore  # noqa: E402
from cvrcore.aggregators import make_aggregator  # noqa: E402
from cvrcore.features import FeatureMap  # noqa: E402
from cvrcore.selectors import policy_class  # noqa: E402

N = example.N_CLIENTS

# NVFlare leaves sockets and threads of its own behind.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch):
    """The simulator starts processes: they need the code under test."""
    paths = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.fixture
def whole(capfd, tmp_path):
    """Run a simulation, again if the simulator lost a client before its first task.

    It picks a free port for each client, closes it and hands it on: two clients, or another
    program, can meet there. What it says then is not about the adapter.
    """

    def run(simulate, attempts=3):
        for attempt in range(attempts):
            folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            found = simulate(folder)
            said = capfd.readouterr()
            if "Communication error with client" not in said.out + said.err:
                return found
            print(f"attempt {attempt + 1}: the simulator lost a client")
        pytest.fail(f"NVFlare's simulator lost a client {attempts} times in a row")

    return run


def own_loop(policy, rounds, seed=0, aggregator="sizes"):
    """The same federation by hand: ten lines of server."""
    model, names = digits.initial_model(), [f"site-{k + 1}" for k in range(N)]
    sizes = [digits.size(k, N) for k in range(N)]
    options, watched = {}, None
    if policy == "fedcvr-bolt":
        watched = FeatureMap.last_layer({example.ARRAY: model}, 300, seed)
        first = watched.extract({example.ARRAY: model})
        options = {"warmup": 2, "n_features": watched.n_features, "initial": first}
    statistic = policy_class(policy).loss_statistic
    selector = cvrcore.make_selector(policy, N, 2, weights=sizes, seed=seed, **options)
    picks, merging = [], make_aggregator(aggregator)
    for _ in range(rounds):
        asked = selector.probe()
        losses = None if asked is None else [digits.loss(model, k, N) for k in asked]
        clients = (selection := selector.select(losses=losses)).clients
        trained = {k: digits.train(model, k, N) for k in clients}
        news = {}
        if watched:
            news["models"] = watched.extract_all([{example.ARRAY: m} for m in trained.values()])
        if statistic:
            news["losses"] = [digits.loss(model, k, N, statistic) for k in clients]
        selector.observe(clients, **news)
        back = [[trained[k]] for k in sorted(clients)]
        (model,) = merging.aggregate([model], back, sorted(clients), sizes, selection)
        picks.append([names[k] for k in clients])
    return picks, model


def selected(rounds):
    return [one["selected"] for one in rounds]


def test_same_seed_same_picks_twice_and_as_in_our_own_loop(whole):
    runs = [
        whole(lambda folder: example.simulate(str(folder), rounds=6, wait=20.0)) for _ in range(2)
    ]
    ours, model = own_loop("fedcvr-bolt", 6)
    assert selected(runs[0][0]) == selected(runs[1][0]) == ours
    for _, theirs in runs:
        np.testing.assert_allclose(theirs, model, rtol=1e-4, atol=1e-5)
    assert all(one["failed"] == {} for one in runs[0][0])
    assert digits.accuracy(runs[0][1], N) > 0.4


@pytest.mark.parametrize("policy", ["power-of-choice", "oort"])
def test_probes_and_losses_reach_the_policy(whole, policy):
    rounds, _ = whole(
        lambda folder: example.simulate(str(folder), policy, rounds=4, seed=3, wait=20.0)
    )
    assert selected(rounds) == own_loop(policy, 4, seed=3)[0]


def test_our_aggregator_merges_as_in_our_own_loop(whole):
    settings = {"rounds": 4, "wait": 20.0, "aggregator": "memory", "checkpoint": "state.npz"}
    rounds, theirs = whole(lambda folder: example.simulate(str(folder), **settings))
    picks, model = own_loop("fedcvr-bolt", 4, aggregator="memory")
    assert selected(rounds) == picks
    np.testing.assert_allclose(theirs, model, rtol=1e-4, atol=1e-5)


def moody_job(folder):
    from nvflare.app_common.np.np_model_persistor import NPModelPersistor
    from nvflare.job_config.api import FedJob
    from nvflare_parts import Moody

    from cvrcore.integrations.nvflare import SelectingController

    job = FedJob("moody", min_clients=6)
    job.set_app_packages(["cvrcore"])
    job.to_server(NPModelPersistor(model=[[0.0, 0.0]] * 3), id="persistor")
    controller = SelectingController(
        "uniform", n_select=6, seed=0, num_rounds=2, timeout=20, enough=0.8, grace=2.0,
        task_check_period=0.1, checkpoint="selector-{round}.npz",
    )  # fmt: skip
    job.to_server(controller)
    job.to_clients(Moody(), tasks=["train"])
    job.simulator_run(str(folder), n_clients=6, threads=6)
    return folder


def test_misbehaving_clients_are_told_as_failed_and_the_round_goes_on(whole):
    folder = whole(moody_job)
    (record,) = folder.rglob("selection.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert sorted(line["reported"]) == ["site-5", "site-6"]
        reasons = {name: line["failed"][name] for name in ("site-1", "site-2", "site-3", "site-4")}
        assert reasons["site-1"] == "its return code is EXECUTION_EXCEPTION"
        assert "must be finite, got nan" in reasons["site-2"]
        assert "must have shapes {'numpy_key': (3, 2)}" in reasons["site-3"]
        assert reasons["site-4"] == "no answer in time"
    (model,) = folder.rglob("server.npy")
    np.testing.assert_allclose(np.load(model), np.full((3, 2), 2.0))  # the sound ones add 1
    assert len(list(folder.rglob("selector-*.npz"))) == 2
