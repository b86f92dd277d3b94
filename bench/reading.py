"""Reading cost of one steady round: files, lines and switches between files.

``python -m bench.reading`` traces `select` and `observe` of a `CoalitionSelector` in a steady
main round, on one thread and with interpreted kernels, which are traced too. A file counts,
with all its lines, if one of its functions was called. A switch is a call into a file other
than that of the previous call.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ |= {
    "CVRCORE_NUM_THREADS": "1",  # the trace covers one thread
    "CVRCORE_BACKEND": "numba",
    "NUMBA_DISABLE_JIT": "1",
}

import numpy as np

import cvrcore

PACKAGE = Path(cvrcore.__file__).parent
MOST_FILES, MOST_LINES = 21, 4800  # the undo journal and its notes: 1 file, some 600 lines


def steady_selector(n_clients=200, n_features=20, n_select=10, n_rounds=40):
    """Return a selector after some main rounds, and models of its clients."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_select, n_features))[np.arange(n_clients) % n_select]
    selector = cvrcore.CoalitionSelector(
        n_clients, n_features, n_select, warmup=0, seed=0, initial=centres
    )

    def models(clients):
        return centres[clients] + 0.3 * rng.normal(size=(clients.size, n_features))

    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients, models(picked.clients))
    return selector, models


class Trace:
    """Files of the package in which functions were called, and calls from file to file."""

    def __init__(self):
        self.files, self.switches, self._stack = {}, 0, []

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(PACKAGE)):
            self.add(Path(name).relative_to(PACKAGE.parent))

    def add(self, path):
        self.files[path] = self.files.get(path, 0) + 1
        if self._stack and self._stack[-1] != path:
            self.switches += 1
        self._stack = [path]


def traced_round():
    """Return the trace of one round."""
    selector, models = steady_selector()
    trace = Trace()
    sys.setprofile(trace)
    picked = selector.select()
    sys.setprofile(None)
    rows = models(picked.clients)
    sys.setprofile(trace)
    selector.observe(picked.clients, rows)
    sys.setprofile(None)
    trace.files.pop(Path("cvrcore/__init__.py"), None)
    return trace


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench.reading", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if there is too much to read")
    options = parser.parse_args(arguments)
    trace = traced_round()
    lines = {}
    for path in trace.files:
        lines[path] = len((PACKAGE.parent / path).read_text(encoding="utf-8").splitlines())
    for path in sorted(lines):
        print(f"{lines[path]:6} lines  {trace.files[path]:5} calls  {path}")
    print(
        f"{len(lines)} files, {sum(lines.values())} lines, {trace.switches} switches between files"
    )
    short = len(lines) > MOST_FILES or sum(lines.values()) > MOST_LINES
    sys.exit(1 if options.check and short else 0)


if __name__ == "__main__":
    main()
