"""Windows on the covariance, when a store turns dense, and steps that are cut off."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import append, entries, play

import cvrcore
from cvrcore.covariance.store import CovarianceStore
from cvrcore.kernels import dispatch


@pytest.mark.parametrize("rate", ["decay", 0.2])
def test_a_window_replaces_dropped_residuals_by_its_mean(rate):
    """``C = (1 - weight kept) ...``: against the same sums written out."""
    n_clients, n_features, window = 6, 3, 4
    rng = np.random.default_rng(7)
    store = CovarianceStore(n_clients, n_features, "window", "float64", window)
    ones, weights, residuals = 1.0, [], []
    for s in range(11):
        step = 1 / (s + 2) if rate == "decay" else rate
        residuals.append(rng.normal(size=(n_clients, n_features)))
        append(store, residuals[-1], step)
        ones *= 1 - step
        weights = [w * (1 - step) for w in weights] + [step]
    kept = sum(weights[-window:])
    assert store.form == "window"
    assert store.log.dropped == pytest.approx(1 - kept / sum(weights))
    recent = sum(
        w * np.einsum("kd,jd->dkj", r, r)
        for w, r in zip(weights[-window:], residuals[-window:], strict=True)
    )
    expected = ones + recent * sum(weights) / kept
    assert_allclose(store.dense(), expected, rtol=1e-12)
    representative = np.array([-1, 0, 0, 3, 3, 5])
    found = store.scale * entries(store, representative)
    for k, j in ((1, 0), (2, 0), (4, 3)):
        assert_allclose(found[k], expected[:, k, j], rtol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 5, 70])
def test_a_window_is_exact_until_it_drops_something(window):
    def make(**options):
        initial = np.random.default_rng(16).normal(size=(40, 6))
        return cvrcore.CoalitionSelector(40, 6, 5, warmup=0, seed=0, initial=initial, **options)

    small, whole = make(store="window", window=window), make(store="factored")
    rngs = [np.random.default_rng(17) for _ in range(2)]
    for _ in range(window + 1):  # in round window + 1 the full window is read
        for selector, rng in zip((small, whole), rngs, strict=True):
            play(selector, rng, 1)
        assert_allclose(small.scores, whole.scores, rtol=1e-12)
    play(small, rngs[0], 2)
    play(whole, rngs[1], 2)
    assert small.dropped > 0
    assert (small.scores != whole.scores).any()


def test_scores_stay_exact_whatever_the_window_drops():
    """Under the cosine predictor nothing reads C, so that only the window differs."""

    def run(**options):
        rng = np.random.default_rng(8)
        selector = cvrcore.CoalitionSelector(
            40,
            6,
            5,
            warmup=0,
            seed=0,
            initial=rng.normal(size=(40, 6)),
            preset="scripts",
            **options,
        )
        for _ in range(30):
            picked = selector.select()
            selector.observe(picked.clients, rng.normal(size=(5, 6)))
        return selector

    small, whole = run(store="window", window=3), run(store="factored")
    assert small.dropped == pytest.approx(1 - 3 / 30)
    assert_array_equal(small.scores, whole.scores)


def test_a_window_and_a_plan_survive_a_file(tmp_path):
    rng = np.random.default_rng(9)
    options = {"store": "window", "window": 3, "clustering": "nystrom", "n_landmarks": 25}
    selector = cvrcore.CoalitionSelector(
        50, 6, 5, warmup=0, seed=0, initial=rng.normal(size=(50, 6)), **options
    )
    for _ in range(7):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(5, 6)))
    selector.save(tmp_path / "state.npz")
    other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert other.dropped == selector.dropped > 0
    for _ in range(5):
        first, second = selector.select(), other.select()
        assert_array_equal(first.clients, second.clients)
        models = rng.normal(size=(5, 6))
        selector.observe(first.clients, models)
        other.observe(second.clients, models)
    assert_array_equal(selector.scores, other.scores)


def test_little_reuse_turns_the_store_dense_early():
    """Coalitions drawn at random: hardly a pair is asked for twice."""
    rng = np.random.default_rng(10)
    store = CovarianceStore(200, 3, "auto", "float64")
    rounds = 0
    while store.form == "factored":
        representative = rng.integers(200, size=200)
        entries(store, representative)
        append(store, rng.normal(size=(200, 3)), 1 / (rounds + 2))
        rounds += 1
    assert rounds < 60  # by size alone it would be 100


def test_a_step_that_was_cut_off_is_not_built_upon(monkeypatch):
    selector = cvrcore.CoalitionSelector(40, 6, 5, warmup=0, seed=0)
    play(selector, np.random.default_rng(18), 3)
    picked = selector.select()
    models = np.zeros((5, 6))

    def fail(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(selector._estimator.store, "read", fail)
        with pytest.raises(MemoryError):
            selector.observe(picked.clients, models)
    selector.observe(picked.clients, models)  # nothing was written: the round is still pending
    play(selector, np.random.default_rng(19), 2)
    picked = selector.select()
    with monkeypatch.context() as patch:
        patch.setitem(dispatch.__dict__, "advance_moments", fail)
        with pytest.raises(MemoryError):
            selector.observe(picked.clients, models)
    with pytest.raises(RuntimeError, match="cut off in the middle: load the last saved state"):
        selector.state_dict()
    for refused in (selector.select, selector.probe, lambda: selector.scores):
        with pytest.raises(RuntimeError, match="cut off in the middle"):
            refused()
