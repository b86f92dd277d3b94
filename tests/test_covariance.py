import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import append, entries

import cvrcore
from cvrcore.covariance.estimator import RegressionTask
from cvrcore.covariance.packed import LANES, TILE_CLIENTS
from cvrcore.covariance.pairs import Pairs, cosine_coefficients, representatives
from cvrcore.covariance.store import CovarianceStore

SIZES = [(1, 1, 1), (2, 3, 1), (9, 5, 6), (33, 17, 13)]


def random_problem(n_clients, n_features, seed, n_groups=None):
    rng = np.random.default_rng(seed)
    cov = np.empty((n_features, n_clients, n_clients))
    for d in range(n_features):
        factor = rng.normal(size=(n_clients, n_clients + 2))
        cov[d] = factor @ factor.T / n_clients
    labels = np.arange(n_clients) % (n_groups or max(1, n_clients // 4))
    rng.shuffle(labels)
    _, clients = np.unique(labels, return_index=True)
    return cov, rng.normal(size=(n_clients, n_features)), clients, labels, rng


@pytest.mark.parametrize("whole", [False, True], ids=["from somewhere", "whole"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_clients", "n_features", "n_steps"), SIZES)
def test_history_entries_match_naive(kernels, n_clients, n_features, n_steps, dtype, whole):
    rng = np.random.default_rng(1)
    history = rng.normal(size=(n_steps + 2, n_clients, n_features)).astype(dtype)
    clients, others = rng.permutation(n_clients), rng.integers(n_clients, size=n_clients)
    pairs = np.stack([clients, others[clients]], axis=1)
    entries = rng.normal(size=(n_clients, n_features)).astype(dtype)
    begin = np.zeros(n_clients, int) if whole else rng.integers(-1, n_steps + 1, size=n_clients)
    used = history[:n_steps].transpose(1, 0, 2).astype(np.float64)
    expected = np.empty((n_clients, n_features))
    expected[clients] = entries
    expected = naive.history_entries(used, pairs, begin, expected)[clients]

    if whole:  # nothing told: from the first, and entries as they were asked for
        none = begin[:0]
        kernels["add_products"](history, n_steps, clients, others[clients], none, entries, none)
    else:
        places = rng.permutation(2 * n_clients)[:n_clients]
        room = np.full((2 * n_clients, n_features), np.nan, dtype=dtype)
        room[places] = entries
        kernels["add_products"](history, n_steps, clients, others[clients], begin, room, places)
        entries = room[places]
        assert np.isnan(np.delete(room, places, axis=0)).all()

    # Sums run in the residuals' own precision.
    tolerance = {"rtol": 1e-12, "atol": 1e-14} if dtype == np.float64 else {"atol": 1e-5}
    assert_allclose(entries, expected, **tolerance)


def in_blocks(packed, n_clients):
    """Lay packed triangles (pairs, D) out as the kernels want them: tiles, blocks."""
    n_tiles, n_features = -(-n_clients // TILE_CLIENTS), packed.shape[1]
    edge, padded = n_tiles * TILE_CLIENTS, -(-n_features // LANES) * LANES
    whole = np.zeros((edge, edge, padded))
    rows, columns = np.tril_indices(n_clients)
    whole[rows, columns, :n_features] = whole[columns, rows, :n_features] = packed
    tiles = [
        whole[i : i + TILE_CLIENTS, j : j + TILE_CLIENTS].reshape(TILE_CLIENTS**2, -1, LANES)
        for i in range(0, n_tiles * TILE_CLIENTS, TILE_CLIENTS)
        for j in range(0, i + 1, TILE_CLIENTS)
    ]
    return np.ascontiguousarray(np.concatenate(tiles).transpose(1, 0, 2), dtype=packed.dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_clients", "n_features", "n_steps"), [*SIZES, (24, 9, 3), (401, 18, 2)])
def test_fold_matches_naive(kernels, n_clients, n_features, n_steps, dtype):
    """Residuals lie round a ring."""
    rng = np.random.default_rng(2)
    ring = rng.normal(size=(n_steps + 1, n_clients, n_features)).astype(dtype)
    packed = rng.normal(size=(n_clients * (n_clients + 1) // 2, n_features)).astype(dtype)
    used = np.roll(ring, -2, axis=0)[:n_steps].transpose(1, 0, 2).astype(np.float64)
    expected = naive.folded(packed.astype(np.float64), used)
    base = in_blocks(packed, n_clients)

    for block in range(base.shape[0]):
        n_tiles = -(-n_clients // TILE_CLIENTS)
        run = np.empty(n_tiles * TILE_CLIENTS * n_steps * LANES)
        kernels["pack_block"](ring, 2 % (n_steps + 1), n_steps, block, run)
        kernels["fold_block"](base, run, n_steps, block)

    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    assert_allclose(base, in_blocks(expected, n_clients), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("n_clients", "n_features", "n_steps"), [*SIZES, (20, 50, 7)])
def test_packed_sums_are_read_with_residuals_not_yet_folded(
    kernels, n_clients, n_features, n_steps, dtype
):
    rng = np.random.default_rng(3)
    ring = rng.normal(size=(n_steps, n_clients, n_features)).astype(dtype)
    packed = rng.normal(size=(n_clients * (n_clients + 1) // 2, n_features)).astype(dtype)
    base, steps = in_blocks(packed, n_clients), 3 * n_steps + 1
    pending = rng.permutation(np.arange(base.shape[0]) % (n_steps + 1))
    clients, others = rng.permutation(n_clients), rng.integers(n_clients, size=n_clients)
    entries = np.empty((n_clients, n_features), dtype)
    kernels["read_packed"](base, ring, steps, pending, clients, others, entries)

    low, high = np.minimum(clients, others), np.maximum(clients, others)
    expected = packed[high * (high + 1) // 2 + low]
    for d in range(n_features):
        for s in range(steps - pending[d // LANES], steps):
            expected[:, d] += ring[s % n_steps, clients, d] * ring[s % n_steps, others, d]
    assert_array_equal(entries, expected)


def predict(kernels, known, past, begin, pairs, target, **task):
    """Call the prediction kernels as the estimator does; each sum is in another place."""
    (initial, sums), rows = known, task["rows"]
    first = pairs.representatives
    slopes, variances = np.full((2, first.size, rows.shape[1]), np.nan, dtype=rows.dtype)
    learned = (task["diagonal"], rows, first, task.pop("floor"))
    kernels["regression_slopes"](*learned, slopes, variances)
    places = np.arange(sums.shape[0])[::-1].copy()
    kernels["regression_residual"](
        RegressionTask(
            initial=initial,
            sums=sums[places],
            places=places,
            block=past[0],
            n_used=past[1],
            begin=begin,
            representatives=first,
            slopes=slopes,
            variances=variances,
            clients=pairs.clients,
            groups=pairs.groups,
            target=target[0],
            place=target[1],
            weight=1.0,
            **task,
        )
    )


@pytest.mark.parametrize(("n_clients", "n_features"), [(1, 1), (9, 5), (33, 17), (161, 301)])
def test_residual_kernels_match_naive(kernels, rtol, n_clients, n_features):
    cov, rows, clients, labels, rng = random_problem(n_clients, n_features, seed=3)
    cov[0, clients[0], :] = cov[0, :, clients[0]] = 0.0  # a diagonal below the floor
    labels[labels == labels[clients[-1]]] = labels[clients[-1]]
    reporting = clients[:-1] if len(clients) > 1 else clients  # one coalition is silent
    first = representatives(reporting, labels)
    representative = first[labels]
    diagonal = np.ascontiguousarray(np.einsum("dkk->kd", cov))
    floor = 1e-12 * diagonal.mean(axis=0)
    entries = np.zeros((n_clients, n_features))
    for k in range(n_clients):
        entries[k] = cov[:, k, representative[k]]
    history = np.zeros((3, n_clients, n_features))
    pairs = Pairs.of(labels, first)
    # Part of each entry is still to be summed: all residuals of the past but the first.
    past, begin = rng.normal(size=(3, n_clients, n_features)), np.ones(pairs.clients.size, int)
    known = np.einsum("sid,sid->id", past[1:, pairs.clients], past[1:, pairs.others])
    alpha, totals = rng.random(n_clients), np.zeros((2, n_features))
    own = (np.nan, entries[pairs.clients] / 0.5 - known)  # no initial value is used
    learned = {"unit": 0.5, "diagonal": diagonal, "floor": floor, "rows": rows}
    where = {"alpha": alpha, "totals": totals}
    predict(kernels, own, (past, 3), begin, pairs, (history, 1), **learned, **where)

    def summed(residual):
        """Return sums over all pairs."""
        shares, own = alpha[pairs.clients, None], residual[pairs.clients]
        return [(shares * own).sum(axis=0), (own**2).sum(axis=0)]

    expected = naive.residual(cov, rows, reporting, labels)
    # The sums that make up an entry cancel: what they lose is theirs, not the entry's.
    near = {"rtol": rtol, "atol": 1e-14 if n_features < 100 else 1e-11}
    assert_allclose(history[1], expected, **near)
    assert_allclose(totals, summed(expected), **near)
    assert not history[[0, 2]].any()  # nothing beside its own place

    previous = rng.normal(size=rows.shape)
    previous[0] = 0.0
    coefficients = cosine_coefficients(previous, representative)[pairs.clients]
    totals[:] = 1.0  # sums are added to
    which = (pairs.clients, pairs.others)
    kernels["scaled_residual"](coefficients, rows, *which, 2.0, history, 0, alpha, totals)
    expected = 2 * naive.residual(cov, rows, reporting, labels, "cosine", previous)
    assert_allclose(history[0], expected, rtol=rtol, atol=1e-14)
    assert_allclose(totals - 1, summed(expected), rtol=rtol, atol=1e-13)


@pytest.mark.parametrize("n_past", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_entries_that_all_begin_alike_need_no_room(kernels, dtype, n_past):
    rng = np.random.default_rng(11)
    n_clients, n_features = 12, 37
    past, rows = rng.normal(size=(5, n_clients, n_features)), rng.normal(size=(12, n_features))
    pairs = Pairs.of(rng.integers(3, size=n_clients), np.array([4, 0, 7]))
    diagonal, floor = np.full_like(rows, 9.0), np.zeros(n_features)
    found = []
    for n_entries in (pairs.clients.size, 0):
        entries = np.full((n_entries, n_features), 0.7, dtype=dtype)
        begin = np.zeros(n_entries, dtype=np.int64)  # none: from the first as well
        history, totals = past.astype(dtype), np.zeros((2, n_features))
        start = (np.nan if entries.size else 0.7, entries)
        learned = {"unit": 0.5, "diagonal": diagonal.astype(dtype), "floor": floor}
        where = {"rows": rows.astype(dtype), "alpha": np.ones(n_clients), "totals": totals}
        # The place of the new residual is among those read, as in a full window.
        predict(kernels, start, (history, n_past), begin, pairs, (history, 0), **learned, **where)
        found.append((history, totals))
    for one, other in zip(*found, strict=True):
        assert_array_equal(one, other)
    assert not np.array_equal(found[0][0], past.astype(dtype))


@pytest.mark.parametrize("too_large", [False, True], ids=["within", "clipped"])
def test_correlations_are_clipped_and_tiny_variances_predict_nothing(kernels, rtol, too_large):
    """Entries beyond what their diagonal allows, and representatives just below the floor."""
    n_clients, n_features = 9, 5
    cov, rows, clients, labels, _ = random_problem(n_clients, n_features, seed=4, n_groups=2)
    shrink = np.ones(n_clients)
    shrink[clients[0]] = 1e-7  # variance 1e-14 of the others': below the floor, above zero
    cov[0] *= np.outer(shrink, shrink)
    if too_large:
        off = ~np.eye(n_clients, dtype=bool)
        cov[1:4, off] *= 50.0  # a correlation far above 1 in three coordinates of five
    pairs = Pairs.of(labels, representatives(clients, labels))
    diagonal = np.ascontiguousarray(np.einsum("dkk->kd", cov))
    floor = 1e-12 * diagonal.mean(axis=0)
    assert 0 < diagonal[clients[0], 0] < floor[0]
    entries = np.ascontiguousarray(cov[:, pairs.clients, pairs.others].T)
    bounds = np.sqrt(diagonal[pairs.clients] * diagonal[pairs.others])
    beyond = (np.abs(entries) > bounds).any(axis=1)
    assert beyond.all() if too_large else not beyond.any()
    history, totals = np.zeros((1, n_clients, n_features)), np.zeros((2, n_features))
    begin = np.zeros(pairs.clients.size, dtype=np.int64)
    learned = {"unit": 1.0, "diagonal": diagonal, "floor": floor, "rows": rows}
    where = {"alpha": shrink, "totals": totals}
    known = (np.nan, entries)
    predict(kernels, known, (history, 0), begin, pairs, (history, 0), **learned, **where)

    expected = naive.residual(cov, rows, clients, labels)
    assert_allclose(history[0], expected, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("predictor", ["regression", "cosine"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_update_matches_naive(rtol, rate, predictor):
    cov, rows, clients, labels, rng = random_problem(12, 4, seed=5)
    previous = rng.normal(size=rows.shape)
    before = cov.copy()

    updated = cvrcore.update_covariance(cov, rows, clients[1:], labels, rate, predictor, previous)

    expected = naive.update_covariance(cov, rows, clients[1:], labels, rate, predictor, previous)
    assert_allclose(updated, expected, rtol=rtol, atol=1e-13)
    assert_array_equal(cov, before)


@pytest.mark.parametrize("seed", range(5))
def test_update_keeps_symmetry(seed):
    cov, rows, clients, labels, _ = random_problem(20, 3, seed)
    updated = cvrcore.update_covariance(cov, rows, clients, labels, 0.3)
    assert_array_equal(updated, updated.transpose(0, 2, 1))  # exact, not approximate


def test_representative_is_the_first_reporter_of_its_coalition():
    labels = np.array([0, 1, 0, 1, 2])
    assert_array_equal(representatives(np.array([2, 3, 0, 1]), labels), [2, 3, -1])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["auto", "dense", "factored"])
@pytest.mark.parametrize("rate", ["decay", 0.2])
def test_every_store_holds_the_same_covariance(backend, kind, rate, dtype):
    n_clients, n_features, n_rounds = 14, 5, 45  # auto becomes dense after seven
    rng = np.random.default_rng(6)
    store = CovarianceStore(n_clients, n_features, kind, dtype)
    cov = np.ones((n_features, n_clients, n_clients))
    tolerance = 1e-11 if dtype == "float64" else 2e-5
    for s in range(n_rounds):
        step = 1 / (s + 2) if rate == "decay" else rate
        residual = rng.normal(size=(n_clients, n_features)).astype(dtype)
        representative = rng.integers(-1, n_clients, size=n_clients)
        found = store.scale * entries(store, representative)
        asked = (representative >= 0) & (representative != np.arange(n_clients))
        for k in np.flatnonzero(asked):
            expected = cov[:, k, representative[k]]
            assert_allclose(found[k], expected, rtol=tolerance, atol=tolerance)
        append(store, residual, step)
        cov = (1 - step) * cov + step * np.einsum("kd,jd->dkj", residual, residual, dtype=float)
    assert store.form == ("factored" if kind == "factored" else "dense")
    assert_allclose(store.dense(), cov, rtol=tolerance, atol=tolerance)


def test_constant_rate_survives_the_underflow_of_its_scale():
    """0.5^400 is below the smallest double squared; the store must not notice."""
    rng = np.random.default_rng(7)
    store, cov = CovarianceStore(3, 2, "factored", "float64"), np.ones((2, 3, 3))
    for _ in range(1500):
        residual = rng.normal(size=(3, 2))
        append(store, residual, 0.5)
        cov = 0.5 * cov + 0.5 * np.einsum("kd,jd->dkj", residual, residual)
    assert 0 < store.scale <= 1
    assert_allclose(store.dense(), cov, rtol=1e-9)


def test_estimate_converges_at_the_robbins_monro_rate():
    """Fixed coalitions and coefficients, independent rows: error ~ t^(-1/2)."""
    n_clients, n_features, n_rounds = 6, 2, 3000
    labels, clients = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 3])
    marks = np.unique(np.logspace(1.5, np.log10(n_rounds), 20).astype(int))
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        previous = rng.normal(size=(n_clients, n_features)) + 2.0
        factor = rng.normal(size=(n_clients, n_clients))
        unit = previous / np.linalg.norm(previous, axis=1, keepdims=True)
        representative = clients[labels]
        linear = np.eye(n_clients)  # delta = linear @ theta, for every coordinate
        linear[np.arange(n_clients), representative] -= np.sum(unit * unit[representative], axis=1)
        linear[clients] = 0.0
        truth = linear @ factor @ factor.T @ linear.T
        cov, found = np.ones((n_features, n_clients, n_clients)), []
        for t in range(n_rounds):
            rows = factor @ rng.normal(size=(n_clients, n_features))
            cov = cvrcore.update_covariance(
                cov, rows, clients, labels, 1 / (t + 2), "cosine", previous
            )
            if t + 1 in marks:
                found.append(np.linalg.norm(cov - truth) / np.linalg.norm(truth))
        errors.append(found)
    slope = np.polyfit(np.log(marks), np.log(np.mean(errors, axis=0)), 1)[0]
    assert -0.6 < slope < -0.4
