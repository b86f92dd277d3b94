"""The fold of waiting residuals into a dense covariance: begun early, never half believed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore import _backend
from cvrcore.store import CovarianceStore
from cvrcore.triangles import DEFERRED, LANES


@pytest.fixture(params=[False, True], ids=["at once", "in turns"])
def _small_and_large(request, monkeypatch):
    if request.param:
        monkeypatch.setattr("cvrcore.triangles._AT_ONCE", 0)
        monkeypatch.setattr("cvrcore.triangles._TASK", 100)


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
        dense.append(residual, rate)
        factored.append(residual, rate)
        same = assert_array_equal if rate == 0.25 else assert_allclose  # sums, or their terms
        same(dense.dense(), factored.dense())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.usefixtures("_small_and_large")
def test_saving_in_any_round_changes_nothing(dtype):
    residuals = residuals_of(2 * DEFERRED + 3, dtype)
    live = CovarianceStore(*residuals.shape[1:], "dense", dtype)
    loaded = CovarianceStore(*residuals.shape[1:], "dense", dtype)
    for residual in residuals:
        live.append(residual, 0.25)
        loaded.append(residual, 0.25)
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
                store.append(residual[: store.n_clients], 0.25)
        assert_array_equal(dense.dense(), factored.dense())


@pytest.mark.parametrize("n_waiting", [1, DEFERRED - 1, DEFERRED])
@pytest.mark.usefixtures("_small_and_large")
def test_older_states_go_on(n_waiting):
    """Before, all residuals waited for all blocks, sixteen at most."""
    residuals = residuals_of(2 * DEFERRED + 3, "float64")
    older, factored = (
        CovarianceStore(*residuals.shape[1:], kind, "float64") for kind in ("dense", "factored")
    )
    for residual in residuals[:n_waiting]:
        factored.append(residual, 0.25)
    base = older.state()["base"]
    older.restore({**factored.state(), "base": base, "next": n_waiting % DEFERRED})
    for residual in residuals[n_waiting:]:
        assert_array_equal(older.dense(), factored.dense())
        older.append(residual, 0.25)
        factored.append(residual, 0.25)
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
        store.append(residual, 0.25)
    with pytest.raises(ValueError, match=message):
        store.restore({**store.state(), **news})


def test_a_large_fold_is_shared_out_among_the_rounds(monkeypatch):
    """Sixteen blocks, one of which is folded in each round: no round does the work of all."""
    monkeypatch.setattr("cvrcore.triangles._AT_ONCE", 0)
    folded, fold = [], _backend.fold_block
    monkeypatch.setitem(_backend.__dict__, "fold_block", lambda *a: (folded.append(a[3]), fold(*a)))
    residuals = residuals_of(2 * DEFERRED, "float64", 5, DEFERRED * LANES)
    store = CovarianceStore(*residuals.shape[1:], "dense", "float64")
    for step, residual in enumerate(residuals):
        store.append(residual, 0.25)
        store._settle()
        assert folded == [s % DEFERRED for s in range(step + 1)]


def test_a_fold_that_was_cut_off_is_not_gone_on_from(monkeypatch):
    """Nobody knows what of it was written: the last saved state is the way on."""
    selector = cvrcore.CoalitionSelector(12, 5, 3, warmup=0, seed=0, store="dense")
    rng = np.random.default_rng(0)

    def go():
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(3, 5)))

    for _ in range(DEFERRED - 1):
        go()
    saved = selector.state_dict()

    def fail(*_):
        raise MemoryError("told to fail")

    with monkeypatch.context() as patch:
        patch.setitem(_backend.__dict__, "fold_block", fail)
        go()  # begins to fold
        with pytest.raises(MemoryError, match="told to fail"):
            go()
    for refused in (go, selector.state_dict, selector.covariance):
        with pytest.raises(RuntimeError, match="cut off in the middle: load the last saved state"):
            refused()
    selector.load_state_dict(saved)
    go()
    go()
    assert np.isfinite(selector.scores).all()
