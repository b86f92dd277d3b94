"""A batch in, one step of plain SGD out, in place on a flat model.

Four kinds. `DenseStep` writes out the gradient of a stack of linear layers and adds it to the
weights inside the same matrix product; `SparseStep` (sparse_step.py) skips the zeros of samples;
`ConvStep` (conv_step.py) has convolutions with pooling before linear layers; `AutogradStep` serves
every other module and every loss. All make the step of `torch.optim.SGD` without momentum or
decay; `fl.optimiser` has those.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

from . import products
from .flat import FlatModule
from .objectives import Objective
from .recurrent import WrittenOutGRU

#: Columns are kept in multiples of this: a cache line of float32.
ALIGN = 16
#: Share of the columns above which leaving the others out does not pay.
WORTH_DROPPING = 0.9


class Step(abc.ABC):
    """SGD steps between `begin` and `end`; `regression` is squared error, not cross entropy.

    Set before `begin`: `whole` if the caller moves every parameter between steps, also those
    that get no gradient; `passes`, how often the steps go through all samples, if the caller
    moves no parameter between steps.
    """

    whole: bool = False
    passes: int = 0

    def __init__(self, model: FlatModule, regression: bool) -> None:
        self.model = model
        self.regression = regression

    @abc.abstractmethod
    def targets(self, y: torch.Tensor, n_classes: int) -> torch.Tensor:
        """Return `y` in the form that calls expect, one row per sample."""

    @abc.abstractmethod
    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare steps on samples of `x`.

        Returns the samples in the form that calls expect, and the parameters that the steps
        will move, flat and writable.
        """

    @abc.abstractmethod
    def end(self) -> None:
        """Leave the model as the steps have made it."""

    @abc.abstractmethod
    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step down the mean loss of the batch."""


class AutogradStep(Step):
    """Gradient by autograd: any module.

    Images are laid out with their channels last, which convolution and pooling prefer.
    """

    def __init__(
        self, model: FlatModule, regression: bool = False, objective: Objective | None = None
    ) -> None:
        super().__init__(model, regression)
        self.objective = objective or Objective("regression" if regression else "classification")
        self.forward = pool_first(model.module)
        # A loss of the user's own might ask for second derivatives, which are not written out.
        written_out = self.objective.is_default and WrittenOutGRU.serves(model.module)
        self._mode = WrittenOutGRU() if written_out else nullcontext()
        pairs = zip(model.module.parameters(), model.views, strict=True)
        #: Parameters that are trained, and the views that steps move.
        self.parameters, self.views = [], []
        for parameter, view in pairs:
            if parameter.requires_grad:
                self.parameters.append(parameter)
                self.views.append(view)

    def targets(self, y: torch.Tensor, n_classes: int) -> torch.Tensor:
        """Return `y` as it is."""
        return y

    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `x` with channels last, and the model's own vector."""
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1).contiguous()
        return x, self.model.parameters

    def end(self) -> None:
        """Do nothing: steps write to the model itself."""

    def gradients(self, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradient of the mean loss of a batch, one array per trained parameter."""
        with self._mode:
            output = self.forward(x.permute(0, 3, 1, 2) if x.ndim == 4 else x)
        loss = self.objective.loss(output, targets)
        return torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step down the mean loss of the batch."""
        torch._foreach_add_(self.views, self.gradients(x, targets), alpha=-lr)


class DenseStep(Step):
    """Gradient written out: linear layers with ReLU between them.

    An input that is 0 in all samples, like the margin of a digit, adds nothing to the output
    and its weights get no gradient. Steps leave such columns out of the first layer.
    """

    def __init__(self, model: FlatModule, regression: bool) -> None:
        super().__init__(model, regression)
        self._columns: torch.Tensor | None = None
        self._vector = model.vector
        self._use(model.vector, model.views[0].shape[1])

    def _use(self, vector: torch.Tensor, n_inputs: int) -> None:
        """Work on `vector`, whose first layer has `n_inputs` columns."""
        shapes = [view.shape for view in self.model.views]
        shapes[0] = torch.Size([shapes[0][0], n_inputs])
        parts = torch.split(vector, [shape.numel() for shape in shapes])
        views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._vector, self.weights, self.biases = vector, views[0::2], views[1::2]

    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare steps on samples of `x`: find the inputs that are not always 0."""
        x = x.flatten(1)
        first = self.model.views[0]
        if x.device.type != "cpu":  # the search would wait for the device
            self._columns = None
            self._use(self.model.vector, x.shape[1])
            return x, self._vector
        used = torch.from_numpy(x.numpy().any(axis=0))  # five times faster than torch's
        n_used = -(-int(used.sum()) // ALIGN) * ALIGN
        if self.whole or n_used > WORTH_DROPPING * x.shape[1]:
            self._columns = None
            self._use(self.model.vector, x.shape[1])
            return x, self._vector
        # The used ones first, then as many others as make rows of whole cache lines.
        order = torch.argsort(used, descending=True, stable=True)[:n_used]
        self._columns = order.sort().values
        kept = first.index_select(1, self._columns).reshape(-1)
        self._use(torch.cat([kept, self.model.vector[first.numel() :]]), n_used)
        return x.index_select(1, self._columns), self._vector

    def end(self) -> None:
        """Leave the model as the steps have made it: put the columns back."""
        if self._columns is not None:
            first = self.model.views[0]
            first[:, self._columns] = self.weights[0]
            self.model.vector[first.numel() :] = self._vector[self.weights[0].numel() :]

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether `module` is [Flatten,] Linear, (ReLU, Linear)*, every layer with a bias."""
        if type(module) is not nn.Sequential or not _is_plain(module):
            return False
        layers = list(module)
        if layers and type(layers[0]) is nn.Flatten:
            if (layers[0].start_dim, layers[0].end_dim) != (1, -1):
                return False
            layers = layers[1:]
        return len(layers) % 2 == 1 and all(
            (type(layer) is nn.Linear and layer.bias is not None)
            if i % 2 == 0
            else type(layer) is nn.ReLU
            for i, layer in enumerate(layers)
        )

    def targets(self, y: torch.Tensor, n_classes: int) -> torch.Tensor:
        """Return one-hot rows, or a column of values."""
        if self.regression:
            return y.reshape(len(y), -1)
        return one_hot(y, n_classes, self.model.vector.dtype)

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step down the mean loss of the batch."""
        linear_step(self.weights, self.biases, x.flatten(1), targets, lr, self.regression)


def one_hot(y: torch.Tensor, n_classes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return classes as rows of 0 and 1."""
    return F.one_hot(y, n_classes).to(dtype)


def linear_step(
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    x: torch.Tensor,
    targets: torch.Tensor,
    lr: float,
    regression: bool,
    below: bool = False,
) -> torch.Tensor:
    """Move linear layers with ReLU between them one step, in place.

    With `below`, returns the gradient of the loss with respect to `x`.
    """
    inputs = [x]
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs.append(products.linear(inputs[-1], weight, bias).relu_())
    output = products.linear(inputs[-1], weights[-1], biases[-1])

    # Gradient of the mean loss with respect to the output.
    if regression:
        delta = output.sub_(targets).mul_(2.0 / targets.numel())
    else:
        delta = torch.softmax(output, 1).sub_(targets).mul_(1.0 / len(targets))
    for i in reversed(range(len(weights))):
        # The layer below needs this weight as it was: its gradient comes first.
        next_delta = products.product(delta, weights[i]) if i or below else delta
        if i:
            next_delta = torch.ops.aten.threshold_backward(next_delta, inputs[i], 0.0)
        products.descend(weights[i], delta, inputs[i], lr)
        biases[i].sub_(delta.sum(0), alpha=lr)
        delta = next_delta
    return delta


def pool_first(module: nn.Module) -> nn.Module:
    """Return `module` with each ReLU that precedes a max-pool put after it.

    The same function with the same gradient, since both are monotone, but the ReLU sees a
    quarter of the numbers. Layers are shared with `module`; other modules are returned unchanged.
    """
    if type(module) is not nn.Sequential or not _is_plain(module):
        return module
    layers = list(module)
    for i in range(len(layers) - 1):
        if type(layers[i]) is nn.ReLU and type(layers[i + 1]) is nn.MaxPool2d:
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return nn.Sequential(*layers)


def make_step(model: FlatModule, regression: bool, objective: Objective | None = None) -> Step:
    """Return the fastest step that fits the module of `model`, and its loss."""
    from .conv_step import ConvStep  # these build on the steps above
    from .sparse_step import SparseStep

    written_out = objective is None or (objective.is_default and objective.task != "next-token")
    if written_out and _is_plain(model.module):
        for kind in (SparseStep, DenseStep, ConvStep):
            if kind.fits(model.module):
                return kind(model, regression)
    return AutogradStep(model, regression, objective)


def make_forward(model: FlatModule) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the fastest way from samples to outputs of `model` without a gradient."""
    from .conv_step import ConvForward, ConvStep
    from .sparse_step import SparseForward, SparseStep

    if _is_plain(model.module):
        if ConvStep.fits(model.module):
            return ConvForward(model)
        if SparseStep.fits(model.module):
            return SparseForward(model)
    module = pool_first(model.module)
    if not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return module
    return lambda x: module(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)


def _is_plain(module: nn.Module) -> bool:
    """Whether all parameters are trained, and no hook watches a layer."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(p.requires_grad for p in module.parameters()) and not any(
        getattr(layer, name) for layer in module.modules() for name in hooks
    )
