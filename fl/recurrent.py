"""Calls of PyTorch's GRU in, the same outputs out, with the gradient written out.

Autograd walks back through a dozen operations for each element of a sequence, and adds to the
gradient of the weights every time. Here one multiplication and one product go from an element
to the one before it, and the gradient of the weights is one product over all elements.

    r = sigmoid(W_r x + U_r h),   n = tanh(W_n x + r * (U_n h)),
    z = sigmoid(W_z x + U_z h),   h' = n + z * (h - n)     (biases are left out here)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from . import products


class GRULayer(torch.autograd.Function):
    """States of one layer in one direction, shape (T, N, H), from inputs of shape (T, N, I)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        start: torch.Tensor,
        w: torch.Tensor,
        u: torch.Tensor,
        w_bias: torch.Tensor,
        u_bias: torch.Tensor,
    ) -> torch.Tensor:
        """Return the states after each element, from the state `start`."""
        (length, n, _), size = x.shape, u.shape[1]
        # First the gates before their activation, of the inputs alone; the loop completes them.
        gates = products.linear(x.flatten(0, 1), w, w_bias).view(length, n, 3 * size)
        gates[..., 2 * size :].mul_(2.0)  # tanh(a) = 2 sigmoid(2a) - 1, faster than PyTorch's tanh
        minus_one = gates.new_tensor(-1.0)
        inner = torch.empty_like(gates)
        states = x.new_empty(length + 1, n, size)
        states[0] = start
        h, u_t = states[0], u.t()
        rows = zip(
            inner.unbind(),
            inner[..., : 2 * size].unbind(),
            inner[..., 2 * size :].unbind(),
            gates[..., : 2 * size].unbind(),
            *(gate.unbind() for gate in gates.view(length, n, 3, size).unbind(2)),
            states[1:].unbind(),
            strict=True,
        )
        for of_h, of_h_rz, of_h_n, rz, r, z, n_gate, after in rows:
            torch.addmm(u_bias, h, u_t, out=of_h)
            rz.add_(of_h_rz).sigmoid_()
            n_gate.addcmul_(r, of_h_n, value=2.0).sigmoid_()
            torch.add(minus_one, n_gate, alpha=2.0, out=n_gate)
            torch.lerp(n_gate, h, z, out=after)
            h = after
        ctx.save_for_backward(x, w, u, gates, inner[..., 2 * size :], states)
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`."""
        x, w, u, gates, of_h_n, states = ctx.saved_tensors
        (length, n, n_inputs), size = x.shape, u.shape[1]
        r, z, n_gate = gates.view(length, n, 3, size).unbind(2)
        before = states[:-1]
        # The gradient of a state, times these, is that of U h + its bias, gate by gate.
        factors = gates.new_empty(length, n, 3, size)
        for_r, for_z, for_n = factors.unbind(2)
        not_z = 1.0 - z
        for_input = torch.addcmul(not_z, not_z * n_gate, n_gate, value=-1.0)
        torch.mul(for_input, r, out=for_n)
        torch.mul(for_n, of_h_n, out=for_r).mul_(1.0 - r)
        torch.sub(before, n_gate, out=for_z).mul_(z).mul_(not_z)

        deltas = factors.view(length, n, 3 * size)  # as the loop leaves them
        of_states = torch.cat([torch.zeros_like(grad[:1]), grad])
        rows = zip(
            of_states[1:].unbind(),
            of_states[:-1].unbind(),
            factors.unbind(),
            deltas.unbind(),
            z.unbind(),
            strict=True,
        )
        for of_state, of_before, factor, delta, keep in reversed(list(rows)):
            factor.mul_(of_state.unsqueeze(1))
            of_before.addcmul_(of_state, keep).addmm_(delta, u)

        flat = deltas.view(length * n, 3 * size)
        of_u, of_u_bias = flat.t() @ before.flatten(0, 1), flat.sum(0)
        torch.mul(for_input, of_states[1:], out=for_n)  # W x, unlike U h, is not behind r
        of_w, of_w_bias = (x.reshape(length * n, n_inputs).t() @ flat).t(), flat.sum(0)
        of_x = products.product(flat, w).view_as(x) if ctx.needs_input_grad[0] else None
        return of_x, of_states[0], of_w, of_u, of_w_bias, of_u_bias


class WrittenOutGRU(TorchFunctionMode):
    """While active, `nn.GRU` takes `GRULayer` where it fits, else PyTorch's own way.

    It fits padded batches on the CPU, one direction, with biases and without dropout.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Answer calls of `torch.gru`; leave all others alone."""
        if func is torch.gru and not kwargs and len(args) == 9 and _fits(*args):
            return _gru(*args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def serves(module: nn.Module) -> bool:
        """Whether a layer of `module` may gain by it."""
        return any(type(layer) is nn.GRU for layer in module.modules())


def _fits(x: Any, start: Any, weights: Any, biases: Any, *options: Any) -> bool:
    _, dropout, training, both_ways, _ = options
    if not isinstance(weights, list | tuple) or not isinstance(biases, bool):
        return False  # a packed sequence has its arguments in another order
    plain = biases and not both_ways and not (dropout and training)
    tensors = (x, start, *weights)
    return (
        plain
        and x.ndim == 3
        and x.numel() > 0
        and all(t.device.type == "cpu" and t.dtype == x.dtype for t in tensors)
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
    )


def _gru(
    x: torch.Tensor,
    start: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: bool,
    n_layers: int,
    dropout: float,
    training: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and last states, as `torch.gru` does."""
    states, last = (x.transpose(0, 1) if batch_first else x), []
    for i in range(n_layers):
        states = GRULayer.apply(states, start[i], *weights[4 * i : 4 * i + 4])  # type: ignore[no-untyped-call]
        last.append(states[-1])
    return (states.transpose(0, 1) if batch_first else states), torch.stack(last)
