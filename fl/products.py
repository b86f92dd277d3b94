"""Products of linear layers: a batch in, outputs and SGD steps out, by the faster library.

PyTorch's matrix products go to MKL, which leaves AVX-512 unused on processors that are not
Intel's; its oneDNN, which serves convolutions, uses it on all. The choice depends on the processor
and on the sizes alone, so that all workers of a host make the same steps to the bit.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Multiplications below which the longer call of oneDNN costs more than it saves.
WORTH_CALLING = 1_000_000


@functools.cache
def _pointwise() -> Any:
    """Return oneDNN's linear layer if this processor gains by it, else None."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _onednn(x: torch.Tensor, weight: torch.Tensor) -> Any:
    n, k = x.shape
    large = n * k * weight.shape[0] >= WORTH_CALLING
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return _pointwise() if large and plain else None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight.t() + bias``."""
    pointwise = _onednn(x, weight)
    if pointwise is None:
        return torch.addmm(bias, x, weight.t())
    output: torch.Tensor = pointwise(x, weight, bias, "none", [], "")
    return output


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight``."""
    pointwise = _onednn(x, weight.t())
    if pointwise is None:
        return x @ weight
    output: torch.Tensor = pointwise(x, weight.t(), None, "none", [], "")
    return output


def descend(weight: torch.Tensor, delta: torch.Tensor, x: torch.Tensor, lr: float) -> None:
    """Subtract ``lr * delta.t() @ x`` from `weight`, in place."""
    pointwise = _onednn(delta.t(), x.t())
    if pointwise is None:
        weight.addmm_(delta.t(), x, alpha=-lr)
    else:
        weight.sub_(pointwise(delta.t().contiguous(), x.t(), None, "none", [], ""), alpha=lr)
