import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from cvrcore.runtime import threads as module
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
    monkeypatch.setattr(module, "_helpers", module._Helpers())  # with one thread
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


class Starts:
    """Stands for `_thread`: counts the threads that are to be started, up to `most`; none runs."""

    def __init__(self, most):
        self.most, self.count = most, 0

    def start_new_thread(self, *_):
        if self.count == self.most:
            raise RuntimeError("can't start new thread")
        self.count += 1
        return self.count


@pytest.fixture
def starts(monkeypatch):
    found = Starts(most=100)
    monkeypatch.setattr(module, "_thread", found)
    monkeypatch.setattr(module, "_helpers", module._Helpers())
    return found


def rows_done(length):
    done = np.zeros(length, dtype=int)
    run_chunks(
        lambda start, stop: done.__setitem__(slice(start, stop), done[start:stop] + 1), length, 1
    )
    return done


def test_a_process_has_one_pool_whatever_the_lengths(monkeypatch, starts):
    for threads, length, expected in [(6, 2, 5), (6, 4, 5), (6, 50, 5), (9, 3, 8), (2, 50, 8)]:
        monkeypatch.setenv("CVRCORE_NUM_THREADS", str(threads))
        before = module._helpers.tasks.qsize()
        assert (rows_done(length) == 1).all()
        assert starts.count == expected
        assert module._helpers.tasks.qsize() - before == min(threads, length) - 1


@pytest.mark.parametrize("most", [0, 2])
def test_threads_that_cannot_be_started_are_done_without(monkeypatch, starts, most):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "6")
    starts.most = most
    for calls in (1, 2, 3):
        assert (rows_done(20) == 1).all()
        assert starts.count == most
        assert module._helpers.tasks.qsize() == most * calls
    starts.most = 100  # the limit of the system was lifted
    assert (rows_done(20) == 1).all()
    assert starts.count == 5


def test_other_errors_while_threads_are_started_are_told(monkeypatch, starts):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "3")

    def fail(*_):
        raise RuntimeError("of a signal")

    monkeypatch.setattr(starts, "start_new_thread", fail)
    with pytest.raises(RuntimeError, match="of a signal"):
        rows_done(20)


def test_callers_at_once_share_the_pool(monkeypatch, starts):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "4")
    together = threading.Barrier(8)
    callers = [threading.Thread(target=lambda: (together.wait(10), rows_done(9))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)
    assert starts.count == 3


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
