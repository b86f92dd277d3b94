"""Steps that are taken while the server goes on: same bits, seen by nobody before they end."""

import copy
import pickle
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from test_selectors import assert_same

import cvrcore
from cvrcore import _backend
from cvrcore.selectors import coalition


@pytest.fixture
def ahead(monkeypatch):
    """Let steps of any size be taken by another thread, of which there is one at least."""
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    monkeypatch.setattr(coalition, "_WORTH_A_THREAD", 0)


def make(**options):
    return cvrcore.CoalitionSelector(40, 30, 5, warmup=1, seed=0, **options)


def play(selector, n_rounds, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), selector.n_features)))
    return selector


def test_large_steps_are_taken_by_another_thread_and_small_ones_are_not(monkeypatch):
    monkeypatch.setenv("CVRCORE_NUM_THREADS", "2")
    seen = []
    real = _backend.advance_moments

    def watched(*arguments):
        seen.append(threading.current_thread() is threading.main_thread())
        real(*arguments)

    monkeypatch.setitem(_backend.__dict__, "advance_moments", watched)
    play(make(), 4)
    assert seen
    assert all(seen)
    seen.clear()
    large = cvrcore.CoalitionSelector(100, 1100, 10, warmup=0, seed=0)
    picked = large.select()
    large.observe(picked.clients, np.ones((10, 1100)))
    large._learning._helpers[0].result(timeout=60)  # nobody waits for it but this line
    assert seen
    assert not all(seen)


@pytest.mark.parametrize("options", [{}, {"store": "dense"}, {"preset": "scripts"}, {"window": 3}])
def test_it_changes_no_bit(options, monkeypatch):
    expected = play(make(**options), 30)
    monkeypatch.setattr(coalition, "_WORTH_A_THREAD", 0)
    for n_threads in ("1", "2"):
        monkeypatch.setenv("CVRCORE_NUM_THREADS", n_threads)
        assert_same(play(make(**options), 30).state_dict(), expected.state_dict())


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize(
    "look",
    [
        lambda selector: selector.scores,
        lambda selector: selector.updates,
        lambda selector: selector.covariance(),
        lambda selector: copy.deepcopy(selector).scores,
        lambda selector: pickle.loads(pickle.dumps(selector)).scores,
        lambda selector: selector.state_dict()["learned"]["scores"],
        lambda selector: selector.resize(41, [1.0]) or selector.scores,
    ],
)
def test_who_looks_waits_for_its_end(look, monkeypatch):
    expected = look(play(make(), 5))
    go, real = threading.Event(), _backend.advance_moments

    def held(*arguments):
        assert go.wait(timeout=60)
        real(*arguments)

    monkeypatch.setitem(_backend.__dict__, "advance_moments", held)
    go.set()
    selector = play(make(), 4)
    rng = np.random.default_rng(0)
    models = [rng.normal(size=(5, 30)) for _ in range(5)][-1]
    picked = selector.select()
    go.clear()
    selector.observe(picked.clients, models)
    threading.Timer(0.2, go.set).start()
    assert_array_equal(look(selector), expected)


@pytest.mark.usefixtures("ahead")
def test_coalitions_are_made_beside_it(monkeypatch):
    """They are of rows alone: only the draw waits for scores."""
    selector, expected = play(make(), 4), play(make(), 4)
    go, real = threading.Event(), _backend.advance_moments

    def held(*arguments):
        assert go.wait(timeout=60)
        real(*arguments)

    def kmeans(*arguments, real=_backend.kmeans):
        go.set()  # or nobody ever does
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setitem(_backend.__dict__, "advance_moments", held)
        patch.setitem(_backend.__dict__, "kmeans", kmeans)
        go.set()
        picked = selector.select()
        go.clear()
        selector.observe(picked.clients, np.ones((5, 30)))
        found = selector.select()
    expected.observe(expected.select().clients, np.ones((5, 30)))
    assert_array_equal(found.clients, expected.select().clients)


@pytest.mark.usefixtures("ahead")
def test_what_goes_wrong_is_told_by_the_next_call_and_ends_the_selector(monkeypatch):
    selector = play(make(), 5)
    saved = selector.state_dict()

    def fail(*_):
        raise MemoryError("told to fail")

    with monkeypatch.context() as patch:
        patch.setitem(_backend.__dict__, "advance_moments", fail)
        play(selector, 1)
        with pytest.raises(MemoryError, match="told to fail"):
            selector.select()
    for refused in (selector.select, selector.state_dict, lambda: selector.scores):
        with pytest.raises(RuntimeError, match="cut off in the middle: load the last saved state"):
            refused()
    selector.load_state_dict(saved)
    assert_same(play(selector, 3, seed=1).state_dict(), play(make_from(saved), 3, 1).state_dict())


def make_from(state):
    return cvrcore.CoalitionSelector.from_state_dict(state)
