"""Outputs and targets in; the loss to descend, and loss and score of each sample, out.

Three tasks are known by name. ``"classification"`` is cross entropy and accuracy, for outputs
(n, n_classes) and labels (n,). ``"regression"`` is squared error, for outputs of the shape of
the targets. ``"next-token"`` is cross entropy and the share of right tokens, for outputs
(n, length, n_classes) and tokens (n, length), where a token of -100 is padding. A caller's loss
and metric replace those of the task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

TASKS = ("classification", "regression", "next-token")
#: Targets of this value count in neither loss nor metric of next-token prediction.
PADDING = -100

Function = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A function of outputs and targets, its name in records, and which way is better.

    `function` returns one value per sample, of shape (n,); or one value for a batch, and is
    then called sample by sample.

    Examples
    --------
    >>> import fl
    >>> metric = fl.Metric(lambda outputs, targets: outputs.argmax(1) != targets, "error", False)
    >>> config = fl.make_config("digits", rounds=1, n_clients=10, n_select=2, epochs=1)
    >>> fl.run(config, metric=metric).metric
    'error'
    """

    function: Function
    name: str
    higher_is_better: bool = True

    @classmethod
    def of(cls, metric: Metric | Function) -> Metric:
        """Return `metric` with a name; that of a bare callable is its own, higher is better."""
        if isinstance(metric, Metric):
            return metric
        name = getattr(metric, "__name__", type(metric).__name__)
        return cls(metric, name, bool(getattr(metric, "higher_is_better", True)))


class Objective:
    """What a run minimises and reports.

    Parameters
    ----------
    task : {"classification", "regression", "next-token"}
    loss : callable, optional
        Takes outputs and targets of a batch, returns their mean loss, a scalar. Default: that
        of the task.
    metric : Metric or callable, optional
        Default: that of the task.

    Attributes
    ----------
    is_default : bool
        Whether the loss is that of the task.
    """

    def __init__(
        self,
        task: str,
        loss: Function | None = None,
        metric: Metric | Function | None = None,
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
        self.task = task
        self.is_default = loss is None
        self._loss: Function = loss if loss is not None else _LOSSES[task]
        self.metric = Metric.of(metric) if metric is not None else _METRICS[task]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self._loss(self._shaped(output, target), target)

    def each(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and score of each sample, both of shape (n,)."""
        output = self._shaped(output, target)
        losses = _EACH[self.task](output, target) if self.is_default else None
        if losses is None:
            losses = one_by_one(self._loss, output, target)
        if self.metric.function is squared_error and self.is_default:
            return losses, losses
        scores = self.metric.function(output, target)
        if scores.ndim == 0:
            scores = one_by_one(self.metric.function, output, target)
        return losses, scores

    def _shaped(self, output: Tensor, target: Tensor) -> Tensor:
        """Give values of shape (n, 1) the shape (n,) of targets, never a broadcast (n, n)."""
        return output.reshape(target.shape) if self.task == "regression" else output


def one_by_one(function: Function, output: Tensor, target: Tensor) -> Tensor:
    """Return `function` of each sample alone, for one that returns the mean of a batch."""
    rows = [function(output[i : i + 1], target[i : i + 1]) for i in range(len(target))]
    return torch.stack([row.reshape(()) for row in rows]) if rows else output.new_empty(0)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of each sample."""
    n = len(target)
    return (output.reshape(n, -1) - target.reshape(n, -1)).square().mean(1)


def is_hit(output: Tensor, target: Tensor) -> Tensor:
    """Return whether the largest output of each sample is that of its label."""
    return output.argmax(1) == target


def share_of_hits(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of each sequence's tokens that are predicted right."""
    real = target != PADDING
    hits = (output.argmax(-1) == target) & real
    return hits.sum(1) / real.sum(1).clamp(min=1)


def _token_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def _token_losses(output: Tensor, target: Tensor) -> Tensor:
    values = F.cross_entropy(output.transpose(1, 2), target, ignore_index=PADDING, reduction="none")
    return values.sum(1) / (target != PADDING).sum(1).clamp(min=1)


def _class_losses(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


_LOSSES: dict[str, Function] = {
    "classification": F.cross_entropy,
    "regression": F.mse_loss,
    "next-token": _token_loss,
}
_EACH: dict[str, Function] = {
    "classification": _class_losses,
    "regression": squared_error,
    "next-token": _token_losses,
}
_METRICS = {
    "classification": Metric(is_hit, "accuracy"),
    "regression": Metric(squared_error, "mse", higher_is_better=False),
    "next-token": Metric(share_of_hits, "accuracy"),
}
