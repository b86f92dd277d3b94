"""Threads may share a selector: every verb is one atomic step."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from first_policies import FIRST_POLICIES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_selectors import assert_same

import cvrcore
from cvrcore import make_selector
from cvrcore.covariance.packed import DEFERRED
from cvrcore.state import load_state

N_CLIENTS, N_SELECT, N_FEATURES = 20, 4, 3
OPTIONS = {
    "fedcbs": {"label_counts": np.ones((N_CLIENTS, 2))},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 1},
}
VERBS = ("probe", "select", "observe", "state_dict", "save", "resize", "load_state_dict")


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Numba takes seconds, and a minute where threads change places all the time: before."""
    selector, rng = make("fedcvr-bolt"), np.random.default_rng(0)
    for n_clients in range(N_CLIENTS, N_CLIENTS + 2 * DEFERRED):
        picked = selector.select()
        selector.observe(picked.clients, rng.random((N_SELECT, N_FEATURES)))
        selector.resize(n_clients + 1, [1.0])
    selector.state_dict()


@pytest.fixture(autouse=True)
def _switch_often():
    """Let threads change places every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def make(policy, **options):
    return make_selector(
        policy, N_CLIENTS, N_SELECT, seed=0, **OPTIONS.get(policy, {}), max_share=1.5, **options
    )


class Turnstile:
    """A selector's lock that writes down which thread went through, in order."""

    def __init__(self):
        self._lock, self._depth, self.order = threading.RLock(), 0, []

    def __enter__(self):
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self.order.append(threading.current_thread().name)

    def __exit__(self, *_):
        self._depth -= 1
        self._lock.release()


def prepare(selector, verb, rng, states):
    """Return arguments of a call, from what a thread sees: another one may come between."""
    if verb == "select":
        asked = selector._probed
        return {"losses": None if asked is None else rng.random(asked.size)}
    if verb == "observe":
        pending = selector._pending
        ids = [] if pending is None else pending.clients.copy()
        rows, losses = rng.random((len(ids), N_FEATURES)), rng.random(len(ids))
        return {"clients": ids, "models": rows, "losses": losses}
    if verb == "resize":
        more = {"label_counts": np.ones((1, 2))} if selector.name == "fedcbs" else {}
        return {"n_clients": selector.n_clients + 1, "weights": [1.0], **more}
    if verb == "load_state_dict":
        return {"state": states[0]}
    return {}


def perform(selector, verb, arguments, path):
    """Call one verb; return what came of it. A refusal must be one that the protocol names."""
    try:
        if verb == "save":
            selector.save(path)
            return load_state(path)
        found = getattr(selector, verb)(**arguments)
        return found.plain() if verb == "select" else found
    except ValueError as error:  # another thread came between: a round too many or too few
        rules = ("follow", "required", "selected this", "at least", "losses must", "shape")
        if not any(rule in str(error) for rule in rules):
            raise
        return str(error)


@pytest.mark.parametrize("policy", FIRST_POLICIES)
@settings(max_examples=10, deadline=None)
@given(plans=st.lists(st.lists(st.sampled_from(VERBS), max_size=12), min_size=2, max_size=4))
def test_threads_at_once_are_threads_in_turn(tmp_path_factory, policy, plans):
    """One thread that makes the same calls in the order of the lock sees the same, to the bit."""
    folder = tmp_path_factory.getbasetemp()
    selector, states, errors = make(policy), [make(policy).state_dict()], []
    selector._lock = turnstile = Turnstile()
    calls = {str(i): [] for i in range(len(plans))}

    def play(plan, name):
        rng = np.random.default_rng(int(name))
        try:
            for verb in plan:
                arguments = prepare(selector, verb, rng, states)
                outcome = perform(selector, verb, arguments, folder / f"{name}.npz")
                calls[name].append((verb, arguments, outcome))
                if verb == "state_dict":
                    states[0] = outcome
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=play, args=(plan, name), name=name)
        for name, plan in zip(calls, plans, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert errors == []

    alone, following = make(policy), {name: iter(made) for name, made in calls.items()}
    assert len(turnstile.order) == sum(map(len, plans))
    for name in turnstile.order:
        verb, arguments, outcome = next(following[name])
        again = perform(alone, verb, arguments, folder / "alone.npz")
        np.testing.assert_equal(again, outcome)
    assert_same(alone.state_dict(), selector.state_dict())


def test_rounds_of_many_threads_add_up():
    """A lost update would lose picks: every closed round adds exactly n_select."""
    selector = make("fedcbs")
    turn = threading.Lock()

    def play():
        for _ in range(60):
            with turn:  # which observe answers which select is for the threads to agree on
                picked = selector.select()
                selector.observe(picked.clients)
            selector.state_dict()

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert selector.round == 240
    assert selector.state_dict()["learned"]["times_picked"].sum() == 240 * N_SELECT


def test_saves_of_many_threads_never_go_back(tmp_path):
    path, selector = tmp_path / "s.npz", make("uniform")
    selector.save(path)
    stop, seen = threading.Event(), []

    def save():
        while not stop.is_set():
            selector.save(path)
            seen.append(load_state(path)["round"])

    savers = [threading.Thread(target=save) for _ in range(2)]
    for thread in savers:
        thread.start()
    for _ in range(100):
        selector.select()
        selector.observe([])
    stop.set()
    for thread in savers:
        thread.join(timeout=60)
    assert load_state(path)["round"] == max(seen)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_selectors_can_still_be_copied_and_sent(duplicate):
    options = {"seed": 0, "warmup": 0, "store": "dense"}
    selector, rng = (
        cvrcore.CoalitionSelector(N_CLIENTS, N_FEATURES, N_SELECT, **options),
        np.random.default_rng(0),
    )
    for _ in range(DEFERRED):
        picked = selector.select()
        selector.observe(picked.clients, rng.random((N_SELECT, N_FEATURES)))
    selector.select()
    twin = duplicate(selector)
    assert_same(twin.state_dict(), selector.state_dict())
    assert twin._lock is not selector._lock
    twin.select()
