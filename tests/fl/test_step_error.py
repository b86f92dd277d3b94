"""The offline error of steps: its recording, its estimators, its table."""

import copy
import itertools
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore.aggregators.base import RoundUpdates
from cvrcore.selection import Selection
from fl.engines.serial import one_thread
from fl.experiments import Request, reproduce
from fl.experiments.definitions import step_error
from fl.experiments.definitions.blended import Blended
from fl.experiments.definitions.kriging import (
    CorrectedKriging,
    Covariance,
    Kriging,
    log_likelihood,
)
from fl.experiments.definitions.recorded import WIDTH, Recording, Sketch, record
from fl.experiments.export import export
from fl.experiments.results import read_results
from fl.experiments.text_tables import print_experiment
from fl.presets import make_config
from fl.server import Server
from fl.store import StoreError


def digits(rounds=3, **changes):
    config = make_config("digits", "fedavg", data__n_clients=20, selection__n_select=20, **changes)
    return config.replace(rounds=rounds, engine__workers=1)


def test_sketch_is_linear_and_keeps_inner_products():
    rng = np.random.default_rng(0)
    sketch = Sketch(5000)
    a, b = rng.normal(size=(2, 5000))
    assert_allclose(sketch(2 * a - b), 2 * sketch(a) - sketch(b), atol=1e-9)
    pairs = rng.normal(size=(200, 2, 5000))
    found = np.array([sketch(a) @ sketch(b) for a, b in pairs])
    exact = np.einsum("nd,nd->n", pairs[:, 0], pairs[:, 1])
    lengths = np.array([(sketch(a) ** 2).sum() / (a**2).sum() for a, _ in pairs])
    assert abs(lengths.mean() - 1) < 4 * np.sqrt(2 / WIDTH / 200)
    # Each error has the standard deviation |a| |b| / sqrt(WIDTH).
    assert abs((found - exact).mean()) < 4 * 5000 / np.sqrt(WIDTH * 200)


def test_recording_is_the_full_participation_run_and_resumes(tmp_path):
    config = digits(seed=1)
    found = record(config, tmp_path / "a")
    with one_thread(), Server(config) as server:
        share = server.weights / server.weights.sum()
        before = server.algorithm.models[0].copy()
        for t in range(3):
            server.round(t)
            step = server.algorithm.models[0] - before
            sketch = Sketch(server.layout.size)
            assert_allclose(share @ found.sketches[t], sketch(step), atol=2e-5)
            before = server.algorithm.models[0].copy()
        assert_array_equal(found.sizes, server.weights)
    assert_array_equal(found.label_counts.sum(axis=1), found.sizes)
    (tmp_path / "a" / "round-003.npz").unlink()
    again = record(config, tmp_path / "a")
    assert_array_equal(again.sketches, found.sketches)
    with pytest.raises(StoreError, match="another config"):
        record(digits(seed=2), tmp_path / "a")
    (tmp_path / "a" / "round-002.npz").write_bytes(b"PK")
    with pytest.raises(StoreError, match=r"round-002.npz is damaged"):
        record(config, tmp_path / "a")


def made(n_clients=12, n_rounds=8, seed=0):
    """Return a recording whose updates are linear in the head updates."""
    rng = np.random.default_rng(seed)
    heads = rng.normal(size=(n_clients, 4))
    heads /= np.linalg.norm(heads, axis=1, keepdims=True)
    updates = heads @ rng.normal(size=(4, WIDTH)) + 0.3 * rng.normal(size=WIDTH)
    rows = np.repeat(updates[None], n_rounds, axis=0).astype(np.float32)
    counts = rng.integers(1, 30, size=(n_clients, 4))
    told = np.repeat(heads[None], n_rounds, axis=0).astype(np.float32)
    return Recording(rows, told, counts.sum(axis=1).astype(float), counts)


