"""A fork while other threads select: the child goes on, with old selectors and with new ones."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import cvrcore
from cvrcore.runtime.threads import single_blas_thread

N_CLIENTS, N_FEATURES, N_SELECT = 300, 40, 10
guards = {"max_share": 1.5}


def make(policy):
    options = {"n_features": N_FEATURES, "warmup": 1} if policy == "fedcvr-bolt" else {}
    return cvrcore.make_selector(policy, N_CLIENTS, N_SELECT, seed=0, **guards, **options)


def play(selector, rounds):
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        picked = selector.select()
        rows = rng.normal(size=(len(picked), N_FEATURES))
        selector.observe(picked.clients, rows, np.ones(len(picked)), np.ones(len(picked)))
        assert np.unique(picked.clients).size == N_SELECT


shared = {policy: make(policy) for policy in ("fedcvr-bolt", "oort")}
for selector in shared.values():
    play(selector, 4)
stop = threading.Event()


def busy(selector):
    while not stop.is_set():
        play(selector, 1)


threads = [threading.Thread(target=busy, args=(s,), daemon=True) for s in shared.values()]
for thread in threads:
    thread.start()
refused = 0
try:
    for attempt in range(int(sys.argv[1])):
        time.sleep(0.001 * (attempt % 7))
        child = os.fork()
        if not child:
            signal.alarm(20)  # a deadlock ends here, as a failure
            code = 0
            for policy, selector in shared.items():
                try:
                    play(selector, 2)
                    selector.state_dict()
                except RuntimeError as error:
                    code = 3 if "load the last saved state" in str(error) else 4
                    selector.load_state_dict(make(policy).state_dict())
                    play(selector, 2)
                play(make(policy), 2)
            with single_blas_thread():
                pass
            os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, 3), f"attempt {attempt} ended with {ended}"
        refused += ended == 3
finally:
    stop.set()
for thread in threads:
    thread.join(30)
print(refused, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("n_threads", ["1", "2"])
def test_a_child_forked_amid_a_verb_goes_on(n_threads):
    """The state in the child is the one before the verb, or it says that it was cut off."""
    environment = {**os.environ, "CVRCORE_NUM_THREADS": n_threads, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, "6"]
    found = subprocess.run(
        command, env=environment, timeout=200, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
