"""Folds of recent residuals into the packed covariance."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import append

import cvrcore
from cvrcore.covariance.packed import DEFERRED, LANES
from cvrcore.covariance.store import CovarianceStore
from cvrcore.kernels import dispatch


@pytest.fixture(params=[False, True], ids=["one task", "many tasks"])
def _small_and_large(request, monkeypatch):
    if request.param:
        monkeypatch.setattr("cvrcore.covariance.packed._TASK", 100)


def residuals_of(n_rounds, dtype, n_clients=29, n_features=3 * LANES + 5):
    return np.random.default_rng(0).normal(size=(n_rounds, n_clients, n_features)).astype(dtype)


@pytest.mark.parametrize("rate", [0.25, 0.99], ids=["", "that is rescaled"])
@pytest.mark.usefixtures("_small_and_large")
def test_dense_has_the_bits_of_factored_in_every_round(rate):
    residuals = residuals_of(3 * DEFERRED + 5, "float64")
    dense, factored = (
        CovarianceStore(*residuals.shape[1:], kind, "float64") for kind in ("dense", "factored")
    )
    for residual in residuals:
        append(dense, residual, rate)
        append(factored, residual, rate)
        same = assert_array_equal if rate == 0.25 else assert_allclose  # sums, or their terms
        same(dense.dense(), factored.dense())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.usefixtures("_small_and_large")
def test_saving_in_any_round_changes_nothing(dtype):
    residuals = residuals_of(2 * DEFERRED + 3, dtype)
    live = CovarianceStore(*residuals.shape[1:], "dense", dtype)
    loaded = CovarianceStore(*residuals.shape[1:], "dense", dtype)
    for residual in residuals:
        append(live, residual, 0.25)
        append(loaded, residual, 0.25)
        fresh = CovarianceStore(*residuals.shape[1:], "dense", dtype)
        fresh.restore(loaded.state())
        loaded = fresh
        assert_array_equal(loaded.dense(), live.dense())


@pytest.mark.usefixtures("_small_and_large")
def test_clients_may_join_in_any_round():
    residuals = residuals_of(2 * DEFERRED + 3, "float64")
    for joined in (1, 7, DEFERRED, DEFERRED + 1):
        dense, factored = (
            CovarianceStore(20, residuals.shape[2], kind, "float64")
            for kind in ("dense", "factored")
        )
        for s, residual in enumerate(residuals):
            for store in (dense, factored):
                if s == joined:
                    store.grow(29)
                append(store, residual[: store.n_clients], 0.25)
        assert_array_equal(dense.dense(), factored.dense())


@pytest.mark.parametrize("n_waiting", [1, DEFERRED - 1, DEFERRED])
@pytest.mark.usefixtures("_small_and_large")
def test_older_states_go_on(n_waiting):
    """In states of older versions every block lacks all residuals, sixteen at most."""
    residuals = residuals_of(2 * DEFERRED + 3, "float64")
    older, factored = (
        CovarianceStore(*residuals.shape[1:], kind, "float64") for kind in ("dense", "factored")
    )
    for residual in residuals[:n_waiting]:
        append(factored, residual, 0.25)
    base = older.state()["base"]
    older.restore({**factored.state(), "base": base, "next": n_waiting % DEFERRED})
    for residual in residuals[n_waiting:]:
        assert_array_equal(older.dense(), factored.dense())
        append(older, residual, 0.25)
        append(factored, residual, 0.25)
    assert_array_equal(older.dense(), factored.dense())


@pytest.mark.parametrize(
    ("news", "message"),
    [
        ({"waiting": np.array([0, 4])}, "waiting must be between 0 and 3"),
        ({"waiting": np.array([-1, 0])}, "waiting must be between 0 and 3"),
        ({"waiting": np.array([0])}, "waiting must hold 2 integers"),
        ({"waiting": np.array([0.0, 1.0])}, "waiting must hold 2 integers"),
        ({"steps": 2}, "steps must be at least 3"),
        ({"history": [np.zeros((4, 3, LANES + 4))]}, "history must be of 5 clients"),
        (
            {"history": [np.zeros((5, DEFERRED + 1, LANES + 4))]},
            "history must be of 16 rounds at most",
        ),
        ({"history": [np.full((5, 3, LANES + 4), np.nan)]}, "history must be finite"),
    ],
)
def test_a_state_that_cannot_be_is_refused(news, message):
    store = CovarianceStore(5, LANES + 4, "dense", "float64")
    for residual in residuals_of(3, "float64", 5, LANES + 4):
        append(store, residual, 0.25)
    with pytest.raises(ValueError, match=message):
        store.restore({**store.state(), **news})


def test_every_round_folds_a_sixteenth_of_the_blocks(monkeypatch):
    """Sixteen blocks, one of which is folded in each round: no round does the work of all."""
    folded, fold = [], dispatch.fold_block
    monkeypatch.setitem(dispatch.__dict__, "fold_block", lambda *a: (folded.append(a[3]), fold(*a)))
    residuals = residuals_of(2 * DEFERRED, "float64", 5, DEFERRED * LANES)
    store = CovarianceStore(*residuals.shape[1:], "dense", "float64")
    for step, residual in enumerate(residuals):
        append(store, residual, 0.25)
        assert folded == [s % DEFERRED for s in range(step + 1)]


def test_a_selector_refuses_to_go_on_after_an_interrupted_fold(monkeypatch):
    """It is unknown what was written: the last saved state must be loaded."""
    selector = cvrcore.CoalitionSelector(12, 5, 3, warmup=0, seed=0, store="dense")
    rng = np.random.default_rng(0)

    def go():
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(3, 5)))

    for _ in range(DEFERRED):  # the next round folds sixteen residuals
        go()
    saved = selector.state_dict()

    def fail(*_):
        raise MemoryError("told to fail")

    with monkeypatch.context() as patch:
        patch.setitem(dispatch.__dict__, "fold_block", fail)
        with pytest.raises(MemoryError, match="told to fail"):
            go()
    for refused in (go, selector.state_dict):
        with pytest.raises(RuntimeError, match="cut off in the middle: load the last saved state"):
            refused()
    selector.load_state_dict(saved)
    go()
    go()
    assert np.isfinite(selector.scores).all()
