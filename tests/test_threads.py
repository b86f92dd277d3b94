import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from cvrcore.runtime.threads import run_chunks, single_blas_thread


def blas_threads():
    pools = ThreadpoolController().info()
    return [pool["num_threads"] for pool in pools if pool["user_api"] == "blas"]


def test_overlapping_callers_leave_blas_as_it_was():
    before = blas_threads()
    one, two = single_blas_thread(), single_blas_thread()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert set(blas_threads()) == {1}  # the second is still inside
    two.__exit__(None, None, None)
    assert blas_threads() == before


@pytest.mark.parametrize("threads", ["1", "2", "5"])
@pytest.mark.parametrize(("length", "chunk"), [(0, 3), (1, 3), (10, 3), (100, 7)])
def test_every_row_is_done_once(monkeypatch, threads, length, chunk):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
    done = np.zeros(length, dtype=int)

    def work(start, stop):
        done[start:stop] += 1

    run_chunks(work, length, chunk)
    assert (done == 1).all()


def test_no_thread_works_on_after_a_failure(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    entered, release = threading.Event(), threading.Event()
    finished = []

    def work(start, stop):
        if threading.current_thread() is threading.main_thread():
            assert entered.wait(10)  # the other thread is at work
            release.set()
            raise RuntimeError("told to fail")
        entered.set()
        assert release.wait(10)
        finished.append(start)

    with pytest.raises(RuntimeError, match="told to fail"):
        run_chunks(work, 2, 1)
    assert finished  # the other chunk ended before the call returned


def test_the_caller_does_everything_while_the_pool_is_busy(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    release, busy, done = threading.Event(), threading.Event(), np.zeros(8, dtype=int)

    def block(start, stop):
        if threading.current_thread().name.startswith("cvrcore"):
            busy.set()
        else:
            assert busy.wait(10)  # the other thread of the pool has the other chunk
        assert release.wait(10)

    other = threading.Thread(target=run_chunks, args=(block, 2, 1))
    other.start()
    assert busy.wait(10)
    run_chunks(lambda start, stop: done.__setitem__(slice(start, stop), 1), 8, 1)
    assert done.all()  # while the only helper waits
    release.set()
    other.join(10)
    assert not other.is_alive()


FORK = """
import os, sys, threading
from cvrcore.runtime.threads import run_chunks

run_chunks(lambda start, stop: None, 4, 1)  # the parent has a pool
child = os.fork()
if not child:
    together = threading.Barrier(2)  # or it never ends: both threads are needed
    run_chunks(lambda start, stop: together.wait(30), 2, 1)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_a_pool_of_its_own():
    environment = {**os.environ, "CVRCORE_NUM_THREADS": "2", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 0
