"""kill -9 at any moment of 200 saves: the file holds the old state or the new, never less."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import itertools, json, random, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
import numpy as np
import cvrcore
from cvrcore.state import load_state
from killing import life

path, policy = Path(sys.argv[1]), sys.argv[2]
N_CLIENTS, N_SELECT, N_FEATURES, ROUNDS = 30, 4, 6, 100
options = {"fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 5}}.get(policy, {})


def make():
    return cvrcore.make_selector(
        policy, N_CLIENTS, N_SELECT, seed=0, max_share=1.5, min_share=0.2, **options
    )


def steps(selector):
    # Two saves a round: with the round pending, and with it closed.
    while selector.round < ROUNDS:
        rng = np.random.default_rng(selector.round)
        if selector._pending is None:
            asked = selector.probe()
            selector.select(losses=None if asked is None else rng.random(asked.size))
            yield
        rng, clients = np.random.default_rng(selector.round), selector._pending.clients
        models = rng.normal(size=(N_CLIENTS, N_FEATURES))[clients]
        selector.observe(clients, models, rng.random(N_CLIENTS)[clients])
        yield


def key(state):
    return state["round"], state["pending"] is not None


def text(state):
    def plain(value):
        return value.tolist() if isinstance(value, np.ndarray) else value.item()
    return json.dumps(state, default=plain, sort_keys=True)


selector = make()  # the run that nobody interrupts
expected = {key(selector.state_dict()): text(selector.state_dict())}
for _ in steps(selector):
    state = selector.state_dict()
    expected[key(state)] = text(state)


def work(ready):
    selector = cvrcore.Selector.load(path)
    next(steps(selector))
    ready()
    selector.save(path)


make().save(path)
random.seed(1)
kills = old = 0
longest = 0.002
for last, following in itertools.pairwise(expected):
    while True:  # until this save got through
        life(work, random.uniform(0.0, longest))
        kills += 1
        state = load_state(path)
        assert key(state) in (last, following), f"{key(state)} after {last}"
        assert text(state) == expected[key(state)], f"another state than that of {key(state)}"
        if key(state) == following:
            longest *= 0.94
            break
        old += 1
        longest *= 1.06  # so that about as many kills come too early as too late
        assert longest < 20, "no progress"
torn = len(list(path.parent.glob("*.part")))
assert torn <= old
print(json.dumps({"kills": kills, "saves": len(expected) - 1, "old": old, "torn": torn}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize("policy", ["fedcvr-bolt", "oort"])
def test_killed_saves_leave_the_old_state_or_the_new(tmp_path, policy):
    """Each of 200 saves is killed till one gets through; `torn`: between open and rename."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "state.npz"), policy]
    found = subprocess.run(
        [*command, *map(str, sys.path)], capture_output=True, text=True, timeout=250
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["saves"] == 200
    assert told["kills"] == told["old"] + 200
    assert told["old"] >= 100, told
    assert told["torn"] >= 50, told
