import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from cvrcore.threads import run_chunks, single_blas_thread


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
