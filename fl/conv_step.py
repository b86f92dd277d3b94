"""A batch in, one step of plain SGD out: convolutions with pooling, then linear layers.

`ConvStep` gives blocks of [3 x 3 convolution, ReLU, 2 x 2 max-pool] to a compiled kernel and makes
the linear layers' step as `DenseStep` does; `ConvForward` is the model without a gradient. Where
the kernel is not built, or a module is anything else, `AutogradStep` serves.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from cvrcore.kernels.dispatch import compiled

from .flat import FlatModule
from .steps import AutogradStep, Step, linear_step, one_hot, pool_first

#: Limits of the kernel.
MOST_BLOCKS, MOST_CHANNELS = 16, 4000


def kernel() -> ModuleType | None:
    """Return the compiled kernel, or None where it cannot serve."""
    return compiled("convolution")


def n_blocks(module: nn.Module) -> int:
    """Return how many blocks `module` begins with if it is one that the kernel serves, else 0.

    Such a module is a plain Sequential: blocks of a 3 x 3 convolution that keeps the size, ReLU
    and a 2 x 2 max-pool, the last two in either order; then Flatten, Linear, (ReLU, Linear)*, each
    Linear with a bias; all parameters float32, on the CPU and trained.
    """
    if type(module) is not nn.Sequential:
        return 0
    layers = list(module)
    n_weights = sum(type(layer) in (nn.Conv2d, nn.Linear) for layer in layers)
    if len({id(p) for p in module.parameters() if p.ndim > 1}) != n_weights:
        return 0  # a layer stands twice in the stack
    n = 0
    while _is_block(layers[3 * n : 3 * n + 3]):
        n += 1
    if not 1 <= n <= MOST_BLOCKS or not _is_head(layers[3 * n :]):
        return 0
    plain = all(
        p.dtype == torch.float32 and p.device.type == "cpu" and p.requires_grad
        for p in module.parameters()
    )
    return n if plain else 0


def _is_block(layers: list[nn.Module]) -> bool:
    if len(layers) < 3 or {type(layer) for layer in layers[1:]} != {nn.ReLU, nn.MaxPool2d}:
        return False
    conv: Any = layers[0]
    pool: Any = layers[1] if type(layers[1]) is nn.MaxPool2d else layers[2]
    return (
        type(conv) is nn.Conv2d
        and (conv.kernel_size, conv.stride, conv.dilation) == ((3, 3), (1, 1), (1, 1))
        and (conv.padding in ((1, 1), "same"))
        and (conv.padding_mode, conv.groups) == ("zeros", 1)
        and all(_pair(size) == (2, 2) for size in (pool.kernel_size, pool.stride))
        and (_pair(pool.padding), _pair(pool.dilation)) == ((0, 0), (1, 1))
        and not (pool.ceil_mode or pool.return_indices)
        and max(conv.in_channels, conv.out_channels) <= MOST_CHANNELS
    )


def _is_head(layers: list[nn.Module]) -> bool:
    """Whether `layers` are Flatten, Linear, (ReLU, Linear)*, every Linear with a bias."""
    if len(layers) < 2 or len(layers) % 2 or type(layers[0]) is not nn.Flatten:
        return False
    if (layers[0].start_dim, layers[0].end_dim) != (1, -1):
        return False
    return all(
        type(layer) is nn.ReLU if i % 2 else type(layer) is nn.Linear and layer.bias is not None
        for i, layer in enumerate(layers[1:])
    )


def _pair(size: Any) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


class _Stack:
    """The kernel's working memory for one model, made anew when the size of images changes."""

    def __init__(self, model: FlatModule) -> None:
        self.model = model
        layers: list[Any] = list(cast(nn.Sequential, model.module))
        self.n_blocks = n_blocks(model.module)
        self.convolutions = layers[0 : 3 * self.n_blocks : 3]
        self._in_features = layers[3 * self.n_blocks + 1].in_features
        self._image: tuple[int, ...] = ()
        self._kernel: Any = None

    def serves(self, x: torch.Tensor) -> bool:
        """Prepare for images like `x`; False if they do not fit the model or the kernel."""
        image = tuple(x.shape[1:])
        if x.dtype != torch.float32 or len(image) != 3 or x.device.type != "cpu":
            return False
        if image != self._image:
            channels = [image[0], *(conv.out_channels for conv in self.convolutions)]
            self._kernel = None
            module = kernel()
            if (
                module is not None
                and image[0] == self.convolutions[0].in_channels
                and min(image[1:]) >= 2**self.n_blocks
            ):
                stack = module.ConvStack(channels, image[1], image[2])
                if stack.n_features == self._in_features:
                    self._kernel = stack
                    stack.bind(*self._parameters())
            self._image = image
        return self._kernel is not None

    def _parameters(self) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        weights, biases = [], []
        for conv in self.convolutions:  # views into the model's vector: their place is fixed
            weights.append(conv.weight.detach().numpy())
            biases.append(None if conv.bias is None else conv.bias.detach().numpy())
        return weights, biases

    def forward(self, x: np.ndarray, rows: np.ndarray, keep: bool) -> torch.Tensor | None:
        """Return the features of samples `rows`, or None if a value is not finite."""
        features = np.empty((len(rows), self._kernel.n_features), dtype=np.float32)
        finite = self._kernel.forward(x, rows, features, keep)
        return torch.from_numpy(features) if finite else None

    def backward(self, delta: torch.Tensor, lr: float) -> None:
        self._kernel.backward(delta.numpy(), lr)


