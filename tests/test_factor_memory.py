"""Factor memory against a plain twin, enumeration of all samples, and known linear updates."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore.aggregators import make_aggregator
from cvrcore.head import HeadMap
from cvrcore.selection import Selection
from cvrcore.state import load_state, save_state

K, C, INPUTS = 6, 3, 4
SIZES = np.array([5.0, 10.0, 15.0, 20.0, 25.0, 30.0])
ZERO = [np.zeros((C, INPUTS)), np.zeros(C)]


def chosen(clients, inclusion=None):
    clients = np.sort(np.asarray(clients))
    pi = np.full(K, clients.size / K) if inclusion is None else inclusion
    return Selection(clients, inclusion=pi)


def flat(model):
    return np.concatenate([array.ravel() for array in model])


def shaped(vector):
    return [vector[: C * INPUTS].reshape(C, INPUTS), vector[C * INPUTS :]]


class Twin:
    """The rule written line by line, in float64, with explicit loops."""

    def __init__(self, size, fade=0.9):
        self.f, self.seen, self.q = np.zeros((K, C)), np.zeros(K, bool), np.ones(K)
        self.V, self.A, self.fade = np.zeros((C + 1, size)), 0.01 * np.eye(C + 1), fade

    def step(self, updates, clients, pi):
        alpha = SIZES / SIZES.sum()
        self.q *= 1 - pi
        for j, u in zip(clients, updates, strict=True):
            b = u[-C:] / np.linalg.norm(u[-C:])
            self.f[j] = (self.f[j] + b) / 2 if self.seen[j] else b
            self.seen[j] = True
        w = np.where(self.seen, alpha * self.q / (1 - self.q), 0.0)
        z = np.ones((K, C + 1))
        for k in range(K):
            z[k, 1:] = self.f[k] if self.seen[k] else w @ self.f / w.sum()
        d = np.array([alpha[j] / pi[j] for j in clients])
        R = np.array(updates) - z[clients] @ self.V
        g = alpha @ z @ self.V + d / d.sum() @ R
        W = np.diag(d / d.mean())
        self.A = self.fade * self.A + z[clients].T @ W @ z[clients]
        self.V = self.V + np.linalg.solve(self.A + 0.01 * np.eye(C + 1), z[clients].T @ W @ R)
        return g


def test_steps_equal_the_plain_twin_over_many_rounds():
    rng = np.random.default_rng(0)
    aggregator, twin = make_aggregator("factor-memory"), Twin(C * INPUTS + C)
    model, x = [array.copy() for array in ZERO], np.zeros(C * INPUTS + C)
    for _ in range(12):
        clients = np.sort(rng.choice(K, 2, replace=False))
        pi = np.clip(0.1 + 0.3 * rng.random(K), 0, 1)
        updates = rng.normal(size=(2, x.size)) + np.arange(x.size)
        received = [shaped(x + u) for u in updates]
        model = aggregator.aggregate(model, received, clients, SIZES, chosen(clients, pi))
        x = x + twin.step(updates, clients, pi)
        assert_allclose(flat(model), x, rtol=2e-4, atol=2e-4)
        x = flat(model)


def learnt(form, rounds=8):
    """An aggregator with some rounds behind it, and every client's next model."""
    rng = np.random.default_rng(1)
    aggregator = make_aggregator("factor-memory", form=form)
    for _ in range(rounds):
        clients = rng.choice(K, 3, replace=False)
        aggregator.aggregate(
            ZERO, [shaped(rng.normal(size=15)) for _ in clients], clients, SIZES, chosen(clients)
        )
    return aggregator, [shaped(rng.normal(size=15)) for _ in range(K)]


def test_horvitz_thompson_form_is_unbiased_over_all_samples():
    aggregator, models = learnt("horvitz-thompson")
    state, total, samples = aggregator.state_dict(), 0.0, list(itertools.combinations(range(K), 2))
    for clients in samples:
        aggregator.load_state_dict(state)
        received = [models[k] for k in clients]
        total += flat(aggregator.aggregate(ZERO, received, clients, SIZES, chosen(clients)))
    full = SIZES / SIZES.sum() @ np.array([flat(model) for model in models])
    assert_allclose(total / len(samples), full, atol=2e-6)


