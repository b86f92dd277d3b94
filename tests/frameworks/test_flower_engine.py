"""`--engine flower`: the same experiment through Flower's runtime and our adapter."""

import json
import os
import queue
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from fl.engines import EngineError
from fl.engines.flower import _LiveGrid

ROOT = Path(__file__).parents[2]
# It probes before it selects, loses clients on the way and sends them control variates.
RUN = (
    "run --dataset digits --method scaffold+power-of-choice --rounds 4 --seed 2 --clients 12 "
    "--select 4 --dropout 0.3 --quiet"
).split()


def cli(folder, engine):
    done = subprocess.run(
        [sys.executable, "-m", "fl", *RUN, "--engine", engine, "--out", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_results_equal_the_local_engines(tmp_path):
    engines = ["serial", "flower"]
    with ThreadPoolExecutor() as pool:  # at once
        local, flower = pool.map(cli, [tmp_path / engine for engine in engines], engines)
    assert len(local) == 4
    for ours, theirs in zip(local, flower, strict=True):
        for name in ("picked", "reported", "failed", "probed", "uplink", "downlink"):
            assert ours[name] == theirs[name], name
        assert_allclose(theirs["accuracy"], ours["accuracy"], rtol=1e-6)
        assert_allclose(theirs["loss"], ours["loss"], rtol=1e-6)
    assert any(ours["failed"] for ours in local)


def test_dead_simulation_ends_the_wait():
    class Grid:
        def pull_messages(self, ids):
            return ["reply"]

    news = queue.Queue()
    grid = _LiveGrid(Grid(), news)
    assert grid.pull_messages(["1"]) == ["reply"]
    news.put(RuntimeError("Ray could not start"))
    for _ in range(2):
        with pytest.raises(EngineError, match="simulation ended: Ray could not start"):
            grid.pull_messages(["1"])
