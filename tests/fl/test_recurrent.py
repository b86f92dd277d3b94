"""The written-out gradient of GRUs against PyTorch's own."""

import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from fl.flat import FlatModule
from fl.objectives import Objective
from fl.recurrent import GRULayer, WrittenOutGRU
from fl.steps import AutogradStep


def make(dtype=torch.float64, **options):
    torch.manual_seed(0)
    return nn.GRU(3, 5, **options).to(dtype)


def random(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def with_gradients(layer, x, start, mode):
    """Outputs, last states, and gradients of a function of both."""
    x, start = x.clone().requires_grad_(), start.clone().requires_grad_()
    if mode:
        with WrittenOutGRU():
            output, last = layer(x, start)
    else:
        output, last = layer(x, start)
    value = (output * random(*output.shape)).sum() + (last.square() * 0.3).sum()
    return output, last, *torch.autograd.grad(value, [x, start, *layer.parameters()])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_equals_pytorch(layers, batch_first):
    layer = make(num_layers=layers, batch_first=batch_first)
    x, start = random(4, 6, 3), random(layers, 4 if batch_first else 6, 5)
    found = with_gradients(layer, x, start, mode=True)
    for ours, theirs in zip(found, with_gradients(layer, x, start, mode=False), strict=True):
        assert_allclose(ours.detach(), theirs.detach(), rtol=1e-10, atol=1e-12)


def test_gradient_equals_finite_differences():
    arguments = [random(3, 2, 3), random(2, 4), random(12, 3), random(12, 4)]
    arguments += [random(12), random(12)]
    arguments = [argument.requires_grad_() for argument in arguments]
    assert torch.autograd.gradcheck(GRULayer.apply, arguments)


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 7, 3), (7, 1, 3)])
def test_short_sequences_and_small_batches(shape):
    layer, start = make(), torch.zeros(1, shape[1], 5, dtype=torch.float64)
    found = with_gradients(layer, random(*shape), start, mode=True)
    expected = with_gradients(layer, random(*shape), start, mode=False)
    for ours, theirs in zip(found, expected, strict=True):
        assert_allclose(ours.detach(), theirs.detach(), rtol=1e-10, atol=1e-12)


def test_large_and_missing_values_spread_as_in_pytorch():
    layer = make(torch.float32)
    x = random(4, 6, 3, dtype=torch.float32)
    x[0, 0], x[1, 1], x[2, 2] = 1e30, -1e30, float("nan")
    with WrittenOutGRU():
        ours, _ = layer(x)
    theirs, _ = layer(x)
    assert theirs.isnan().any()
    assert not theirs.isnan().all()
    assert_allclose(ours.detach(), theirs.detach(), atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"bidirectional": True}, {"bias": False}, {"num_layers": 2, "dropout": 0.5}]
)
def test_other_kinds_take_pytorchs_way(options):
    layer, found = make(**options), []
    for mode in (WrittenOutGRU, None):
        torch.manual_seed(5)
        if mode is None:
            found.append(layer(random(4, 6, 3))[0])
        else:
            with mode():
                found.append(layer(random(4, 6, 3))[0])
    assert torch.equal(*found)
    assert "GRULayer" not in type(found[0].grad_fn).__name__


def test_packed_sequences_take_pytorchs_way():
    layer = make()
    packed = pack_padded_sequence(random(4, 2, 3), [4, 2])
    with WrittenOutGRU():
        ours = layer(packed)[0].data
    assert torch.equal(ours, layer(packed)[0].data)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


def test_steps_equal_those_of_torch_optim():
    torch.manual_seed(0)
    ours, theirs = Reader(), Reader()
    theirs.load_state_dict(ours.state_dict())
    x, y = random(40, 6, 3, dtype=torch.float32), torch.arange(40) % 4
    step, optimiser = AutogradStep(FlatModule(ours)), torch.optim.SGD(theirs.parameters(), 0.5)
    for a in list(range(0, 40, 10)) * 5:
        step(x[a : a + 10], y[a : a + 10], 0.5)
        optimiser.zero_grad()
        nn.functional.cross_entropy(theirs(x[a : a + 10]), y[a : a + 10]).backward()
        optimiser.step()
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_allclose(own.detach(), other.detach(), atol=1e-5)


def test_only_the_default_loss_takes_the_written_out_gradient(monkeypatch):
    calls, apply = [], GRULayer.apply
    monkeypatch.setattr(GRULayer, "apply", lambda *arguments: calls.append(1) or apply(*arguments))
    x, y = random(10, 6, 3, dtype=torch.float32), torch.arange(10) % 4
    own = Objective("classification", loss=nn.functional.cross_entropy)
    AutogradStep(FlatModule(Reader()), objective=own)(x, y, 0.1)
    assert not calls
    AutogradStep(FlatModule(Reader()))(x, y, 0.1)
    assert calls
