"""Compiling of Numba kernels: its message, `cvrcore.compile` and the bench of a fresh process."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.compiling import row_of
from cvrcore.kernels import dispatch, jit

ROOT = Path(__file__).resolve().parent.parent
#: Rounds of every kind in one process; prints the kernels that it had to compile.
ROUNDS = """
import json, sys
import numpy as np
import cvrcore
from numba.core import event

compiled = []
class Recorder(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event):
        pass
event.register("numba:compile", Recorder())

for dtype in ("float64", "float32"):
    for n_clients, n_features, options in json.loads(sys.argv[1]):
        rng = np.random.default_rng(1)
        selector = cvrcore.CoalitionSelector(
            n_clients, n_features, 5, warmup=1, seed=1, dtype=dtype,
            initial=rng.normal(size=(n_clients, n_features)), **options
        )
        for _ in range(40):
            picked = selector.select(np.flatnonzero(rng.random(n_clients) < 0.9))
            rows = rng.normal(size=(len(picked), n_features)).astype(dtype)
            selector.observe(picked.clients, rows)
print(json.dumps(compiled))
"""
KINDS = [
    (12, 4, {}),
    (100, 30, {}),
    (170, 8, {}),
    (90, 8, {"store": "dense"}),
    (90, 8, {"store": "factored"}),
    (90, 8, {"window": 4}),
    (200, 8, {"clustering": "nystrom", "n_landmarks": 40}),
    (200, 8, {"clustering": "nystrom", "n_landmarks": 40, "kernel": "laplacian"}),
    (60, 8, {"kernel": "cosine"}),
    (60, 8, {"kernel": "laplacian"}),
    (60, 8, {"kernel": "sigmoid"}),
    (170, 8, {"kernel": "laplacian"}),
    (60, 8, {"preset": "scripts"}),
    (60, 8, {"eigensolver": "direct"}),
    (60, 8, {"n_coalitions": "eigengap"}),
    (60, 8, {"n_coalitions": 3, "places": "neyman", "within": "neyman"}),
    (40, 2, {}),
    (40, 1, {}),
]
#: One call of a small kernel, with no patience for compiling.
ONE_KERNEL = """
import numpy as np
from cvrcore.kernels import dispatch, jit
jit.PATIENCE = 0.0
labels, kept = np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.uint8)
order, starts, sizes = labels.copy(), labels[:1].copy(), labels[:1].copy()
for _ in range(2):
    dispatch.sort_by_label(labels, kept, order, starts, sizes)
"""


def run(folder, *arguments):
    """Run Python on the Numba backend with a cache in `folder`."""
    settings = {"CVRCORE_BACKEND": "numba", "CVRCORE_NUMBA_CACHE": "1"}
    settings |= {"NUMBA_CACHE_DIR": str(folder), "NUMBA_DISABLE_JIT": "0"}
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )


def test_rounds_of_every_kind_find_their_kernels_compiled(tmp_path):
    done = run(tmp_path, "-m", "cvrcore", "compile")
    assert done.stdout.startswith("kernels are ready after ")
    assert done.stderr == ""  # no message: the user asked for the compiling
    assert json.loads(run(tmp_path, "-c", ROUNDS, json.dumps(KINDS)).stdout) == []


def test_a_script_shows_that_kernels_are_being_compiled_once(tmp_path):
    first = run(tmp_path, "-c", ONE_KERNEL)
    assert first.stderr.count("cvrcore: compiling Numba kernels, ") == 1
    assert "cvrcore.compile()" in first.stderr
    second = run(tmp_path, "-c", ONE_KERNEL)  # loads the kernel from the cache
    assert second.stderr == ""


def test_the_message_says_how_long_it_took_last_time(tmp_path):
    first = run(tmp_path, "-c", ONE_KERNEL)
    assert "last time" not in first.stderr
    (record,) = tmp_path.glob("cvrcore-compile-seconds.txt")
    seconds = float(record.read_text())
    assert 0 < seconds < 60
    record.write_text("87.0\n")
    again = run(tmp_path, "-c", ONE_KERNEL.replace("np.int64", "np.int32"))  # another signature
    assert again.stderr.count("compiling Numba kernels") == 1
    assert "(87 s in all last time)" in again.stderr
    assert float(record.read_text()) < 60


def test_short_compiling_leaves_no_record(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    clock = Clock(monkeypatch)
    clock.start()
    clock.end(1.0)
    clock.timer.save()
    assert jit.last_seconds() is None
    clock.start()
    clock.end(6.5)
    clock.timer.save()
    assert jit.last_seconds() == 7.5
    assert [path.name for path in tmp_path.iterdir()] == ["cvrcore-compile-seconds.txt"]
    (tmp_path / "cvrcore-compile-seconds.txt").write_text("nonsense")
    assert jit.last_seconds() is None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cvrcore-compile-seconds.txt"))
    clock.timer.save()  # a folder that cannot be made: no error


class Clock:
    """A `CompileTimer` with a clock that the test moves."""

    def __init__(self, monkeypatch):
        self.now, self.timer = 100.0, jit.CompileTimer()
        monkeypatch.setattr(jit, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def start(self, module="cvrcore.kernels.kmeans"):
        self.timer.on_start(event_of(module))

    def end(self, seconds, module="cvrcore.kernels.kmeans"):
        self.now += seconds
        self.timer.on_end(event_of(module))


def event_of(module):
    function = SimpleNamespace(__module__=module)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def test_the_message_comes_once_the_sum_passes_two_seconds(monkeypatch, caplog):
    clock = Clock(monkeypatch)
    for expected in (0, 0, 1, 1):
        clock.start()
        clock.end(0.9)
        assert len(caplog.records) == expected
        clock.now += 60.0  # rounds between two kernels do not count
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cvrcore", logging.WARNING)
    assert "3 s so far" in record.getMessage()


def test_the_message_comes_while_a_kernel_waits_for_its_helper(monkeypatch, caplog):
    clock = Clock(monkeypatch)
    clock.start()
    clock.start("numba.np.arrayobj")
    clock.end(2.5, "numba.np.arrayobj")
    assert len(caplog.records) == 1
    clock.end(1.0)
    assert clock.timer.seconds == 3.5
    assert clock.timer.n_compiled == 1


def test_seconds_of_a_helper_count_once(monkeypatch):
    clock = Clock(monkeypatch)
    clock.start()
    clock.start()
    clock.end(0.5)
    clock.end(0.25)
    assert clock.timer.seconds == 0.75


def test_kernels_of_other_packages_do_not_count(monkeypatch, caplog):
    clock = Clock(monkeypatch)
    clock.start("other.kernels")
    clock.end(60.0, "other.kernels")
    assert clock.timer.seconds == 0.0
    assert caplog.records == []


def test_the_cython_backend_imports_no_numba():
    if dispatch.backend() != "cython":
        pytest.skip("the extension is not built, or not chosen")
    code = "import sys, cvrcore; cvrcore.compile(); cvrcore.coalitions([[0.0], [1.0], [5.0]], 2)"
    code += "; print('numba' in sys.modules, 'cvrcore.kernels.jit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_bench_row_is_the_median_of_its_processes():
    row = row_of("numba, filled cache", [(0.5, 0), (0.9, 0), (0.7, 0)])
    assert (row.value, row.must, row.verdict) == (0.7, 1, "ok")
    assert row_of("numba, empty cache", [(12.0, 31)]).verdict == "short"
