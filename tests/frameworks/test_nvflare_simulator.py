"""The adapter in NVFlare's simulator: real messages, real clients, real failures."""

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'cvrcore[nvflare]'")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import nvflare_digits as example  # noqa: E402
import psutil  # noqa: E402
import softmax_digits as digits  # noqa: E402

import cvrcore  # noqa: E402
from cvrcore.aggregators import make_aggregator  # noqa: E402
from cvrcore.features import FeatureMap  # noqa: E402
from cvrcore.selectors import policy_class  # noqa: E402

N = example.N_CLIENTS

pytestmark = pytest.mark.timeout(900)


ATTEMPTS = 5
STARTED = []


def begin(folder):
    """Start a simulation; return its folder, and a future of what `simulate` returns."""
    pool = ThreadPoolExecutor(1)
    simulation = pool.submit(simulate, folder)
    pool.shutdown(wait=False)
    return folder, simulation


def begin_early():
    """Start the first attempt before the first test: it spends most of its time waiting."""
    STARTED.append(begin(Path(tempfile.mkdtemp(prefix="simulator-"))))
    atexit.register(shutil.rmtree, STARTED[0][0], ignore_errors=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of one simulation with a workflow for each test.

    It is repeated if the simulator lost a client before its first task: it picks a free port
    for each client, closes it and passes it on, and two clients, or another program, can get
    the same one. That is not about the adapter.
    """
    for attempt in range(ATTEMPTS):
        folder, simulation = STARTED.pop() if STARTED else begin(tmp_path_factory.mktemp("job"))
        text, code = simulation.result(timeout=500)
        if not lost_a_client(folder, text):
            assert code == 0, text[-3000:]
            return folder
        print(f"attempt {attempt + 1}: the simulator lost a client")
    pytest.fail(f"NVFlare's simulator lost a client {ATTEMPTS} times in a row: {text[-3000:]}")


def simulate(folder):
    """Run the job in a process of its own, until it ends or has lost a client."""
    paths = [str(ROOT), str(ROOT / "examples"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),  # the code under test
        "FAULTY_FOLDER": str(folder),
    }
    log = folder / "output.txt"
    with open(log, "wb") as file:
        process = psutil.Popen(
            [sys.executable, str(HERE / "nvflare_parts.py"), str(folder / "job")],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    deadline = time.monotonic() + 400
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if lost_a_client(folder, log.read_text(errors="replace")):
                break
            time.sleep(0.5)
    finally:
        family = [process, *process.children(recursive=True)] if process.is_running() else []
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    return log.read_text(errors="replace"), process.wait(timeout=60)


def lost_a_client(folder, text):
    """Whether the simulator says so, or a client is missing in the first round."""
    records = [path.read_text().splitlines() for path in folder.rglob("selection.jsonl")]
    started = [json.loads(lines[0])["available"] for lines in records if lines]
    return "Communication error with client" in text or any(len(one) < N for one in started)


def recorded(folder, name):
    """Return the records of a workflow's rounds, and its last model."""
    (record,) = folder.rglob(f"{name}.jsonl")
    (model,) = folder.rglob("server.npy" if name == "selection" else f"{name}.npy")
    return [json.loads(line) for line in record.read_text().splitlines()], np.load(model)


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


def test_same_seed_same_picks_twice_and_as_in_our_own_loop(folder):
    runs = [recorded(folder, name) for name in ("selection", "again")]
    ours, model = own_loop("fedcvr-bolt", 6)
    assert selected(runs[0][0]) == selected(runs[1][0]) == ours
    for _, theirs in runs:
        np.testing.assert_allclose(theirs, model, rtol=1e-4, atol=1e-5)
    assert all(one["failed"] == {} for one in runs[0][0])
    assert digits.accuracy(runs[0][1], N) > 0.4


@pytest.mark.parametrize("policy", ["power-of-choice", "oort"])
def test_probes_and_losses_reach_the_policy(folder, policy):
    rounds, _ = recorded(folder, policy)
    assert selected(rounds) == own_loop(policy, 4, seed=3)[0]


def test_our_aggregator_merges_as_in_our_own_loop(folder):
    rounds, theirs = recorded(folder, "memory")
    picks, model = own_loop("fedcvr-bolt", 4, aggregator="memory")
    assert selected(rounds) == picks
    np.testing.assert_allclose(theirs, model, rtol=1e-4, atol=1e-5)
    assert len(list(folder.rglob("memory-*.npz"))) == 4


def test_failing_clients_are_reported_as_failed_and_the_round_goes_on(folder):
    lines, model = recorded(folder, "faulty")
    assert len(lines) == 2
    for line in lines:
        assert sorted(line["reported"]) == ["site-5", "site-6"]
        reasons = {name: line["failed"][name] for name in ("site-1", "site-2", "site-3", "site-4")}
        assert reasons["site-1"] == "its return code is EXECUTION_EXCEPTION"
        assert "must be finite, got nan" in reasons["site-2"]
        assert "'numpy_key' must have shape (3, 2), got (2, 2)" in reasons["site-3"]
        assert reasons["site-4"] == "no answer in time"
    np.testing.assert_allclose(model, np.full((3, 2), 2.0))  # the valid ones add 1
