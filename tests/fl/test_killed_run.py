"""kill -9 in every round of a run, at a random moment of it: resumed, the same History."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, random, select, signal, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tiny import tiny_config, tiny_federation
from fl.loop import run

folder, federation = Path(sys.argv[1]), tiny_federation()
options = {"warmup": 2, "max_share": 1.5}
config = tiny_config(
    rounds=8,
    checkpoint_every=1,
    availability__probability=0.8,
    selection__policy="fedcvr-bolt",
    selection__options=options,
)
whole = run(config, federation=federation)
random.seed(2)
torn = 0
for n in range(config.rounds):
    place = folder / str(n)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.write(write, b".")
        run(config, place, progress=lambda record: os.write(write, b"."), federation=federation)
        os._exit(0)
    os.close(write)
    told = 0
    while told <= n and select.select([read], [], [], 60)[0]:
        told += len(os.read(read, 1))
    time.sleep(random.uniform(0.0, 0.01))  # into round n + 1, or what is written after it
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    torn += bool(list(place.glob("*.part")))
    if not (place / "config.json").exists():
        assert n == 0, "nothing was kept"
    resumed = run(config, place, resume=True, federation=federation)
    assert resumed == whole, f"killed in round {n + 1}"
    lines = (place / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == config.rounds
print(torn)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_run_killed_in_any_round_resumes_to_the_same_history(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *map(str, sys.path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) >= 0
