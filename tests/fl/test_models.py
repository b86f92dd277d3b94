import math

import numpy as np
import pytest
import torch
from torch import nn

from fl.data import DATASETS
from fl.models import DEFAULT_MODEL, MODELS, build_model
from fl.plugins import BUILT_IN_MODELS

SHAPES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32), "logistic": (60,), "linear": (2,), "gru": (7,)}


def n_classes(name):
    return 0 if name == "linear" else 10


def make(name, seed=0, in_shape=None):
    return build_model(name, in_shape or SHAPES[name], n_classes(name), seed)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mlp", 784 * 200 + 200 + 200 * 10 + 10),
        (
            "cnn",
            (3 * 9 * 32 + 32) + (32 * 9 * 64 + 64) + (4096 * 128 + 128) + (128 * 10 + 10),
        ),
        ("logistic", 60 * 10 + 10),
        ("linear", 2),
    ],
)
def test_parameter_counts_are_those_of_the_paper(name, count):
    assert sum(p.numel() for p in make(name).parameters()) == count


def test_weights_equal_pytorch_defaults_drawn_from_the_same_seed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        reference = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1),
            nn.Linear(4096, 128), nn.Linear(128, 10),
        )  # fmt: skip
    for ours, theirs in zip(make("cnn", seed=11).parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_gru_equals_pytorch_defaults_too():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = nn.Embedding(10, 16), nn.GRU(16, 128, batch_first=True), nn.Linear(128, 10)
    reference = [p for layer in layers for p in layer.parameters()]
    for ours, theirs in zip(make("gru", seed=3).parameters(), reference, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", SHAPES)
def test_global_random_state_is_left_alone(name):
    before = torch.get_rng_state()
    make(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", SHAPES)
def test_same_seed_same_weights(name):
    a, b = (make(name, np.random.SeedSequence(4)) for _ in range(2))
    c = make(name, np.random.SeedSequence(5))
    weights = [nn.utils.parameters_to_vector(m.parameters()) for m in (a, b, c)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_generator_is_advanced():
    generator = torch.Generator().manual_seed(0)
    first, second = (make("logistic", generator) for _ in range(2))
    assert not torch.equal(first.head.weight, second.head.weight)
    assert torch.equal(first.head.weight, make("logistic", 0).head.weight)


@pytest.mark.parametrize("name", SHAPES)
def test_forward_shape_and_gradient(name):
    model = make(name)
    x = torch.zeros(5, *SHAPES[name]) + 1.0
    out = model(x)
    assert out.shape == {"linear": (5,), "gru": (5, 7, 10)}.get(name, (5, 10))
    out.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    assert model.training


def test_cnn_accepts_small_images():
    assert make("cnn", in_shape=(1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_cnn_forward_equals_the_formula():
    model = make("cnn", seed=3)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    f = nn.functional
    h = f.max_pool2d(f.relu(f.conv2d(x, model.conv1.weight, model.conv1.bias, padding=1)), 2)
    h = f.max_pool2d(f.relu(f.conv2d(h, model.conv2.weight, model.conv2.bias, padding=1)), 2)
    h = f.relu(h.reshape(2, -1) @ model.hidden.weight.T + model.hidden.bias)
    expected = h @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected)


def test_linear_regression_has_no_bias():
    model = make("linear", in_shape=(1,))
    assert model(torch.zeros(3, 1)).tolist() == [0.0, 0.0, 0.0]
    x = torch.tensor([[2.0]])
    assert math.isclose(model(x).item(), 2 * model.head.weight.item())


def test_names_are_known_without_torch():
    assert set(BUILT_IN_MODELS) == set(MODELS)


def test_every_data_set_has_a_default_model_that_fits():
    for name, spec in DATASETS.items():
        in_shape = spec.in_shape or (1,)
        model = build_model(DEFAULT_MODEL[name], in_shape, spec.n_classes)
        out = model(torch.zeros(2, *in_shape))
        length = in_shape if spec.task == "next-token" else ()
        assert out.shape == ((2, *length, spec.n_classes) if spec.n_classes else (2,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet", (3, 32, 32), 10), "model must be one of mlp, cnn, .*got 'resnet'"),
        (("cnn", (60,), 10), r"in_shape must be \(channels, height >= 4.*got \(60,\)"),
        (("mlp", (), 10), r"in_shape must hold positive sizes, got \(\)"),
        (("mlp", (4,), 0), "n_classes must be at least 1 for 'mlp', got 0"),
        (("linear", (1,), 3), "n_classes must be 0 for 'linear', got 3"),
    ],
)
def test_rejects_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_model(*arguments)