def test_all_clients_leave_no_error(monkeypatch):
    monkeypatch.setattr(step_error, "N_SELECT", 12)
    rows = step_error.examine(made(), seed=0, repeats=1)
    exact = [row for row in rows if row["estimator"] in ("sizes", "memory", "factor memory")]
    assert max(row["error"] for row in exact) < 1e-9
    # The mean of all clients is not the mean by samples.
    assert min(row["error"] for row in rows if row["estimator"] == "mean") > 1e-4


def test_errors_that_repeat_last(monkeypatch):
    """By hand: an offset of half the step lasts for all rounds, a draw's error averages out."""
    recording = made(n_rounds=40)
    monkeypatch.setattr(step_error, "N_SELECT", 3)
    rows = step_error.examine(recording, seed=0, repeats=30)
    late = {(r["draw"], r["estimator"]): r for r in rows if r["rounds"] == "late"}
    fair = late["by size", "mean"]  # unbiased, and independent from round to round
    assert 0.6 < fair["lasting"] / fair["error"] < 1.5
    biased = late["uniform", "mean"]  # clients alike, whatever their samples: an offset
    offset = biased["lasting"] - biased["error"]
    share = recording.sizes / recording.sizes.sum()
    full, even = share @ recording.sketches[0], recording.sketches[0].mean(axis=0)
    # Ten rounds: the offset counts ten times in the sum, once in each step.
    by_hand = (10 - 1) * ((even - full) ** 2).sum() / (full**2).sum()
    assert_allclose(offset, by_hand, rtol=0.5)


