"""Aggregators that divide by chances and remember updates, against the definition."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import Selection
from cvrcore.aggregators import make_aggregator
from cvrcore.aggregators.row_store import RowStore, from_bfloat16, to_bfloat16
from cvrcore.state import load_state, save_state

WEIGHTS = np.array([10.0, 30.0, 5.0, 15.0, 40.0, 0.0])
ALPHA = WEIGHTS / WEIGHTS.sum()
INCLUSION = np.array([0.6, 0.8, 0.4, 0.5, 0.7, 0.0])
LABELS = np.array([0, 1, 0, 1, 1, 0])
D = 7


def selection(clients, labels=LABELS, inclusion=INCLUSION):
    return Selection(np.array(clients), coalitions=labels, inclusion=inclusion)


def rounds(n=12, seed=0):
    """Who reports in each round, and everybody's update of it."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        clients = np.sort(rng.choice(5, size=3, replace=False))
        yield clients, rng.normal(size=D), rng.normal(size=(6, D))


def step_of(aggregator, picked, model, updates, weights=WEIGHTS):
    """The step taken, through a model of two arrays."""
    clients = picked.clients
    sent = [model[:3].reshape(3, 1), model[3:]]
    back = [[(model + u)[:3].reshape(3, 1), (model + u)[3:]] for u in updates[clients]]
    first, second = aggregator.aggregate(sent, back, clients, weights, picked)
    return np.concatenate([first.ravel(), second]) - model


@pytest.mark.parametrize("form", ["horvitz-thompson", "self-normalised", "stratified"])
def test_importance_is_its_formula(form):
    for clients, model, updates in rounds():
        factors = ALPHA[clients] / INCLUSION[clients]
        if form == "self-normalised":
            factors /= factors.sum()
        if form == "stratified":
            for p in (0, 1):
                inside = LABELS[clients] == p
                mass = ALPHA[LABELS == p].sum()
                factors[inside] *= mass / max(factors[inside].sum(), 1e-300)
            factors /= factors.sum()  # a coalition without reports drops out
        got = step_of(make_aggregator("importance", form=form), selection(clients), model, updates)
        assert_allclose(got, factors @ updates[clients], rtol=1e-10, atol=1e-12)


def test_importance_ignores_clients_of_inclusion_zero():
    reach = np.where(np.arange(6) == 1, 0.0, INCLUSION)
    picked = selection([0, 4], inclusion=reach)
    updates = np.random.default_rng(0).normal(size=(6, D))
    got = step_of(make_aggregator("importance"), picked, np.zeros(D), updates)
    expected = sum(WEIGHTS[k] / 70 / reach[k] * updates[k] for k in (0, 4))
    assert_allclose(got, expected, rtol=1e-10)


def test_reporters_are_reweighted_for_clients_that_failed():
    picked, updates = selection([0, 1, 3, 4]), np.ones((6, D))
    back = [[updates[k]] for k in (0, 4)]
    (got,) = make_aggregator("importance").aggregate([np.zeros(D)], back, [0, 4], WEIGHTS, picked)
    assert_allclose(got, 2 * (ALPHA[0] / 0.6 + ALPHA[4] / 0.7), rtol=1e-12)


@pytest.mark.parametrize("unseen", ["zero", "mean"])
@pytest.mark.parametrize("form", ["horvitz-thompson", "self-normalised", "none"])
def test_memory_is_its_formula(form, unseen):
    aggregator = make_aggregator("memory", form=form, unseen=unseen)
    held = {}
    for clients, model, updates in rounds():
        seen = sum(ALPHA[k] for k in held)
        mean = sum((ALPHA[k] * m for k, m in held.items()), np.zeros(D))
        mean = mean / seen if seen else mean
        stand_in = mean if unseen == "mean" else np.zeros(D)
        before = np.array([held.get(k, stand_in) for k in range(6)])
        factors = ALPHA[clients] / INCLUSION[clients]
        if form == "self-normalised":
            factors /= factors.sum()
        if form == "none":
            held |= {k: updates[k] for k in clients}
            seen = sum(ALPHA[k] for k in held) if unseen == "mean" else 1.0
            expected = sum(ALPHA[k] * m for k, m in held.items()) / seen
        else:
            expected = ALPHA @ before + factors @ (updates[clients] - before[clients])
        got = step_of(aggregator, selection(clients), model, updates)
        held |= {k: updates[k] for k in clients}
        assert_allclose(got, expected, rtol=1e-5, atol=1e-5)  # remembered as float32
    assert aggregator.nbytes == 5 * D * 4 + D * 8


