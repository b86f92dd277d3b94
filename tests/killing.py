"""Run a piece of work in a child process and kill it with SIGKILL; not a test.

Children are forked from a process that has imported everything and started no thread, so
that a life costs milliseconds and hundreds fit one test.
"""

import os
import signal
import time


def life(work, seconds):
    """Fork, let `work` run, kill it after `seconds`; return whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"the child failed: {status}"
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child failed: {status}"
    return status == 0