def test_kriging_is_the_conditional_mean():
    """Against the conditional mean of the joint covariance of all updates, made by loops."""
    recording, covariance = made(n_clients=5, n_rounds=3), Covariance(r_common=0.9, own=0.3)
    kriging = Kriging(covariance)
    sent = [np.zeros((4, WIDTH // 4), np.float32), np.zeros(4, np.float32)]
    rounds = [[0, 1, 2], [3, 4, 0], [1, 3, 2]]
    for t, clients in enumerate(rounds):
        rows, heads = recording.sketches[t, clients], recording.heads[t, clients]
        back = [[r.reshape(4, -1), h] for r, h in zip(rows, heads, strict=True)]
        after = kriging.aggregate(sent, back, clients, recording.sizes)

    f = recording.heads[0].astype(float)
    seen = [(t, k) for t, clients in enumerate(rounds) for k in clients]

    def cov(a, b):
        gap = abs(a[0] - b[0])
        return (
            1.0 * 0.9**gap
            + 1.0 * (f[a[1]] @ f[b[1]]) * 0.995**gap
            + 0.3 * (a[1] == b[1]) * 0.975**gap
            + 0.001 * (a == b)
        )

    inner = np.array([[cov(a, b) for b in seen] for a in seen])
    share = recording.sizes / recording.sizes.sum()
    # Of a client that reports now, the target is its update without noise.
    outer = [
        sum(share[k] * (cov(a, (2, k)) - 0.001 * (a == (2, k))) for k in range(5)) for a in seen
    ]
    updates = np.stack([recording.sketches[t, k] for t, k in seen])
    assert_allclose(after[0].ravel(), np.linalg.solve(inner, outer) @ updates, atol=1e-4)


@pytest.mark.parametrize("make", [CorrectedKriging, Blended])
def test_corrected_rules_are_unbiased_over_all_samples(make):
    """Equal clients, all seen before: the mean over all pairs is the full step."""
    rng = np.random.default_rng(3)
    aggregator, sizes = make(), np.ones(5)
    sent = [np.zeros((4, 6), np.float32), np.zeros(4, np.float32)]

    def models(clients):
        return [[m.astype(np.float32) for m in everyone[k]] for k in clients]

    for clients in ([0, 1, 2], [3, 4, 0], [1, 3, 2]):
        everyone = [[rng.normal(size=(4, 6)), rng.normal(size=4)] for _ in range(5)]
        picked = Selection(np.array(clients), inclusion=np.full(5, 0.6))
        aggregator.aggregate(sent, models(clients), clients, sizes, picked)
    pairs = list(itertools.combinations(range(5), 2))
    total = np.zeros((4, 6))
    for pair in pairs:
        picked = Selection(np.array(pair), inclusion=np.full(5, 0.4))
        twin = copy.deepcopy(aggregator)
        total += twin.aggregate(sent, models(pair), pair, sizes, picked)[0]
    full = np.mean([model[0] for model in everyone], axis=0)
    assert_allclose(total / len(pairs), full, atol=1e-5)


@pytest.mark.parametrize("make", [CorrectedKriging, Blended])
def test_rules_of_the_experiment_refuse_to_be_saved(make):
    """Half of a state would be worse: what the base class saves lacks all that they learned."""
    with pytest.raises(TypeError, match="must not be saved: it replays recorded rounds"):
        make().state_dict()


def test_blended_is_exact_where_every_update_repeats():
    """Updates of no pattern: a regression cannot know them, the memory of each client does."""
    rng = np.random.default_rng(4)
    updates = [[rng.normal(size=(4, 6)), rng.normal(size=4)] for _ in range(6)]
    sent = [np.zeros((4, 6), np.float32), np.zeros(4, np.float32)]
    full = np.mean([u[0] for u in updates], axis=0)
    errors = {}
    for name, aggregator in {"own": Blended(rho=1.0), "none": Blended(rho=0.0)}.items():
        draws = np.random.default_rng(5)
        for _ in range(60):
            clients = np.sort(draws.choice(6, 3, replace=False))
            picked = Selection(clients, inclusion=np.full(6, 0.5))
            back = [[a.astype(np.float32) for a in updates[k]] for k in clients]
            after = aggregator.aggregate(sent, back, clients, np.ones(6), picked)
        errors[name] = np.abs(after[0] - full).max()
    assert errors["own"] < 0.25 * errors["none"]


def test_likelihood_prefers_the_covariance_that_made_the_updates():
    recording = made(n_clients=12, n_rounds=3)
    kriging = Kriging()
    sent = [np.zeros((4, WIDTH // 4), np.float32), np.zeros(4, np.float32)]
    for t in range(3):
        clients = np.arange(4) + 4 * t
        rows, heads = recording.sketches[t, clients], recording.heads[t, clients]
        back = [[r.reshape(4, -1), h] for r, h in zip(rows, heads, strict=True)]
        kriging.learn(RoundUpdates(sent, back, clients, recording.sizes, None), rows)
    true = Covariance(common=0.09, factor=1.0, own=1e-4, noise=1e-4)
    others = (Covariance(common=9.0, factor=0.01), Covariance(factor=0.1, own=1.0))
    best = log_likelihood(true, kriging)
    assert all(log_likelihood(other, kriging) < best for other in others)


def test_table_is_made_by_one_command_and_not_twice(tmp_path, monkeypatch, capsys):
    request = Request(quick=True, dataset="digits", seeds=2, rounds=4)
    (outcome,) = reproduce("step-error", request, tmp_path)
    n_cells = len(step_error.DRAWS) * len(step_error.ESTIMATORS) * 2
    assert len(outcome.rows) == n_cells
    assert {row["seeds"] for row in outcome.rows} == {2}
    for row in outcome.rows:
        assert np.isfinite([row["error"], row["error_std"], row["lasting"]]).all()
    assert outcome.figures[0].read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(step_error, "record", None)  # nothing is recorded again
    (again,) = reproduce("step-error", request, tmp_path)
    assert again.rows == outcome.rows
    print_experiment(read_results(outcome.path.parent), outcome.rows)
    assert "pivotal, labels known" in capsys.readouterr().out
    (tmp_path / "docs").mkdir()
    written = [path.name for path in export(tmp_path, tmp_path / "docs")]
    assert "step-error-quick.csv" in written
    stored = json.loads((outcome.path.parent / "digits-50-seed-0.json").read_text())
    assert stored["asked"]["rounds"] == 4
