"""Verbs are atomic: a signal leaves the state before, the state after, or a refusal."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
from fuzzing import EFFORT
from interrupts import (
    AGGREGATORS,
    MERGE_VERBS,
    SELECTORS,
    VERBS,
    Merge,
    Stopped,
    Trial,
    lines,
    stop,
    storm,
)

import cvrcore
from cvrcore.aggregators import AGGREGATORS as RULES
from cvrcore.runtime.threads import run_chunks
from cvrcore.selectors import BUILT_IN

#: An open file that a signal interrupts is closed by the garbage collector, which warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ONLY_MAIN = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer signal")
#: Kinds of selectors that keep more than one number per client.
BY_LINE = ["oort", "factored", "dense", "window", "centred", "landmarks"]
BY_LINE += ["pivotal", "drift", "clustered", "divfl", "hics", "fedcor", "shapley", "learned"]


@ONLY_MAIN
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", SELECTORS)
def test_a_timer_signal_never_leaves_a_mixed_state(name, verb):
    """Under ``make fuzz`` 5,000 moments and more, in the suite a few of each verb."""
    found = storm(Trial(name, verb), 2 * EFFORT)
    assert found.total() == 2 * EFFORT
    assert found["mixed"] == 0, found


@ONLY_MAIN
@pytest.mark.parametrize("verb", MERGE_VERBS)
@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_timer_signal_never_leaves_a_mixed_aggregator(name, verb):
    found = storm(Merge(name, verb), 2 * EFFORT)
    assert found["mixed"] == 0, found


@pytest.mark.parametrize("verb", ["select", "observe", "resize"])
@pytest.mark.parametrize("name", BY_LINE)
def test_an_exception_at_any_line_never_leaves_a_mixed_state(name, verb):
    step = 41 if EFFORT == 1 else 1
    found = lines(Trial(name, verb), step, offset=len(name) % step)
    assert found["mixed"] == 0, found
    assert found["before"], found


@pytest.mark.parametrize("name", ["memory", "factor-memory", "momentum", "adaptive"])
def test_an_exception_at_any_line_never_leaves_a_mixed_aggregator(name):
    found = lines(Merge(name), 7 if EFFORT == 1 else 1)
    assert found["mixed"] == 0, found
    assert found["before"] > 5, found


@pytest.mark.parametrize("verb", ["select", "observe", "resize"])
def test_a_failing_policy_of_someone_else_is_undone(verb):
    """Arrays and containers of any subclass are restored, without a line of its own."""

    class Fickle(cvrcore.Selector):
        name = "fickle"

        def __init__(self, n_clients, n_select, **options):
            super().__init__(n_clients, n_select, **options)
            self.counts, self.seen, self.fails = np.zeros(n_clients), [], False

        def _change(self):
            self.counts += 1
            self.seen.append(self.round)
            self._rng.random()
            if self.fails:
                raise KeyboardInterrupt

        def _choose(self, eligible, probe):
            self._change()
            return cvrcore.Selection(clients=np.flatnonzero(eligible)[: self.n_select])

        def _learn(self, report):
            self._change()

        def _grow(self, n_clients, added):
            self.counts = np.zeros(n_clients)
            self._change()

        def _learned(self):
            return {"counts": self.counts.copy(), "seen": list(self.seen)}

    selector = Fickle(5, 2, seed=0)
    selector.guard(max_share=1.5)
    if verb == "observe":
        selector.select()
    before, selector.fails = selector.state_dict(), True
    calls = {
        "select": lambda: selector.select(),
        "observe": lambda: selector.observe([0]),
        "resize": lambda: selector.resize(6, [1.0]),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[verb]()
    np.testing.assert_equal(selector.state_dict(), before)
    selector.fails = False
    calls[verb]()


def test_undoing_that_is_cut_off_is_completed_by_the_next_call(monkeypatch):
    selector = cvrcore.make_selector("oort", 10, 3, seed=0)
    selector.select()
    before = selector.state_dict()
    journal_of = cvrcore.runtime.journal.Journal

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(selector), "_pace", fail)
        patch.setattr(journal_of, "undo", fail)
        with pytest.raises(KeyboardInterrupt):
            selector.observe([], failed=selector._pending.clients)
    np.testing.assert_equal(selector.state_dict(), before)
    assert selector._journal is None


@ONLY_MAIN
def test_no_helper_thread_writes_after_a_signal(monkeypatch):
    """A signal between handing out chunks and waiting for them must not leave one running."""
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    target = np.zeros(64)

    def work(start, stop):
        if threading.current_thread() is not threading.main_thread():
            for _ in range(200):
                target[start:stop] += 1

    n_checked = 0
    last = signal.signal(signal.SIGALRM, stop)
    try:
        for moment in range(100 * EFFORT):
            # The outer block: another thread may take a signal shortly before the timer is
            # cleared, and Python then raises here later.
            with contextlib.suppress(Stopped):
                with contextlib.suppress(Stopped):
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + (moment % 50) * 1e-5)
                    run_chunks(work, 64, 4)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                found = target.copy()
                os.sched_yield()
                np.testing.assert_array_equal(target, found)
                n_checked += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, last)
    assert n_checked > 90 * EFFORT


def test_every_policy_and_every_rule_with_state_is_interrupted():
    """A policy that comes later joins the lists, and so the crafted states too."""
    assert {policy for policy, *_ in SELECTORS.values()} == set(BUILT_IN)
    stateless = {"mean", "coalition-mass"}
    assert {rule for rule, _ in AGGREGATORS.values()} == set(RULES) - stateless
