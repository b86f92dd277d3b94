"""The compiled step on sparse samples against float64 autograd and DenseStep, on every build."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builds import load_module
from compiled_steps import steps_of
from tiny import tiny_federation
from torch import nn

from fl import sparse_step
from fl.config import TrainingConfig
from fl.flat import FlatModule
from fl.models import build_model
from fl.samples import ClientSamples
from fl.sparse_step import SparseForward, SparseStep
from fl.steps import AutogradStep, DenseStep, make_forward, make_step
from fl.training import LocalTrainer


@pytest.fixture(params=("base", "v3", "v4"))
def build(request, monkeypatch):
    """Let the step use one build of the kernel, for networks of any size."""
    module = load_module(request.param, "sparse_mlp")
    monkeypatch.setattr(sparse_step, "kernel", lambda: module)
    monkeypatch.setattr(sparse_step, "FEWEST_WEIGHTS", 1)
    return module


def make_net(n_in, n_hidden, n_out, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(n_in, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_out)
    )


def make_samples(n, n_in, n_out, share=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, n_in, generator=generator)
    x[torch.rand(n, n_in, generator=generator) >= share] = 0.0
    return x, torch.randint(0, max(n_out, 1), (n,), generator=generator)


SHAPES = [(20, 11, 3, 5), (784, 200, 10, 33), (7, 1, 1, 1), (65, 64, 2, 9), (130, 57, 11, 4)]


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize(("n_in", "n_hidden", "n_out", "n"), SHAPES)
def test_gradient_is_that_of_autograd(build, n_in, n_hidden, n_out, n, regression):
    module = make_net(n_in, n_hidden, n_out)
    x, y = make_samples(n + 3, n_in, n_out)
    if regression:
        y = torch.randn(n + 3, n_out, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(n + 3)[:n]
    before = FlatModule(copy.deepcopy(module)).vector
    got = before - steps_of(SparseStep, module, x, y, [order], 1.0, regression, n_out)
    exact = copy.deepcopy(module).double()
    output = exact(x[order].double())
    loss = (
        F.mse_loss(output, y[order].double()) if regression else F.cross_entropy(output, y[order])
    )
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, exact.parameters())])
    bound = 1e-6 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=bound)


def test_many_steps_are_those_of_dense_products(build):
    module = make_net(60, 37, 5)
    x, y = make_samples(40, 60, 5)
    orders = [torch.randperm(40)[: 1 + i % 17] for i in range(50)]
    got = steps_of(SparseStep, module, x, y, orders, n_out=5)
    expected = steps_of(DenseStep, module, x, y, orders, n_out=5)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("regression", [False, True])
def test_products_of_samples_make_the_same_steps(build, monkeypatch, regression):
    module = make_net(60, 37, 5)
    x, y = make_samples(23, 60, 5)
    if regression:
        y = torch.randn(23, 5, generator=torch.Generator().manual_seed(1))
    orders = [rows for _ in range(9) for rows in torch.randperm(23).split(7)]
    expected = steps_of(DenseStep, module, x, y, orders, regression=regression, n_out=5)
    monkeypatch.setattr(SparseStep, "passes", 9)
    bound = []
    original = sparse_step._Network.bind
    monkeypatch.setattr(
        sparse_step._Network, "bind", lambda *args: (bound.append(args[-1]), original(*args))[1]
    )
    got = steps_of(SparseStep, module, x, y, orders, regression=regression, n_out=5)
    assert bound == [True]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(sparse_step, "FEW_SAMPLES", 22)
    steps_of(SparseStep, module, x, y, orders, regression=regression, n_out=5)
    assert bound == [True, False]


def test_weights_of_an_input_that_is_always_0_stay(build):
    module = make_net(30, 16, 3)
    x, y = make_samples(10, 30, 3)
    x[:, 4] = 0.0
    after = steps_of(SparseStep, module, x, y, [torch.arange(10)] * 3)
    weight = after[: 30 * 16].view(16, 30)
    assert torch.equal(weight[:, 4], module[1].weight[:, 4])
    assert not torch.equal(weight, module[1].weight)


def trainers(samples, monkeypatch, **settings):
    """Return a trainer with sparse steps and one with dense ones."""
    training = TrainingConfig(epochs=3, batch_size=4, lr=0.05, **settings)
    shape, n_classes = samples.in_shape, samples.n_classes
    sparse = LocalTrainer(build_model("mlp", shape, n_classes, seed=0), samples, training)
    assert isinstance(sparse.step, SparseStep)
    with monkeypatch.context() as patch:
        patch.setattr(sparse_step, "kernel", lambda: None)
        dense = LocalTrainer(build_model("mlp", shape, n_classes, seed=0), samples, training)
    assert type(dense.step) is DenseStep
    return sparse, dense


def sparse_samples():
    federation = tiny_federation(shape=(1, 8, 8))
    x = np.where(np.random.default_rng(0).random(federation.x.shape) < 0.8, 0.0, federation.x)
    return ClientSamples.of(dataclasses.replace(federation, x=x.astype(np.float32)))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_local_training_with_and_without_a_proximal_term(build, monkeypatch, mu):
    samples = sparse_samples()
    sparse, dense = trainers(samples, monkeypatch)
    start = sparse.model.export()
    stream = np.random.SeedSequence(3)
    got = sparse.train(start, 1, stream, mu=mu, statistic="mean")
    expected = dense.train(start, 1, stream, mu=mu, statistic="mean")
    np.testing.assert_allclose(got.vector, expected.vector, rtol=1e-4, atol=1e-6)
    assert got.steps == expected.steps
    assert got.loss == pytest.approx(expected.loss, rel=1e-5)
    assert not np.array_equal(got.vector, start)
    assert sparse.step.passes == (0 if mu else 3)  # the proximal term moves weights between steps


def test_a_shift_of_every_gradient_takes_dense_products(build, monkeypatch):
    sparse, dense = trainers(sparse_samples(), monkeypatch)
    start = sparse.model.export()
    shift = np.full(start.size, 0.01, dtype=np.float32)
    stream = np.random.SeedSequence(3)
    got = sparse.train(start, 0, stream, shift=shift)
    np.testing.assert_array_equal(got.vector, dense.train(start, 0, stream, shift=shift).vector)


def test_samples_with_few_zeros_take_dense_products(build):
    module = make_net(60, 37, 5)
    x, y = make_samples(40, 60, 5, share=0.9)
    orders = [torch.arange(20)] * 3
    got = steps_of(SparseStep, module, x, y, orders, n_out=5)
    assert torch.equal(got, steps_of(DenseStep, module, x, y, orders, n_out=5))


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_outputs_are_those_of_the_module(build, share):
    model = FlatModule(make_net(50, 33, 4))
    x, _ = make_samples(21, 50, 4, share)
    with torch.no_grad():
        torch.testing.assert_close(SparseForward(model)(x), model.module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_hidden(build, bad):
    module = make_net(30, 16, 3)
    x, y = make_samples(10, 30, 3)
    x[2, 5] = bad
    after = steps_of(SparseStep, module, x, y, [torch.arange(10)])
    assert not torch.isfinite(after).all()
    assert not torch.isfinite(SparseForward(FlatModule(module))(x)[2]).all()


@pytest.mark.parametrize(
    ("shape", "flatten"), [((5, 20), None), ((1, 20), None), ((2, 3, 20), nn.Flatten(1, 2))]
)
def test_a_network_that_works_position_by_position_keeps_its_outputs(build, shape, flatten):
    """Its samples are not flattened into one row each, also where the width would fit."""
    layers = [nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)]
    module = nn.Sequential(*layers) if flatten is None else nn.Sequential(flatten, *layers)
    x = make_samples(8, int(np.prod(shape)), 3)[0].reshape(8, *shape)
    with torch.no_grad():
        assert torch.equal(make_forward(FlatModule(module))(x), module(x))
    if flatten is not None:
        assert type(make_step(FlatModule(module), False)) is AutogradStep


def test_samples_of_another_width_are_refused_as_the_module_does(build):
    model = FlatModule(make_net(30, 16, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        SparseForward(model)(torch.zeros(4, 31))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_targets_of_a_regression_may_be_of_any_type(build, dtype):
    module = make_net(30, 16, 1)
    x, y = make_samples(10, 30, 5)
    orders = [torch.arange(10)] * 3
    got = steps_of(SparseStep, module, x, y.to(dtype), orders, regression=True)
    assert torch.equal(got, steps_of(SparseStep, module, x, y.float(), orders, regression=True))


def test_which_modules_it_serves(build, monkeypatch):
    assert isinstance(make_step(FlatModule(make_net(60, 20, 3)), False), SparseStep)
    assert isinstance(make_forward(FlatModule(make_net(60, 20, 3))), SparseForward)
    deeper = nn.Sequential(
        nn.Linear(60, 20), nn.ReLU(), nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, 3)
    )
    for module in (build_model("logistic", (60,), 3), deeper, make_net(60, 20, 3).double()):
        assert type(make_step(FlatModule(module), False)) is DenseStep
    monkeypatch.setattr(sparse_step, "FEWEST_WEIGHTS", 1201)
    assert type(make_step(FlatModule(make_net(60, 20, 3)), False)) is DenseStep


def test_the_kernel_refuses_what_does_not_fit(build):
    net = build.SparseMLP(6, 5, 2)
    x = np.eye(6, dtype=np.float32)
    model = np.zeros(5 * 6 + 5 + 2 * 5 + 2, dtype=np.float32)
    packed = np.zeros(net.packed_size, dtype=np.float32)
    rows, out = np.arange(3), np.zeros((3, 2), dtype=np.float32)
    with pytest.raises(ValueError, match="call take and bind first"):
        net.forward(rows, out)
    assert not net.take(x, 0.1)  # a sixth of the values are not 0
    assert net.take(x, 0.2)
    with pytest.raises(ValueError, match="model must have 47 numbers, got 46"):
        net.bind(model[1:], packed)
    with pytest.raises(ValueError, match="packed must have"):
        net.bind(model, packed[1:])
    net.bind(model, packed)
    for bad in (6, -1):
        with pytest.raises(ValueError, match=rf"rows must be within 0 .. 5, got {bad}"):
            net.step(np.array([0, bad]), out[:2], 0.1, False)
    with pytest.raises(ValueError, match="targets must have shape"):
        net.step(rows, out[:2], 0.1, False)
    with pytest.raises(ValueError, match="out must have shape"):
        net.forward(rows, out[:2])
    with pytest.raises(ValueError, match="x must have 6 columns, got 5"):
        net.take(x[:, :5].copy(), 1.0)
    with pytest.raises(ValueError, match="n_hidden must be within"):
        build.SparseMLP(6, 0, 2)
    net.step(rows[:0], out[:0], 0.1, False)  # an empty batch changes nothing
    assert not packed.any()
