"""The compiled step of convolutions against AutogradStep and float64 autograd, on every build."""

import copy
import signal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builds import LEVELS, load_module
from compiled_steps import steps_of
from numpy.testing import assert_array_equal
from tiny import tiny_federation
from torch import nn

from fl import conv_step
from fl.config import TrainingConfig
from fl.conv_step import ConvForward, ConvStep
from fl.engines import Job, TrainTask
from fl.engines.processes import ProcessEngine
from fl.engines.serial import SerialEngine
from fl.flat import FlatModule
from fl.models import build_model
from fl.samples import ClientSamples
from fl.steps import AutogradStep, make_step
from fl.training import LocalTrainer


@pytest.fixture(params=LEVELS)
def build(request, monkeypatch):
    """Let the step use one build of the kernel."""
    module = load_module(request.param, "convolution")
    monkeypatch.setattr(conv_step, "kernel", lambda: module)
    return module


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_net(channels, size, hidden=(), n_out=3, seed=0, bias=True, pool_before_relu=False):
    torch.manual_seed(seed)
    layers, (height, width) = [], size
    for n_in, n_filters in zip(channels, channels[1:], strict=False):
        layers.append(nn.Conv2d(n_in, n_filters, 3, padding=1, bias=bias))
        pair = [nn.ReLU(), nn.MaxPool2d(2)]
        layers += reversed(pair) if pool_before_relu else pair
        height, width = height // 2, width // 2
    widths = [channels[-1] * height * width, *hidden, n_out]
    layers.append(nn.Flatten())
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_batch(channels, size, n, seed=0, n_out=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels[0], *size, generator=generator)
    return x, torch.randint(0, n_out, (n,), generator=generator)


def assert_same_gradient(module, x, y, order, regression=False, n_out=3):
    """One step of length 1 gives the gradient; float64 autograd is the judge."""
    before = FlatModule(copy.deepcopy(module)).vector
    got = before - steps_of(ConvStep, module, x, y, [order], 1.0, regression, n_out)
    exact = copy.deepcopy(module).double()
    output = exact(x[order].double())
    loss = (
        F.mse_loss(output, y[order].double().reshape(output.shape))
        if regression
        else F.cross_entropy(output, y[order])
    )
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, exact.parameters())])
    # float32: a gradient is a sum of up to some thousand products; the difference of two vectors
    # of size 1 is exact to 1e-7.
    bound = 1e-5 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=bound)


@pytest.mark.parametrize(
    ("channels", "size", "n"),
    [
        ((3, 32, 64), (32, 32), 5),
        ((1, 8), (28, 28), 7),
        ((1, 8, 13), (7, 9), 4),
        ((3, 13, 8), (10, 6), 3),
        ((8, 64, 3, 5), (11, 8), 2),
        ((13, 1), (2, 3), 6),
        ((64, 32), (5, 5), 3),
        ((4, 3, 17, 33), (8, 17), 2),
        ((5, 16), (2, 2), 1),
        ((3, 32, 64), (12, 12), 1),
    ],
)
def test_gradient_is_that_of_autograd(build, channels, size, n):
    module = make_net(channels, size, hidden=(11,))
    x, y = make_batch(channels, size, n + 3)
    assert_same_gradient(module, x, y, torch.randperm(n + 3)[:n])


@pytest.mark.parametrize("pool_before_relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("hidden", [(), (9, 7)])
def test_forms_of_a_stack(build, bias, hidden, pool_before_relu):
    channels, size = (2, 6, 10), (9, 8)
    module = make_net(channels, size, hidden, bias=bias, pool_before_relu=pool_before_relu)
    x, y = make_batch(channels, size, 8)
    assert ConvStep.fits(module)
    assert_same_gradient(module, x, y, torch.arange(8))


def test_regression(build):
    module = make_net((2, 6), (8, 8), (5,), n_out=1)
    x, _ = make_batch((2,), (8, 8), 9)
    y = torch.randn(9, generator=torch.Generator().manual_seed(1))
    assert_same_gradient(module, x, y, torch.arange(9), regression=True, n_out=0)


@pytest.mark.parametrize("model", ["paper", "odd"])
def test_ten_epochs_of_sgd_are_those_of_autograd(build, model):
    channels, size = ((3, 32, 64), (16, 16)) if model == "paper" else ((1, 13, 8), (11, 14))
    module = make_net(channels, size, (32,))
    x, y = make_batch(channels, size, 57)
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(10):  # batches of 20, the last of 17
        orders += torch.from_numpy(rng.permutation(57)).split(20)
    got, expected = (
        steps_of(kind, module, x, y, orders, 0.05) for kind in (ConvStep, AutogradStep)
    )
    moved = (expected - FlatModule(copy.deepcopy(module)).vector).abs().max()
    assert moved > 1e-2
    # 30 steps of float32 sums in another order.
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", ["flat", "rows", "columns", "blocks", "chequers", "zeros"])
def test_ties_in_a_window_go_to_the_element_of_torch(build, pattern):
    channels, size = (2, 5, 7), (12, 12)
    rng = np.random.default_rng(3)
    values = rng.integers(-1, 3, (6, 2, 12, 12)).astype(np.float32)
    pick = {
        "flat": values[:, :, :1, :1],
        "rows": values[:, :, :, :1],
        "columns": values[:, :, :1, :],
        "blocks": values[:, :, ::4, ::4].repeat(4, 2).repeat(4, 3),
        "chequers": np.indices((12, 12)).sum(0) % 2 * values[:, :, :1, :1],
        "zeros": 0 * values,
    }[pattern]
    x = torch.from_numpy(np.broadcast_to(pick, values.shape).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, 6))
    module = make_net(channels, size)
    got, expected = (
        steps_of(kind, module, x, y, [torch.arange(6)], 1.0) for kind in (ConvStep, AutogradStep)
    )
    # An element of its own would change a gradient by far more.
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=3e-6)


