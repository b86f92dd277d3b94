"""The Ray engine, in a process of its own with a deadline: see `ray_cases.py`.

When a cluster is lost, Ray ends the process that is connected to it at once, and the test runner
with it; a runner that shares its work with others then waits for ever.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'cvrcore[ray]'")

HERE = Path(__file__).parent
DEADLINE = 540  # seconds


@pytest.mark.timeout(DEADLINE + 60)
def test_engine_in_a_process_of_its_own():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    child = subprocess.Popen(
        [*command, str(HERE / "ray_cases.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=HERE.parents[1],
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own children alone
        output, _ = child.communicate(timeout=30)
        pytest.fail(f"the cases took more than {DEADLINE} s: {output[-3000:]}")
    assert child.returncode == 0, output[-6000:]
    assert " passed" in output, output[-3000:]
