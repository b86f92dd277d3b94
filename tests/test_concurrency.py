"""Threads may share a selector: every verb is one atomic step."""

import copy
import pickle
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_selectors import assert_same

import cvrcore
from cvrcore import make_selector
from cvrcore.selectors import BUILT_IN as POLICIES
from cvrcore.state import load_state

N_CLIENTS, N_SELECT, N_FEATURES = 20, 4, 3
OPTIONS = {
    "fedcbs": {"label_counts": np.ones((N_CLIENTS, 2))},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 1},
}
VERBS = ("probe", "select", "observe", "state", "resize", "load")


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


def act(selector, verb, rng, states):
    """Call one verb; a refusal that the protocol names is fine, anything else is not."""
    try:
        if verb == "probe":
            selector.probe()
        elif verb == "select":
            asked = selector._probed
            losses = None if asked is None else rng.random(asked.size)
            assert len(selector.select(losses=losses)) == N_SELECT
        elif verb == "observe":
            pending = selector._pending
            ids = [] if pending is None else pending.clients
            selector.observe(ids, rng.random((len(ids), N_FEATURES)), rng.random(len(ids)))
        elif verb == "state":
            states.append(selector.state_dict())
        elif verb == "resize":
            more = {"label_counts": np.ones((1, 2))} if selector.name == "fedcbs" else {}
            selector.resize(selector.n_clients + 1, [1.0], **more)
        elif states:
            selector.load_state_dict(states[0])
    except ValueError as error:  # another thread came between: a round too many or too few
        rules = ("follow", "required", "selected this", "at least", "losses must", "shape")
        if not any(rule in str(error) for rule in rules):
            raise


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10, deadline=None)
@given(plans=st.lists(st.lists(st.sampled_from(VERBS), max_size=12), min_size=2, max_size=4))
def test_no_state_is_ever_torn(policy, plans):
    """Whatever threads do to it at once, each state seen is one that a single thread makes."""
    selector, states, errors = make(policy), [], []

    def play(plan, seed):
        rng = np.random.default_rng(seed)
        try:
            for verb in plan:
                act(selector, verb, rng, states)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=play, args=(p, i)) for i, p in enumerate(plans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert errors == []
    for state in [*states, selector.state_dict()]:
        assert_whole(state)
        again = type(selector).from_state_dict(state)  # checks every shape
        assert_same(again.state_dict(), state)


def assert_whole(state):
    """Parts that one call changes together have all changed, or none has."""
    n_clients = state["config"]["n_clients"]
    assert len(state["config"]["weights"]) == n_clients
    assert len(state["guards"]["credit"]) == n_clients
    for value in state["learned"].values():
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > N_CLIENTS:
            assert value.size == n_clients
    assert (state["pending"] is None) == (state["guards"]["eligible"] is None)


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
    selector = cvrcore.CoalitionSelector(N_CLIENTS, N_FEATURES, N_SELECT, seed=0)
    selector.select()
    twin = duplicate(selector)
    assert_same(twin.state_dict(), selector.state_dict())
    assert twin._lock is not selector._lock
    twin.select()
