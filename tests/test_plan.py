"""What a selector takes for its size: plans, limits, advice; and states that carry them."""

import types

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, play

import cvrcore
from cvrcore.clustering.operators import NormalisedAffinity
from cvrcore.runtime.memory import free_memory, held_bytes


@pytest.mark.parametrize(
    ("size", "options", "clustering", "store"),
    [
        ((100, 300, 10), {}, "exact", "auto"),
        ((1000, 300, 50), {"memory_limit": 8e8}, "exact", "window"),
        ((10_000, 300, 100), {"dtype": "float32", "memory_limit": 6e9}, "exact", "window"),
        ((100_000, 300, 100), {"dtype": "float32", "memory_limit": 3e9}, "nystrom", "window"),
        ((1_000_000, 100, 100), {"dtype": "float32", "memory_limit": 8e9}, "nystrom", "window"),
        ((50, 2, 5), {}, "plane", "auto"),
        ((100, 300, 10), {"predictor": "cosine"}, "exact", "none"),
        ((100, 300, 10), {"clustering": "nystrom", "store": "dense"}, "nystrom", "dense"),
    ],
)
def test_a_plan_fits_the_size_and_prints_its_methods(size, options, clustering, store):
    plan = cvrcore.make_plan(*size, **options)
    assert (plan.clustering, plan.store) == (clustering, store)
    assert plan.total_bytes <= plan.limit
    text = str(plan)
    for word in (clustering, store, plan.eigensolver, "multiply-adds", "allowed"):
        assert word in text


def test_explicit_options_are_used():
    selector = cvrcore.CoalitionSelector(
        60, 5, 4, store="window", window=7, clustering="nystrom", n_landmarks=30, dtype="float32"
    )
    plan = selector.plan()
    assert (plan.store, plan.window, plan.clustering, plan.n_landmarks) == (
        "window",
        7,
        "nystrom",
        30,
    )


def test_the_default_limit_is_half_of_the_free_memory():
    before = free_memory()
    limit = cvrcore.make_plan(100, 10, 5).limit
    assert 0.4 * min(before, free_memory()) < limit <= 0.6 * max(before, free_memory())


def test_shared_memory_is_held_once_and_whole():
    numbers = np.zeros(100)
    keeper = types.SimpleNamespace()
    keeper.extra = [numbers[:10], (numbers.reshape(10, 10),), {"more": numbers}]
    assert held_bytes(keeper) == 800
    keeper.extra.append(keeper)  # a circle
    assert held_bytes(keeper) == 800


@pytest.mark.parametrize("store", ["dense", "factored", "window", "none"])
def test_a_selector_reports_its_bytes_and_stays_within_the_plan(store):
    options = {"window": 8} if store == "window" else {}
    predictor = "cosine" if store == "none" else "regression"
    selector = cvrcore.CoalitionSelector(
        60, 40, 6, warmup=2, seed=0, store=store, predictor=predictor, **options
    )
    uniform = cvrcore.make_selector("uniform", 60, 6)
    one = 60 * 40 * 8  # rows of everybody
    rng = np.random.default_rng(0)
    for _ in range(40):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(6, 40)))
        held = selector._estimator.store.nbytes if store != "none" else one  # its last residual
        if selector.round > 3:  # an affinity, its rows, an eigenbasis besides
            assert 4 * one + held < selector.nbytes <= selector.plan().total_bytes
    assert uniform.nbytes == 60 * 8


@pytest.mark.parametrize(
    ("size", "options", "hint"),
    [
        ((1_000_000, 1000, 100), {"memory_limit": 1e9}, "dtype='float32'"),
        ((50_000, 100, 10), {"clustering": "exact", "memory_limit": 4e9}, "clustering='nystrom'"),
        ((20_000, 300, 10), {"store": "dense", "memory_limit": 4e9}, "store='window'"),
        ((20_000, 300, 10), {"window": 500, "memory_limit": 4e9}, "window=250"),
    ],
)
def test_a_selector_above_the_limit_is_refused_with_advice(size, options, hint):
    with pytest.raises(MemoryError, match=r"need .* memory_limit is .*; try") as refused:
        cvrcore.CoalitionSelector(*size, **options)
    assert hint in str(refused.value)
    assert f"{size[0]} clients" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clustering": "magic"}, "clustering must be one of"),
        ({"eigensolver": "magic"}, "eigensolver must be one of"),
        ({"landmarks": "grid"}, "landmarks must be one of"),
        ({"n_landmarks": 3}, "n_landmarks must be at least 5, got 3"),
        ({"n_landmarks": 31}, "n_landmarks must be at most 30, got 31"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"memory_limit": 0}, "memory_limit must be positive, got 0"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        cvrcore.CoalitionSelector(30, 4, 5, **options)