def test_memory_of_equal_uniform_clients_is_fedvarp():
    """Jhunjhunwala et al., Algorithm 1: v = mean over S of (u - y), plus mean of y."""
    aggregator = make_aggregator("memory", unseen="zero")
    y, n = np.zeros((6, D)), 6
    for clients, model, updates in rounds(20):
        v = (updates[clients] - y[clients]).mean(axis=0) + y.mean(axis=0)
        y[clients] = updates[clients]
        picked = selection(clients, None, np.full(n, 3 / n))
        got = step_of(aggregator, picked, model, updates, np.full(n, 8.0))
        assert_allclose(got, v, rtol=1e-5, atol=1e-5)


def test_coalition_memory_is_memory_with_one_update_for_all_of_a_coalition():
    aggregator = make_aggregator("coalition-memory")
    rng = np.random.default_rng(3)
    m = np.full((6, D), np.nan)  # of each client: its coalition's
    for clients, model, updates in rounds(15):
        labels = np.unique(rng.integers(0, 3, 6), return_inverse=True)[1]
        share = ALPHA * ~np.isnan(m[:, 0])
        if share.any():
            old = np.nan_to_num(m)
            for p in range(labels.max() + 1):
                inside = share * (labels == p) if (share * (labels == p)).any() else share
                m[labels == p] = inside @ old / inside.sum()
        held = np.nan_to_num(m)
        factors = ALPHA[clients] / INCLUSION[clients]
        expected = ALPHA @ held + factors @ (updates[clients] - held[clients])
        got = step_of(aggregator, selection(clients, labels), model, updates)
        assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        for p in np.unique(labels[clients]):
            of_p = clients[labels[clients] == p]
            m[labels == p] = ALPHA[of_p] @ updates[of_p] / ALPHA[of_p].sum()
    assert aggregator.nbytes <= 3 * D * 4


def test_weights_that_change_and_clients_that_join_move_the_mean():
    aggregator = make_aggregator("memory", unseen="zero")
    updates = np.random.default_rng(0).normal(size=(8, D))
    step_of(aggregator, selection([0, 1]), np.zeros(D), updates)
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    picked = Selection(np.array([7]), inclusion=np.full(8, 0.5))
    got = step_of(aggregator, picked, np.zeros(D), updates, weights)
    expected = (updates[0] + 2 * updates[1] + 8 / 0.5 * updates[7]) / 36
    assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


NAMES = ("memory", "coalition-memory")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("where", ["memory", "file", "temporary file"])
@pytest.mark.parametrize("name", NAMES)
def test_state_continues_to_the_same_bits(name, where, dtype, tmp_path):
    options = {"dtype": dtype}
    if where != "memory":
        options["limit"] = 0
    if where == "file":
        options["folder"] = tmp_path / "rows"
    whole = make_aggregator(name, dtype=dtype)
    parts = make_aggregator(name, **options)
    for t, (clients, model, updates) in enumerate(rounds()):
        if t % 4 == 3:
            save_state(tmp_path / "state.npz", parts.state_dict())
            if t == 7:  # rounds after the checkpoint are lost with the process
                step_of(parts, selection([0, 1, 2]), model, updates)
                step_of(parts, selection([0, 3, 4]), model, updates)
            parts = make_aggregator(name, **options)
            parts.load_state_dict(load_state(tmp_path / "state.npz"))
        expected = step_of(whole, selection(clients), model, updates)
        assert_array_equal(step_of(parts, selection(clients), model, updates), expected)


