"""A batch of sparse samples in, one step of plain SGD out: Linear, ReLU, Linear.

`SparseStep` gives such a network to a compiled kernel that skips the zeros of the samples.
Samples with few zeros, and hosts without the kernel, take `DenseStep`. `SparseForward` is the
network without a gradient.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from cvrcore.kernels.dispatch import compiled

from .flat import FlatModule
from .steps import DenseStep

#: Share of values that are not 0 above which the products of whole matrices are faster.
WORTH_SKIPPING = 0.55
#: Most samples, and fewest passes, for which products of samples take the place of weights.
FEW_SAMPLES, MANY_PASSES = 128, 4
#: Weights of the first layer below which a step is too short to gain by it.
FEWEST_WEIGHTS = 50_000


def kernel() -> ModuleType | None:
    """Return the compiled kernel, or None where it cannot serve."""
    return compiled("sparse_mlp")


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return the layers of `module` if the kernel serves it, else none.

    Such a module is [Flatten,] Linear, ReLU, Linear, in float32 and on the CPU.
    """
    if not DenseStep.fits(module):
        return []
    found = [layer for layer in cast(nn.Sequential, module) if type(layer) is nn.Linear]
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())
    distinct = len({id(layer) for layer in found})
    large = found[0].weight.numel() >= FEWEST_WEIGHTS
    return found if len(found) == distinct == 2 and plain and large else []


class _Network:
    """The kernel's working memory for one model."""

    def __init__(self, model: FlatModule) -> None:
        first, last = linear_layers(model.module)
        module = kernel()
        assert module is not None  # `fits` has asked
        self.kernel: Any = module.SparseMLP(
            first.in_features, first.out_features, last.out_features
        )
        self.n_in, self.n_out = first.in_features, last.out_features
        self._flattens = type(cast(nn.Sequential, model.module)[0]) is nn.Flatten

    def takes(self, x: torch.Tensor) -> bool:
        """Take over the samples `x` if each is one row for the module, and mostly 0."""
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return False
        if x.ndim != 2 and not self._flattens:
            return False  # a linear layer works along the last axis, and keeps the others
        rows = x.flatten(1)
        if rows.shape[1] != self.n_in:
            return False
        return bool(self.kernel.take(rows.contiguous().numpy(), WORTH_SKIPPING))

    def bind(self, vector: torch.Tensor, dual: bool = False) -> torch.Tensor:
        """Return the parameters as the kernel keeps them; it works on these."""
        packed = torch.empty(self.kernel.packed_size)  # from a cache line on
        self.kernel.bind(vector.numpy(), packed.numpy(), dual)
        return packed


class SparseStep(DenseStep):
    """Steps of the kernel where the samples of `begin` are sparse, else those of `DenseStep`.

    In the first case calls take row numbers.
    """

    def __init__(self, model: FlatModule, regression: bool) -> None:
        super().__init__(model, regression)
        self._network = _Network(model)
        self._is_sparse = False

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the kernel is built and serves `module`."""
        return kernel() is not None and bool(linear_layers(module))

    def targets(self, y: torch.Tensor, n_classes: int) -> torch.Tensor:
        """Return one-hot rows, or a column of values, in float32 as the kernel reads them."""
        return super().targets(y, n_classes).to(torch.float32).contiguous()

    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of the rows of `x`, and the parameters in the kernel's order."""
        self._is_sparse = not self.whole and self._network.takes(x)
        if not self._is_sparse:
            return super().begin(x)
        dual = len(x) <= FEW_SAMPLES and self.passes >= MANY_PASSES
        return torch.arange(len(x)), self._network.bind(self.model.vector, dual)

    def end(self) -> None:
        """Leave the model as the steps have made it."""
        if self._is_sparse:
            self._network.kernel.unpack(self.model.vector.numpy())
        else:
            super().end()

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step down the mean loss of rows `x` of the samples."""
        if self._is_sparse:
            self._network.kernel.step(x.numpy(), targets.numpy(), lr, self.regression)
        else:
            super().__call__(x, targets, lr)


class SparseForward:
    """Samples in, outputs of the model out, without a gradient."""

    def __init__(self, model: FlatModule) -> None:
        self._model = model
        self._network = _Network(model)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for `x`, of any shape that the model flattens."""
        output: torch.Tensor
        if not self._network.takes(x):
            output = self._model.module(x)
            return output
        self._network.bind(self._model.vector)
        out = np.empty((len(x), self._network.n_out), dtype=np.float32)
        self._network.kernel.forward(np.arange(len(x)), out)
        return torch.from_numpy(out)