@pytest.mark.parametrize(
    ("n_clients", "options", "said"),
    [
        (1000, {}, "LAPACK, then warm-started Chebyshev subspace iteration"),
        (1000, {"eigensolver": "direct"}, "LAPACK, each time"),
        (2000, {"eigensolver": "direct"}, "ARPACK, each time"),
        (1000, {"eigensolver": "direct", "clustering": "nystrom"}, "LAPACK on the landmarks"),
    ],
)
def test_the_eigensolver_can_be_forced_and_is_said(n_clients, options, said):
    size, limit = (n_clients, 30, 10), {"memory_limit": 2e9}
    plan, other = cvrcore.make_plan(*size, **options, **limit), cvrcore.make_plan(*size, **limit)
    assert f"eigensolver  {said}\n" in str(plan)
    forced = "each time" in said
    assert (plan.nbytes["clustering"] > other.nbytes["clustering"]) == forced
    assert (plan.work["clustering"] > other.work["clustering"]) == (said == "LAPACK, each time")


@pytest.mark.parametrize("n_clients", [100, 400])
def test_a_direct_solver_is_asked_each_time(tmp_path, n_clients):
    """Vectors are LAPACK's in float64, whatever the last ones were; a loaded state goes on so."""
    rng, size = np.random.default_rng(15), (n_clients, 60, 10)
    selector = cvrcore.CoalitionSelector(
        *size, warmup=0, seed=0, initial=flat_models(*size[:2], rng), eigensolver="direct"
    )
    for _ in range(3):
        picked = selector.select()
        basis, affinity = selector._partition.basis, selector._partition.affinity
        normalised = NormalisedAffinity(affinity.matrix()).matrix
        values, vectors = np.linalg.eigh(normalised)
        assert_allclose(basis.values[:9], values[:-10:-1], rtol=1e-10)
        overlap = vectors[:, :-10:-1].T @ basis.vectors[:, :9]
        assert_allclose(np.abs(overlap), np.eye(9), atol=1e-7)
        selector.observe(picked.clients, selector.rows[picked.clients] + 0.01)
    selector.save(tmp_path / "state.npz")
    other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert other.solver.eigensolver == "direct"
    assert_goes_on_alike(selector, other)


def test_a_window_goes_with_its_own_store_only():
    with pytest.raises(ValueError, match="window must go with store 'window' or 'auto'"):
        cvrcore.CoalitionSelector(30, 4, 5, store="dense", window=5)


def test_growing_beyond_the_limit_is_refused_and_changes_nothing():
    selector = cvrcore.CoalitionSelector(60, 20, 5, warmup=0, seed=0, memory_limit=3e6)
    before = selector.state_dict()
    with pytest.raises(MemoryError, match="20000 clients need"):
        selector.resize(20_000, np.ones(19_940))
    np.testing.assert_equal(selector.state_dict(), before)


def assert_goes_on_alike(first, second):
    np.testing.assert_equal(
        *(play(selector, np.random.default_rng(12), 5) for selector in (first, second))
    )
    assert_array_equal(first.scores, second.scores)


def test_a_state_goes_on_where_there_is_less_memory(tmp_path, monkeypatch):
    selector = cvrcore.CoalitionSelector(400, 8, 5, warmup=0, seed=0, memory_limit=6e7)
    play(selector, np.random.default_rng(11), 40)
    selector.save(tmp_path / "state.npz")
    monkeypatch.setattr("cvrcore.runtime.plan.free_memory", lambda: 4_000_000)
    other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert (other.plan().store, other.solver.memory_limit) == (selector.plan().store, 6e7)
    assert_goes_on_alike(selector, other)


def test_landmarks_stay_as_many_after_clients_joined(tmp_path):
    rng = np.random.default_rng(13)
    selector = cvrcore.CoalitionSelector(
        300, 6, 5, warmup=0, seed=0, initial=rng.normal(size=(300, 6)), clustering="nystrom"
    )
    play(selector, rng, 2)
    selector.resize(900, np.ones(600))
    selector.save(tmp_path / "state.npz")
    assert_goes_on_alike(selector, cvrcore.CoalitionSelector.load(tmp_path / "state.npz"))


def test_places_changed_in_mid_life_survive_a_file(tmp_path):
    selector = cvrcore.CoalitionSelector(
        60, 6, 4, warmup=0, seed=0, n_coalitions=4, initial=np.random.default_rng(1).normal(size=6)
    )
    play(selector, np.random.default_rng(14), 4)
    for n_select in (3, 1, 6):
        selector.n_select = n_select
        selector.save(tmp_path / "state.npz")
        other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
        assert len(other.select()) == len(selector.select()) == n_select
        assert_goes_on_alike(selector, other)
