"""The Ray engine, in a process of its own with a deadline: see `ray_cases.py`.

When a cluster is lost, Ray ends the process that is connected to it at once, and the test runner
with it; a runner that shares its work with others then waits for ever. The process spends most of
its time waiting, so it is started before the first test (see `conftest.py`) and is collected here.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'cvrcore[ray]'")

HERE = Path(__file__).parent
DEADLINE = 540  # seconds


class Cases:
    """The cases in a child process; its output goes to a file."""

    def __init__(self):
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it outlives this call
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        self._child = subprocess.Popen(
            [*command, str(HERE / "ray_cases.py")],
            stdout=self._output,
            stderr=subprocess.STDOUT,
            cwd=HERE.parents[1],
            # A folder of its own for its clusters: the parent's is that of Flower's simulations.
            env={name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"},
            start_new_session=True,
        )
        atexit.register(self.kill)

    def kill(self):
        """End the child and what it has started, and nothing else."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def result(self):
        """Return exit code, None after the deadline, and output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(DEADLINE)
        code = self._child.poll()
        self.kill()
        self._child.wait(30)
        self._output.seek(0)
        with self._output:
            return code, self._output.read()


@pytest.mark.timeout(DEADLINE + 60)
def test_engine_in_a_process_of_its_own():
    code, output = Cases().result()
    assert code is not None, f"the cases took more than {DEADLINE} s: {output[-3000:]}"
    assert code == 0, output[-6000:]
    assert " passed" in output, output[-3000:]