class ConvStep(Step):
    """Gradient of blocks by the kernel, of linear layers written out.

    Samples stay where they are: calls take row numbers. A batch with a value that is not finite
    takes `AutogradStep`, since the kernel's transforms would turn infinity into NaN.
    """

    def __init__(self, model: FlatModule, regression: bool) -> None:
        super().__init__(model, regression)
        self._stack = _Stack(model)
        self._slow = AutogradStep(model, regression)
        self._x: torch.Tensor | None = None
        n_views = sum(1 + (conv.bias is not None) for conv in self._stack.convolutions)
        self._weights = model.views[n_views::2]
        self._biases = model.views[n_views + 1 :: 2]

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether the kernel is built and serves `module`."""
        return n_blocks(module) > 0 and kernel() is not None

    def targets(self, y: torch.Tensor, n_classes: int) -> torch.Tensor:
        """Return one-hot rows, or a column of values."""
        if self.regression:
            return y.reshape(len(y), -1)
        return one_hot(y, n_classes, self.model.vector.dtype)

    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the numbers of the rows of `x`, and the model's own vector."""
        if not self._stack.serves(x):
            self._x = None
            return self._slow.begin(x)
        self._x = x.contiguous()
        return torch.arange(len(x)), self.model.vector

    def end(self) -> None:
        """Let go of the samples."""
        self._x = None

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step down the mean loss of rows `x` of the samples."""
        if self._x is None:
            return self._autograd(x, targets, lr)
        samples = self._x.flatten(1).numpy()
        features = self._stack.forward(samples, x.numpy(), keep=True)
        if features is None:
            images = self._x.index_select(0, x)
            return self._autograd(images.permute(0, 2, 3, 1), targets, lr)
        weights, biases = self._weights, self._biases
        delta = linear_step(weights, biases, features, targets, lr, self.regression, below=True)
        self._stack.backward(delta, lr)
        return None

    def _autograd(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        self._slow(x, targets if self.regression else targets.argmax(1), lr)


class ConvForward:
    """Images in, outputs of the model out, without a gradient."""

    def __init__(self, model: FlatModule) -> None:
        self._stack = _Stack(model)
        self._slow = pool_first(model.module)
        layers = list(cast(nn.Sequential, model.module))
        self._linear = nn.Sequential(*layers[3 * self._stack.n_blocks + 1 :])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs for `x`, of shape (n, channels, height, width)."""
        output: torch.Tensor
        if self._stack.serves(x):
            samples = x.contiguous().flatten(1).numpy()
            features = self._stack.forward(samples, np.arange(len(x)), keep=False)
            if features is not None:
                output = self._linear(features)
                return output
        output = self._slow(x.contiguous(memory_format=torch.channels_last))
        return output
