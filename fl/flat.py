"""A model as one flat vector: the form in which it travels and is averaged.

Parameters come first, then buffers, such as the running statistics of BatchNorm. Buffers that
a module does not save (non-persistent), masks (bool) and tables with infinite entries are
constants of the module: they stay where they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .devices import to_device, to_host

Vector = NDArray[np.floating[Any]]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each parameter and buffer of a module lies in its flat vector."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    buffer_names: tuple[str, ...] = ()
    buffer_shapes: tuple[Shape, ...] = ()

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Read the layout of `module`; parameters must be of one floating type."""
        named = dict(module.named_parameters())
        if not named:
            raise ValueError("model must have parameters to train, got none")
        kinds = sorted({str(p.dtype) for p in named.values()})
        if len(kinds) > 1 or kinds[0] not in ("torch.float32", "torch.float64"):
            raise ValueError(
                f"model must have parameters all of float32 or all of float64, got "
                f"{', '.join(kinds)}"
            )
        buffers = travelling_buffers(module)
        return cls(
            tuple(named),
            tuple(tuple(p.shape) for p in named.values()),
            tuple(buffers),
            tuple(tuple(b.shape) for b in buffers.values()),
        )

    @functools.cached_property
    def bounds(self) -> list[int]:
        """Start of each parameter, then of each buffer, and the total length."""
        shapes = (*self.shapes, *self.buffer_shapes)
        return list(itertools.accumulate(map(math.prod, shapes), initial=0))

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.bounds[-1]

    @property
    def n_parameters(self) -> int:
        """Number of parameters; what follows in the vector are buffers."""
        return self.bounds[len(self.names)]

    @property
    def last_layer(self) -> slice:
        """Where the last layer's weights and biases lie."""
        return self.layer(self.names[-1].rpartition(".")[0])

    def layer(self, name: str) -> slice:
        """Return where the parameters of the layer called `name` lie."""
        mine = [i for i, own in enumerate(self.names) if own.rpartition(".")[0] == name]
        return slice(self.bounds[mine[0]], self.bounds[mine[-1] + 1])

    def split(self, vector: Vector) -> list[Vector]:
        """Return the parameters of `vector` as views, in the module's order and shapes."""
        return list(self.state(vector, buffers=False).values())

    def within(self, module: str | None, vector: Vector) -> list[Vector]:
        """Return the parameters of the sub-module called `module`; None: of the whole module."""
        state = self.state(vector, buffers=False)
        if module is None:
            return list(state.values())
        found = [v for n, v in state.items() if n.startswith(f"{module}.") or n == module]
        if not found:
            layers = list(dict.fromkeys(name.rpartition(".")[0] for name in self.names))
            raise ValueError(f"{module!r} has no parameters to watch; {', '.join(layers)} have")
        return found

    def entries(self) -> list[tuple[str, list[int]]]:
        """Return name and shape of every parameter and buffer, in order."""
        names = (*self.names, *self.buffer_names)
        shapes = (*self.shapes, *self.buffer_shapes)
        return [(name, list(shape)) for name, shape in zip(names, shapes, strict=True)]

    def arrays(self, vector: Vector) -> list[Vector]:
        """Return the parameters and buffers of `vector` as views, in the module's order."""
        return list(self.state(vector).values())

    def state(self, vector: Vector, *, buffers: bool = True) -> dict[str, Vector]:
        """Return the parameters and buffers of `vector` as views, by name."""
        names, shapes = self.names, self.shapes
        if buffers:
            names, shapes = (*names, *self.buffer_names), (*shapes, *self.buffer_shapes)
        pairs = itertools.pairwise(self.bounds[: len(names) + 1])
        return {
            name: vector[a:b].reshape(shape)
            for name, (a, b), shape in zip(names, pairs, shapes, strict=True)
        }

    def positions(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the places in the vector of all entries that one of `words` names.

        A word names an entry if a part of its dotted name begins with it: ``"bn"`` names
        ``layer1.bn2.weight``. ValueError for a word that names nothing.
        """
        found: set[int] = set()
        names = (*self.names, *self.buffer_names)
        for word in words:
            mine = [
                i
                for i, name in enumerate(names)
                if name.startswith(word) or any(p.startswith(word) for p in name.split("."))
            ]
            if not mine:
                raise ValueError(f"no parameter or buffer is called {word!r}: {', '.join(names)}")
            found.update(mine)
        ranges = [np.arange(self.bounds[i], self.bounds[i + 1]) for i in sorted(found)]
        return np.concatenate([np.empty(0, dtype=np.int64), *ranges])


def travelling_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of `module` that are part of the model, by name."""
    saved = module.state_dict(keep_vars=True)
    return {
        name: buffer
        for name, buffer in module.named_buffers()
        if name in saved and buffer.dtype != torch.bool and bool(torch.isfinite(buffer).all())
    }


class FlatModule:
    """A module whose parameters are views into one vector.

    Parameters
    ----------
    module : nn.Module
        Its parameters are re-bound to the vector; it computes as before.
    device : torch.device, optional
        Where it computes. Default: the CPU.
    """

    def __init__(self, module: nn.Module, device: torch.device | None = None) -> None:
        self.layout = Layout.of(module)
        self.device = device or torch.device("cpu")
        self.module = module.to(self.device)
        parameters = list(module.parameters())
        flat = [p.detach().reshape(-1) for p in parameters]
        flat += [module.get_buffer(n).detach().reshape(-1) for n in self.layout.buffer_names]
        dtype = parameters[0].dtype
        #: Parameters, then buffers; `parameters` is its first part.
        self.vector = torch.cat([part.to(dtype) for part in flat])
        self.parameters = self.vector[: self.layout.n_parameters]
        #: The same views without autograd, for steps that write their own gradient.
        self.views: list[torch.Tensor] = []
        bounds = self.layout.bounds[: len(parameters) + 1]
        for p, (a, b) in zip(parameters, itertools.pairwise(bounds), strict=True):
            view = self.vector[a:b].view(p.shape)
            p.data = view
            self.views.append(view)

    def load(self, vector: Vector) -> None:
        """Take over the values of `vector`, in one transfer."""
        self.vector.copy_(to_device(torch.from_numpy(vector), self.device))
        for buffer, values in self._buffers():
            whole = not buffer.dtype.is_floating_point
            buffer.copy_(values.round() if whole else values)

    def export(self) -> Vector:
        """Return a copy of the present values, in one transfer."""
        for buffer, values in self._buffers():
            values.copy_(buffer)
        copy: Vector = to_host(self.vector).copy()
        return copy

    def _buffers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each buffer and its part of the vector; a module may re-bind a buffer."""
        layout = self.layout
        bounds = itertools.pairwise(layout.bounds[len(layout.names) :])
        return [
            (self.module.get_buffer(name), self.vector[a:b].view(shape))
            for name, shape, (a, b) in zip(
                layout.buffer_names, layout.buffer_shapes, bounds, strict=True
            )
        ]