def test_negative_zero_is_zero(build):
    channels, size = (2, 5), (6, 6)
    module = make_net(channels, size)
    x, y = make_batch(channels, size, 4)
    x[x.abs() < 0.5] = -0.0
    assert_same_gradient(module, x, y, torch.arange(4))
    x = torch.full_like(x, -0.0)
    got, expected = (
        steps_of(kind, module, x, y, [torch.arange(4)], 1.0) for kind in (ConvStep, AutogradStep)
    )
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
@pytest.mark.parametrize("place", ["corner", "middle", "odd row", "weight", "bias"])
def test_values_that_are_not_finite_spread_as_in_torch(build, value, place):
    channels, size = (3, 5, 8), (9, 9)
    module = make_net(channels, size)
    x, y = make_batch(channels, size, 4)
    spot = {"corner": (0, 0), "middle": (4, 5), "odd row": (8, 8)}.get(place)
    if spot is not None:
        x[2, 1, spot[0], spot[1]] = value
    with torch.no_grad():
        if place == "weight":
            module[0].weight[3, 1, 2, 0] = value
        if place == "bias":
            module[3].bias[7] = value
    orders = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([1, 0])]
    got, expected = (steps_of(kind, module, x, y, orders) for kind in (ConvStep, AutogradStep))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("channels", "size"), [((3, 32, 64), (32, 32)), ((1, 5, 13), (15, 9))])
def test_forward_is_the_models(build, channels, size):
    module = make_net(channels, size, (16,))
    forward = ConvForward(FlatModule(copy.deepcopy(module)))
    x, _ = make_batch(channels, size, 9)
    with torch.no_grad():
        torch.testing.assert_close(forward(x), module(x), rtol=1e-5, atol=2e-6)
        x[4, 0, 3, 3] = float("inf")
        torch.testing.assert_close(forward(x), module(x), rtol=1e-5, atol=2e-6, equal_nan=True)
        assert forward(x[:0]).shape == (0, 3)


def test_steps_repeat_to_the_bit_and_do_not_depend_on_earlier_work(build):
    channels, size = (3, 8, 16), (10, 10)
    module = make_net(channels, size, (12,))
    x, y = make_batch(channels, size, 30)
    orders = list(torch.randperm(30, generator=torch.Generator().manual_seed(0)).split(7))
    first = steps_of(ConvStep, module, x, y, orders)
    model = FlatModule(copy.deepcopy(module))
    step = ConvStep(model, False)
    poisoned = torch.full_like(x, float("nan"))
    for samples in (poisoned, x * 3, x):  # the last counts; larger batches first
        model.load(FlatModule(copy.deepcopy(module)).export())
        rows, _ = step.begin(samples)
        targets = step.targets(y, 3)
        for order in orders if samples is x else [torch.arange(30)]:
            step(rows[order], targets[order], 0.1)
    assert_array_equal(model.vector.numpy(), first.numpy())


def test_engines_agree_to_the_bit():
    federation = tiny_federation(shape=(3, 9, 9))
    samples = ClientSamples.of(federation)
    training = TrainingConfig(lr=0.05, epochs=2, batch_size=7)
    job = Job("cnn", samples.in_shape, samples.n_classes, training, 0)
    start = FlatModule(build_model("cnn", samples.in_shape, samples.n_classes, seed=1)).export()
    tasks = [TrainTask(client, 0) for client in range(3)]
    with SerialEngine(job, samples) as serial, ProcessEngine(job, samples, 2) as processes:
        for one, other in zip(
            serial.train(start[None], tasks), processes.train(start[None], tasks), strict=True
        ):
            assert_array_equal(one.vector, other.vector)