def test_updates_that_are_linear_in_given_features_are_predicted_exactly():
    rng = np.random.default_rng(2)
    features, truth = rng.normal(size=(K, 2)), rng.normal(size=(3, 15))
    updates = np.column_stack([np.ones(K), features]) @ truth
    full = SIZES / SIZES.sum() @ updates
    aggregator = make_aggregator("factor-memory", features=features, ridge=1e-6)
    errors = []
    for _ in range(30):
        clients = np.sort(rng.choice(K, 2, replace=False))
        received = [shaped(updates[k]) for k in clients]
        model = aggregator.aggregate(ZERO, received, clients, SIZES, chosen(clients))
        errors.append(np.abs(flat(model) - full).max())
    assert errors[0] > 0.1
    assert errors[-1] < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_state_goes_on_to_the_same_models(tmp_path, dtype):
    def go_on(aggregator, begin, end):
        models = []
        for t in range(begin, end):
            rng = np.random.default_rng(t)
            clients = rng.choice(K, 2, replace=False)
            received = [shaped(rng.normal(size=15)) for _ in clients]
            models.append(
                flat(aggregator.aggregate(ZERO, received, clients, SIZES, chosen(clients)))
            )
        return models

    whole = make_aggregator("factor-memory", dtype=dtype)
    expected = go_on(whole, 0, 8)[4:]
    first, second = (make_aggregator("factor-memory", dtype=dtype) for _ in range(2))
    go_on(first, 0, 4)
    save_state(tmp_path / "state.npz", first.state_dict())
    second.load_state_dict(load_state(tmp_path / "state.npz"))
    assert_array_equal(go_on(second, 4, 8), expected)
    assert whole.nbytes >= (C + 1) * 15 * (4 if dtype == "float32" else 2)


def test_clients_that_joined_are_predicted_by_the_mean_of_the_seen():
    aggregator, models = learnt("self-normalised")
    sizes, pi = np.append(SIZES, [8.0, 8.0]), np.full(K + 2, 0.25)
    selection = Selection(np.array([0, 7]), inclusion=pi)
    aggregator.aggregate(ZERO, [models[0], models[1]], [0, 7], sizes, selection)
    state = aggregator.state_dict()
    assert state["features"].shape == (K + 2, C)
    assert state["seen"].tolist() == [True] * K + [False, True]


def broken(key, value):
    def change(state):
        state[key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        broken("features", np.zeros((K, C + 1))),
        broken("features", np.full((K, C), np.nan)),
        broken("seen", np.ones(K + 1, bool)),
        broken("missed", np.full(K, 2.0)),
        broken("gram", np.eye(2)),
        broken("gram", np.full((C + 1, C + 1), np.inf)),
    ],
)
def test_state_that_does_not_fit_is_refused_and_nothing_changes(change):
    aggregator, _ = learnt("self-normalised")
    state = aggregator.state_dict()
    change(state)
    before = aggregator.state_dict()
    with pytest.raises(ValueError, match="must"):
        aggregator.load_state_dict(state)
    assert_array_equal(aggregator.state_dict()["features"], before["features"])


def test_head_without_a_bias_or_with_a_zero_update_takes_row_means():
    sent = [np.zeros((2, 3))]
    assert_allclose(HeadMap(sent).updates([[np.array([[3.0] * 3, [4.0] * 3])]], sent), [[0.6, 0.8]])
    weights = np.array([[3.0] * 3, [4.0] * 3])
    assert_allclose(HeadMap(ZERO).updates([[np.ones((C, INPUTS)), np.zeros(C)]], ZERO)[0], 3**-0.5)
    keras = [np.zeros((3, 2)), np.zeros(2)]  # inputs first
    assert_allclose(HeadMap(keras).updates([[weights.T, np.zeros(2)]], keras), [[0.6, 0.8]])
    assert_array_equal(HeadMap(sent).updates([sent], sent), [[0.0, 0.0]])
    with pytest.raises(ValueError, match="two or more dimensions"):
        HeadMap([np.zeros(3)])


def test_given_features_must_fit_the_clients():
    aggregator = make_aggregator("factor-memory", features=np.ones((K - 1, 2)))
    with pytest.raises(ValueError, match="features must have one row for each of 6 clients, got 5"):
        aggregator.aggregate(ZERO, [ZERO], [0], SIZES, chosen([0]))
    with pytest.raises(ValueError, match="finite matrix"):
        make_aggregator("factor-memory", features=[1.0, np.nan])