def test_a_file_that_does_not_fit_its_state_is_refused(tmp_path):
    options = {"limit": 0, "folder": tmp_path / "rows"}
    aggregator = make_aggregator("memory", **options)
    updates = np.random.default_rng(0).normal(size=(6, D))
    step_of(aggregator, selection([0, 1]), np.zeros(D), updates)
    first = aggregator.state_dict()
    for _ in range(2):  # a state of its own each time: the old place is written again
        step_of(aggregator, selection([0, 1]), np.zeros(D), updates + 1)
        aggregator.state_dict()
    fresh = make_aggregator("memory", **options)
    with pytest.raises(ValueError, match="folder must hold the rows of the state: 0 has changed"):
        fresh.load_state_dict(first)
    lost = make_aggregator("memory", limit=0, folder=tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="folder must hold the file"):
        lost.load_state_dict(first)
    assert lost.state_dict()["bank"]["shape"] == [0, 0]


@pytest.mark.parametrize("name", ["importance", *NAMES])
def test_a_rejected_call_leaves_no_trace(name):
    aggregator = make_aggregator(name)
    updates = np.ones((6, D))
    step_of(aggregator, selection([0, 1]), np.zeros(D), updates)
    before = repr(aggregator.state_dict())
    bad = updates.copy()
    bad[1, 2] = np.nan
    cases = [
        (selection([0, 1], inclusion=None), updates, "the inclusion prob.*got None: .* by 'sizes'"),
        (selection([0, 5]), updates, "a chance above 0, got 0 for client 5"),
    ]
    if name != "importance":
        cases.append((selection([0, 1]), bad, r"updates of client 1 must be finite, got nan"))
    for picked, values, message in cases:
        with pytest.raises(ValueError, match=message):
            step_of(aggregator, picked, np.zeros(D), values)
        assert repr(aggregator.state_dict()) == before
    if name != "importance":
        with pytest.raises(ValueError, match="updates must have 7 numbers, as those rem.*, got 2"):
            aggregator.aggregate([np.zeros(2)], [[np.ones(2)]], [0], WEIGHTS, selection([0]))


def test_unknown_options_and_forms_are_refused():
    with pytest.raises(TypeError, match="^rate is not an option of memory, which has form"):
        make_aggregator("memory", rate=1)
    with pytest.raises(ValueError, match="form must be one of .*'stratified', got 'none'"):
        make_aggregator("importance", form="none")
    with pytest.raises(ValueError, match="dtype must be one of 'float32', 'bfloat16', got 'f2'"):
        make_aggregator("memory", dtype="f2")


def test_bfloat16_rounds_as_torch_does():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = (rng.normal(size=5000) * 10.0 ** rng.integers(-30, 30, 5000)).astype(np.float32)
    values[:4] = [0.0, -0.0, 1.00390625, 1.01171875]  # two ties: one down, one up
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert_array_equal(from_bfloat16(to_bfloat16(values)), expected)


def test_rows_move_to_a_file_when_they_outgrow_the_limit(tmp_path):
    bank = RowStore("float32", limit=3 * 4 * 10, folder=tmp_path)
    rows = np.random.default_rng(0).normal(size=(9, 10)).astype(np.float32)
    bank.fit(3, 10)
    for k in range(3):
        bank.write(k, rows[k])
    assert not bank.on_disk
    bank.fit(9, 10)
    assert bank.on_disk
    for k in range(3, 9):
        bank.write(k, rows[k])
    twin = RowStore("float32", limit=3 * 4 * 10, folder=tmp_path)
    twin.restore(bank.state())
    for k in range(9):
        assert_array_equal(bank.read(k), rows[k])
        assert_array_equal(twin.read(k), rows[k])
    assert bank.nbytes == 9 * 10 * 4


