"""A model as one flat vector: the form in which it travels and is averaged."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each parameter of a module lies in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Read the layout of `module`; a module with buffers is refused."""
        buffers = [name for name, _ in module.named_buffers()]
        if buffers:
            raise ValueError(
                f"module must keep all its state in parameters, got the buffer {buffers[0]!r}: "
                "running statistics cannot be averaged like weights"
            )
        named = list(module.named_parameters())
        return cls(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))

    @functools.cached_property
    def bounds(self) -> list[int]:
        """Start of each parameter, and the total length."""
        return list(itertools.accumulate(map(math.prod, self.shapes), initial=0))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.bounds[-1]

    @property
    def last_layer(self) -> slice:
        """Where the last layer's weights and biases lie."""
        layer = self.names[-1].rpartition(".")[0]
        first = next(i for i, name in enumerate(self.names) if name.rpartition(".")[0] == layer)
        return slice(self.bounds[first], self.size)

    def split(self, vector: Vector) -> list[Vector]:
        """Return the parameters of `vector` as views, in the module's order and shapes."""
        pairs = itertools.pairwise(self.bounds)
        return [
            vector[a:b].reshape(shape) for (a, b), shape in zip(pairs, self.shapes, strict=True)
        ]


class FlatModule:
    """A module whose parameters are views into one vector.

    Parameters
    ----------
    module : nn.Module
        Its parameters are re-bound to the vector; it computes as before.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = Layout.of(module)
        parameters = list(module.parameters())
        self.vector = torch.cat([p.detach().reshape(-1) for p in parameters])
        #: The same views without autograd, for steps that write their own gradient.
        self.views: list[torch.Tensor] = []
        for p, (a, b) in zip(parameters, itertools.pairwise(self.layout.bounds), strict=True):
            view = self.vector[a:b].view(p.shape)
            p.data = view
            self.views.append(view)

    def load(self, vector: Vector) -> None:
        """Take over the values of `vector`."""
        self.vector.copy_(torch.from_numpy(vector))

    def export(self) -> Vector:
        """Return a copy of the present values."""
        copy: Vector = self.vector.numpy().copy()
        return copy
