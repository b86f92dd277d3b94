"""The first ten main rounds of a fresh process, K=100 D=300 P=10: CPU seconds of each backend.

Numba is measured twice: with an empty cache, where every kernel is compiled, and with the cache
that the first process filled.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from bench.rows import ROOT, Found, Row, part_main
from cvrcore.kernels import dispatch

PART = "compiling"
N_FILLED = 3  # processes with a filled cache: short ones, so the median of several
#: Row name, must, aim: CPU seconds.
BOUNDS = {
    "numba, empty cache": (10, 5),
    "numba, filled cache": (1, 0.6),
    "cython": (None, None),
}
#: The process that is measured. It prints its CPU seconds, and the kernels that it compiled.
ROUNDS = """
import json, sys, time
import numpy as np
rng = np.random.default_rng(0)
began = time.process_time()
import cvrcore
selector = cvrcore.CoalitionSelector(
    100, 300, 10, warmup=0, seed=0, initial=rng.normal(size=(100, 300))
)
for _ in range(10):
    picked = selector.select()
    selector.observe(picked.clients, rng.normal(size=(len(picked), 300)))
seconds = time.process_time() - began
jit = sys.modules.get("cvrcore.kernels.jit")
print(json.dumps([seconds, jit.TIMER.n_compiled if jit else 0]))
"""


def fresh_process(backend, folder):
    """Return CPU seconds and compiled kernels of a process, or None if it failed."""
    settings = {"CVRCORE_BACKEND": backend, "CVRCORE_NUMBA_CACHE": "1", "NUMBA_CACHE_DIR": folder}
    command, environment = [sys.executable, "-c", ROUNDS], os.environ | settings
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return None if done.returncode else tuple(json.loads(done.stdout))


def row_of(name, runs):
    """Return the row of some processes of one kind: the median of their CPU seconds."""
    must, aim = BOUNDS[name]
    seconds = statistics.median(seconds for seconds, _ in runs)
    note = f"kernels compiled: {max(n for _, n in runs)}, processes: {len(runs)}"
    return Row(PART, f"first ten rounds, {name}", seconds, "s", "<=", must, aim, note)


def measure(short=False):
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "numba, empty cache": [fresh_process("numba", folder)],
            "numba, filled cache": [fresh_process("numba", folder) for _ in range(N_FILLED)],
        }
        if dispatch.backend() == "cython":  # the extension is built
            runs["cython"] = [fresh_process("cython", folder) for _ in range(N_FILLED)]
    for name, several in runs.items():
        if None in several:
            found.failed.append(f"compiling: {name}: a process failed")
        else:
            found.rows.append(row_of(name, several))
    return found


if __name__ == "__main__":
    part_main(measure, __doc__)
