import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from cvrcore.threads import begin_chunks, occupied, run_chunks, run_spans, single_blas_thread


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


@pytest.mark.parametrize("threads", ["1", "2"])
def test_spans_are_whole_chunks_and_all_of_them_for_who_is_alone(monkeypatch, threads):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
    spans = []
    run_spans(lambda start, stop: spans.append((start, stop)), 10, 3)
    assert sorted(spans) == ([(0, 10)] if threads == "1" else [(0, 6), (6, 10)])
    spans.clear()
    run_spans(lambda start, stop: spans.append((start, stop)), 100, 3)
    assert len(spans) == (1 if threads == "1" else 34)  # of many one is little


def test_nobody_is_woken_up_while_all_cores_are_at_work(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    at_work, done = threading.Event(), threading.Event()

    def elsewhere():
        with occupied, occupied:  # however deep, it is one thread
            at_work.set()
            assert done.wait(60)

    def workers():
        names = set()

        def work(start, stop):
            names.add(threading.current_thread().name)
            time.sleep(0.001)

        with occupied:  # oneself does not count
            run_chunks(work, 40, 1)
            run_spans(work, 40, 1)
        return names

    other = threading.Thread(target=elsewhere)
    other.start()
    assert at_work.wait(60)
    assert workers() == {"MainThread"}
    done.set()
    other.join(60)
    assert len(workers()) == 2


def test_helpers_leave_when_cores_are_short(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    done, stop = [], threading.Event()

    def work(start, end):
        time.sleep(0.001)
        done.append(start)

    def elsewhere(at_work):
        with occupied:
            at_work.set()
            assert stop.wait(60)

    begun = begin_chunks(work, 2000, 1)
    others = []
    for _ in range(2):
        at_work = threading.Event()
        others.append(threading.Thread(target=elsewhere, args=(at_work,)))
        others[-1].start()
        assert at_work.wait(60)
    begun._helpers[0].result(timeout=60)  # it has left ...
    assert len(done) < 2000  # ... before the end
    stop.set()
    for other in others:
        other.join(60)
    begun.finish()
    assert sorted(done) == list(range(2000))


def test_nobody_works_on_after_a_failure(monkeypatch):
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


@pytest.mark.parametrize("threads", ["1", "3"])
def test_work_that_was_begun_is_done_once_when_it_is_finished(monkeypatch, threads):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
    done = np.zeros(50, dtype=int)

    def work(start, stop):
        done[start:stop] += 1

    begun = begin_chunks(work, 50, 3)
    begun.finish()
    begun.finish()
    assert (done == 1).all()


def test_the_caller_does_not_wait_for_a_crew_that_is_busy(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    release, done = threading.Event(), np.zeros(8, dtype=int)
    begun = begin_chunks(lambda start, stop: release.wait(10), 1, 1)
    run_chunks(lambda start, stop: done.__setitem__(slice(start, stop), 1), 8, 1)
    assert done.all()  # while the only helper waits
    release.set()
    begun.finish()


def test_work_that_was_cut_off_is_never_taken_for_done(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "1")

    def fail(start, stop):
        raise MemoryError("told to fail")

    begun = begin_chunks(fail, 1, 1)
    with pytest.raises(MemoryError, match="told to fail"):
        begun.finish()
    with pytest.raises(RuntimeError, match="cut off in the middle"):
        begun.finish()


FORK = """
import os, sys, time
import numpy as np
from cvrcore.threads import begin, begin_chunks

done = np.zeros(6, dtype=int)

def work(start, stop):
    time.sleep(0.05)
    done[start:stop] += 1

begun = BEGIN
child = os.fork()
if not child:
    os._exit(0 if (done == 1).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FORK_AT_WORK = """
import os, sys, threading
from cvrcore.threads import occupied, run_chunks

held, names = threading.Event(), set()

def elsewhere():
    with occupied, occupied._lock:
        held.set()
        threading.Event().wait()

threading.Thread(target=elsewhere, daemon=True).start()
held.wait(60)
child = os.fork()
if not child:
    together = threading.Barrier(2)  # or it never ends: both threads are needed
    run_chunks(lambda start, stop: together.wait(30), 2, 1)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def exit_code(script):
    """Run a script on two threads, in a process of its own."""
    environment = {**os.environ, "CVRCORE_NUM_THREADS": "2", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-W", "ignore", "-c", script]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("call", ["begin_chunks(work, 6, 1)", "begin(lambda: work(0, 6))"])
def test_a_fork_waits_for_work_that_was_begun(call):
    assert exit_code(FORK.replace("BEGIN", call)) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_threads_at_work_elsewhere_do_not_come_along_in_a_fork():
    assert exit_code(FORK_AT_WORK) == 0
