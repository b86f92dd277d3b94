import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from tiny import tiny_federation

from fl.config import TrainingConfig
from fl.engines import Job
from fl.engines.serial import SerialEngine
from fl.evaluation import Deployment, evaluate, segment_means, training_losses
from fl.models import build_model
from fl.samples import ClientSamples


def make_problem(regression=False, n_models=2):
    federation = tiny_federation(regression=regression)
    samples = ClientSamples.of(federation)
    name = "linear" if regression else "mlp"
    job = Job(name, samples.in_shape, samples.n_classes, TrainingConfig(), seed=0)
    modules = [build_model(name, (8,), samples.n_classes, seed=j) for j in range(n_models)]
    models = np.stack(
        [np.concatenate([p.detach().numpy().ravel() for p in m.parameters()]) for m in modules]
    )
    return federation, samples, SerialEngine(job, samples), modules, models


def client_outputs(federation, ids, module):
    with torch.no_grad():
        return module(torch.from_numpy(federation.x[ids])), torch.from_numpy(federation.y[ids])


@pytest.mark.parametrize("empty", ["skip", "zero"])
def test_metrics_equal_a_loop_over_clients(empty):
    federation, samples, engine, modules, models = make_problem()
    of_client = np.arange(12) % 2
    got = evaluate(engine, samples, Deployment(models, of_client), empty)

    scores, losses, hits = [], [], 0
    for k, ids in enumerate(federation.test):
        if len(ids) == 0:
            continue
        output, y = client_outputs(federation, ids, modules[of_client[k]])
        hit = (output.argmax(1) == y).sum().item()
        hits += hit
        scores.append(hit / len(ids))
        losses.append(F.cross_entropy(output, y).item())
    scores += [0.0] * (sum(len(ids) == 0 for ids in federation.test) if empty == "zero" else 0)
    assert_allclose(got["accuracy"], np.mean(scores), rtol=1e-12)
    assert_allclose(got["accuracy_weighted"], hits / len(samples.y_test), rtol=1e-12)
    assert_allclose(got["loss"], np.mean(losses), rtol=1e-5)  # float32 means per client
    assert_allclose(got["worst_decile"], np.mean(sorted(scores)[:2]), rtol=1e-12, atol=1e-14)


def test_regression_reports_squared_errors():
    federation, samples, engine, modules, models = make_problem(regression=True)
    got = evaluate(engine, samples, Deployment(models, np.zeros(12, dtype=np.int64)))
    errors = []
    for ids in federation.test:
        if len(ids):
            output, y = client_outputs(federation, ids, modules[0])
            errors.append(F.mse_loss(output, y).item())
    assert_allclose(got["mse"], np.mean(errors), rtol=1e-5)
    assert_allclose(got["worst_decile"], np.mean(sorted(errors)[-1:]), rtol=1e-5)
    assert "accuracy" not in got


def test_training_losses_are_means_per_client_and_model():
    federation, samples, engine, modules, models = make_problem()
    clients = np.array([7, 0, 5])
    got = training_losses(engine, samples, models, clients)
    for i, k in enumerate(clients):
        for j, module in enumerate(modules):
            output, y = client_outputs(federation, federation.train[k], module)
            assert_allclose(got[i, j], F.cross_entropy(output, y).item(), rtol=1e-5)


def test_chunks_do_not_change_the_metrics(monkeypatch):
    _, samples, engine, _, models = make_problem()
    deployment = Deployment(models, np.zeros(12, dtype=np.int64))
    whole = evaluate(engine, samples, deployment)
    for module in ("fl.training.FORWARD_BATCH", "fl.evaluation.BLOCK"):
        monkeypatch.setattr(module, 7)
    parts = evaluate(engine, samples, deployment)
    assert whole.keys() == parts.keys()
    for name in whole:
        assert_allclose(parts[name], whole[name], rtol=1e-6)


def test_segment_means_of_empty_segments_are_zero():
    values, starts = np.array([1.0, 3.0, 5.0]), np.array([0, 0, 2, 2, 3])
    assert_allclose(segment_means(values, starts), [0.0, 2.0, 0.0, 5.0])