NOT_SERVED = {
    "5 x 5": nn.Conv2d(2, 4, 5, padding=2),
    "stride": nn.Conv2d(2, 4, 3, padding=1, stride=2),
    "valid": nn.Conv2d(2, 4, 3),
    "dilation": nn.Conv2d(2, 4, 3, padding=2, dilation=2),
    "groups": nn.Conv2d(2, 4, 3, padding=1, groups=2),
    "circular": nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_other_convolutions_take_autograd(name):
    module = nn.Sequential(
        NOT_SERVED[name], nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3)
    )
    module(torch.zeros(1, 2, 12, 12))
    assert type(make_step(FlatModule(copy.deepcopy(module)), False)) is AutogradStep


@pytest.mark.parametrize(
    "layers",
    [
        [nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(36, 3)],
        [nn.ReLU(), nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(4 * 49, 3)],
        [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(64, 3)],
        [nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)],
        [nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3, bias=False)],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)],
        [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()],
    ],
)
def test_other_blocks_and_heads_take_autograd(layers):
    module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *layers)
    assert type(make_step(FlatModule(copy.deepcopy(module)), False)) is AutogradStep


def test_a_relu_may_stand_twice_but_no_convolution(build):
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    first, second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
    head = [nn.Flatten(), nn.Linear(8, 5), relu, nn.Linear(5, 3)]
    shared = nn.Sequential(first, relu, pool, second, relu, pool, *head)
    x, y = make_batch((2,), (8, 8), 6)
    assert ConvStep.fits(shared)
    assert_same_gradient(shared, x, y, torch.arange(6))
    with torch.no_grad():
        torch.testing.assert_close(ConvForward(FlatModule(shared))(x), shared(x))
    assert not ConvStep.fits(nn.Sequential(first, relu, pool, first, relu, pool, *head))


def test_frozen_or_double_parameters_take_autograd():
    frozen = make_net((2, 4), (8, 8))
    frozen[0].weight.requires_grad_(False)
    assert not ConvStep.fits(frozen)
    assert not ConvStep.fits(make_net((2, 4), (8, 8)).double())


def test_without_the_kernel_autograd_serves(monkeypatch):
    monkeypatch.setattr(conv_step, "kernel", lambda: None)
    samples = ClientSamples.of(tiny_federation(shape=(2, 8, 8)))
    trainer = LocalTrainer(build_model("cnn", (2, 8, 8), 3, seed=1), samples, TrainingConfig())
    assert type(trainer.step) is AutogradStep


def test_images_of_another_size_raise_torchs_error(build):
    model = FlatModule(make_net((2, 4), (8, 8)))
    step = ConvStep(model, False)
    x, y = make_batch((2,), (10, 10), 4)
    samples, _ = step.begin(x)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        step(samples, step.targets(y, 3), 0.1)


def test_an_instruction_that_the_processor_refuses_is_survived():
    cpu = pytest.importorskip("cvrcore_ext.base.cpu")
    handler = signal.getsignal(signal.SIGILL)
    assert cpu.refuses()
    assert cpu.level() in (1, 3, 4)
    assert signal.getsignal(signal.SIGILL) == handler


def test_the_kernel_names_what_does_not_fit(build):
    with pytest.raises(ValueError, match="block 1 would receive 1 x 4 pixels"):
        build.ConvStack([1, 2, 3], 3, 8)
    with pytest.raises(ValueError, match="channels must be 2 to 17 numbers, got 1"):
        build.ConvStack([1], 3, 8)
    with pytest.raises(ValueError, match="channels must be within 1"):
        build.ConvStack([1, 5000], 3, 8)
    stack = build.ConvStack([1, 2], 4, 4)
    x, rows = np.zeros((3, 16), np.float32), np.arange(3)
    features = np.empty((3, 8), np.float32)
    with pytest.raises(ValueError, match="call bind first"):
        stack.forward(x, rows, features, True)
    with pytest.raises(ValueError, match=r"weights\[0\] must have shape"):
        stack.bind([np.zeros((2, 2, 3, 3), np.float32)], [None])
    stack.bind([np.ones((2, 1, 3, 3), np.float32)], [None])
    with pytest.raises(ValueError, match="rows must be within 0 .. 2, got 3"):
        stack.forward(x, rows + 1, features, True)
    stack.forward(x, rows, features, False)
    with pytest.raises(ValueError, match="kept by forward"):
        stack.backward(features, 0.1)