def test_a_state_kept_in_a_file_wants_a_limit_that_keeps_it_there(tmp_path):
    kept = RowStore("float32", limit=10, folder=tmp_path)
    kept.fit(6, D)
    kept.write(1, np.ones(D, dtype=np.float32))
    state = kept.state()
    with pytest.raises(ValueError, match="limit must be below the .* bytes that the state keeps"):
        RowStore("float32", limit=10**9, folder=tmp_path).restore(state)


def test_labels_of_a_saved_memory_must_be_rows_of_it():
    aggregator = make_aggregator("coalition-memory")
    for clients, model, updates in rounds(3):
        step_of(aggregator, selection(clients), model, updates)
    state = aggregator.state_dict()
    state["labels"] = state["labels"] + 7
    fresh = make_aggregator("coalition-memory")
    with pytest.raises(ValueError, match="labels must be below 2, as rows are"):
        fresh.load_state_dict(state)


def test_without_coalitions_there_is_one_memory_for_all():
    one, same = make_aggregator("coalition-memory"), make_aggregator("coalition-memory")
    for clients, model, updates in rounds(4):
        first = step_of(one, selection(clients, labels=None), model, updates)
        second = step_of(same, selection(clients, labels=np.zeros(6, int)), model, updates)
        assert_array_equal(first, second)


@pytest.mark.parametrize("unseen", ["mean", "zero"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_of_the_absent_fades(unseen, dtype):
    """Against plain NumPy: every update that is not renewed shrinks by `fade` each round."""
    rng, fade, n_clients, size = np.random.default_rng(0), 0.5, 6, 3
    aggregator = make_aggregator("memory", fade=fade, unseen=unseen, dtype=dtype)
    weights = np.arange(1.0, n_clients + 1)
    remembered, shares = {}, weights / weights.sum()
    for t in range(8):
        clients = np.array([t % n_clients, (t + 2) % n_clients])
        changes = rng.integers(-8, 9, size=(2, size)).astype(np.float32)  # exact in bfloat16
        remembered = {k: fade * m for k, m in remembered.items()}
        seen = sum(weights[k] for k in remembered)
        past = sum((weights[k] * m for k, m in remembered.items()), np.zeros(size))
        total = seen if unseen == "mean" else weights.sum()
        mean = past / total if seen else np.zeros(size)
        stand_in = mean if unseen == "mean" else np.zeros(size)
        step = mean.copy()
        for k, change in zip(clients, changes, strict=True):
            step += shares[k] / 0.5 * (change - remembered.get(k, stand_in))
        selection = Selection(clients=clients, inclusion=np.full(n_clients, 0.5))
        model = [np.zeros(size, np.float32)]
        (found,) = aggregator.aggregate(model, [[c] for c in changes], clients, weights, selection)
        np.testing.assert_allclose(found, step, rtol=1e-4, atol=1e-5)
        remembered |= dict(zip(clients, changes.astype(float), strict=True))
        state = aggregator.state_dict()
        aggregator = make_aggregator("memory", fade=fade, unseen=unseen, dtype=dtype)
        aggregator.load_state_dict(state)


def test_a_client_that_left_is_forgotten_in_time():
    """One huge update, and then nothing more of that client."""
    kept = {}
    for fade in (1.0, 0.9):
        aggregator = make_aggregator("memory", fade=fade)
        weights, model = np.ones(4), [np.zeros(2, np.float32)]
        for t in range(60):
            clients = np.array([0, 1]) if t == 0 else np.array([1, 2])
            updates = [[np.full(2, 1e4 if k == 0 else 0.0, np.float32)] for k in clients]
            selection = Selection(clients=clients, inclusion=np.full(4, 0.5))
            (found,) = aggregator.aggregate(model, updates, clients, weights, selection)
        kept[fade] = abs(float(found[0]))
    assert kept[1.0] > 1e3
    assert kept[0.9] < 0.01 * kept[1.0]


def test_states_without_fading_still_load():
    aggregator = make_aggregator("memory")
    state = aggregator.state_dict()
    del state["kept"]
    aggregator.load_state_dict(state)
    with pytest.raises(ValueError, match="fade must be at most 1, got 2"):
        make_aggregator("memory", fade=2)
