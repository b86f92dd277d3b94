"""kill -9 in every round of a run, at a random moment of it: resumed, the same History."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, random, signal, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from killing import life
from tiny import tiny_config, tiny_federation
from cvrcore.state import load_state
from fl.loop import run

folder, federation = Path(sys.argv[1]), tiny_federation()
config = tiny_config(
    rounds=8,
    availability__probability=0.8,
    selection__policy="fedcvr-bolt",
    selection__options={"warmup": 2, "max_share": 1.5},
)
run(config, federation=federation)  # kernels are compiled and bound
began = time.perf_counter()
whole = run(config, folder / "whole", federation=federation)
each = (time.perf_counter() - began) / config.rounds
random.seed(2)
seen = {"kills": 0, "unfinished": 0}


def kill_after(n, place, settings):
    # Killed in the round that follows n whole ones, or in what is written after it.
    def work(ready):
        def tell(record):
            if record["round"] == n:
                ready()
            elif record["round"] > n:
                signal.pause()

        if n == 0:
            ready()
        run(settings, place, resume=True, progress=tell, federation=federation)

    life(work, random.uniform(0.0, each))
    rounds = place / "rounds.jsonl"
    kept = rounds.read_bytes().count(b"\\n") if rounds.exists() else 0
    assert n <= kept <= n + 1, f"killed in round {n + 1}: {kept} were kept"
    seen["kills"] += 1
    seen["unfinished"] += kept == n


def finish(place, settings):
    resumed = run(settings, place, resume=True, federation=federation)
    assert resumed == whole, f"{place.name} ends in another History"
    assert len((place / "rounds.jsonl").read_text().splitlines()) == config.rounds


for every in (1, 3):  # a checkpoint after each round, or rounds to be gone through again
    settings = config.replace(checkpoint_every=every)
    for n in range(config.rounds):
        kill_after(n, folder / f"{every}-{n}", settings)
        finish(folder / f"{every}-{n}", settings)
# One run of which every resumption is killed too, till it comes to its end.
place, settings = folder / "again", config.replace(checkpoint_every=1)


def resumed(ready):
    ready()
    run(settings, place, resume=True, federation=federation)


done = resumptions = 0
while done < config.rounds:
    life(resumed, random.uniform(0.0, (2 + 0.1 * resumptions) * each))
    checkpoint = place / "checkpoint.npz"
    now = load_state(checkpoint)["rounds"] if checkpoint.exists() else 0
    assert now >= done, "rounds were lost"
    done, resumptions = now, resumptions + 1
finish(place, settings)
seen["resumptions"] = resumptions
print(json.dumps(seen))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_run_killed_in_any_round_resumes_to_the_same_history(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *map(str, sys.path)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert found.returncode == 0, found.stderr
    seen = json.loads(found.stdout)
    assert seen["kills"] == 16
    assert seen["resumptions"] >= 3, seen
    assert seen["unfinished"] >= 1, seen  # others came while the round was written, or after
