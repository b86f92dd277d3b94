"""The fold of waiting residuals into a dense covariance: begun early, never half believed."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cvrcore
from cvrcore import _backend
from cvrcore.store import DEFERRED, CovarianceStore


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sixteen_residuals_of_an_older_state_are_folded_first(dtype):
    """Before, the sixteenth waited in the state; now its fold begins at once."""
    residuals = np.random.default_rng(0).normal(size=(DEFERRED + 3, 7, 5)).astype(dtype)
    live = CovarianceStore(7, 5, "dense", dtype)
    for residual in residuals[:DEFERRED]:
        live.append(residual, 0.25)
    older = CovarianceStore(7, 5, "dense", dtype)
    waiting = CovarianceStore(7, 5, "factored", dtype)
    for residual in residuals[:DEFERRED]:
        waiting.append(residual, 0.25)
    state = {**older.state(), **waiting.state(), "base": older.state()["base"], "next": 0}
    older.restore(state)
    assert older.history.count == DEFERRED
    for residual in residuals[DEFERRED:]:
        live.append(residual, 0.25)
        older.append(residual, 0.25)
    assert_array_equal(older.dense(), live.dense())


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
        patch.setitem(_backend.__dict__, "fold_history", fail)
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
