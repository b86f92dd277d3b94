"""Gradients in, steps of SGD with momentum, weight decay and clipping out; rates by round.

`OptimiserStep` makes the step of `torch.optim.SGD`; `rate` is the step length of a round.
"""

from __future__ import annotations

import math

import torch

from .config import TrainingConfig
from .flat import FlatModule
from .objectives import Objective
from .steps import AutogradStep


class OptimiserStep(AutogradStep):
    """Steps ``v <- momentum v + g + decay w``, ``w <- w - lr v``; v starts at 0 on each client.

    The gradient g is scaled down to a norm of at most `clip_norm` before decay is added, as by
    `torch.nn.utils.clip_grad_norm_`.
    """

    def __init__(self, model: FlatModule, objective: Objective, training: TrainingConfig) -> None:
        super().__init__(model, objective=objective)
        self.training = training
        self._velocity: list[torch.Tensor] | None = None

    def begin(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the steps of a client, whose velocity is 0."""
        self._velocity = None
        return super().begin(x)

    def descend(
        self,
        x: torch.Tensor,
        targets: torch.Tensor,
        lr: float,
        drift: torch.Tensor | None = None,
        mu: float = 0.0,
        shift: torch.Tensor | None = None,
    ) -> None:
        """Move the model one step, with ``mu * drift + shift``, flat, added to the gradient."""
        gradients = list(self.gradients(x, targets))
        for extra, scale in ((drift, mu), (shift, 1.0)):
            if extra is not None:
                torch._foreach_add_(gradients, self._parts(extra), alpha=scale)
        if self.training.clip_norm is not None:
            self._clip(gradients, self.training.clip_norm)
        if self.training.weight_decay:
            torch._foreach_add_(gradients, self.views, alpha=self.training.weight_decay)
        if self.training.momentum:
            if self._velocity is None:
                self._velocity = [gradient.clone() for gradient in gradients]
            else:
                torch._foreach_mul_(self._velocity, self.training.momentum)
                torch._foreach_add_(self._velocity, gradients)
            gradients = self._velocity
        torch._foreach_add_(self.views, gradients, alpha=-lr)

    def __call__(self, x: torch.Tensor, targets: torch.Tensor, lr: float) -> None:
        """Move the model one step."""
        self.descend(x, targets, lr)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of a flat vector that belong to trained parameters."""
        sizes = [view.numel() for view in self.model.views]
        shaped = [
            part.view(view.shape)
            for part, view in zip(torch.split(flat, sizes), self.model.views, strict=True)
        ]
        trained = [p.requires_grad for p in self.model.module.parameters()]
        return [part for part, is_trained in zip(shaped, trained, strict=True) if is_trained]

    @staticmethod
    def _clip(gradients: list[torch.Tensor], bound: float) -> None:
        norms = torch._foreach_norm(gradients)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        # A tensor, not a number: reading it would wait for the device.
        torch._foreach_mul_(gradients, (bound / (norm + 1e-6)).clamp(max=1.0))


def is_plain(training: TrainingConfig) -> bool:
    """Whether steps are those of plain SGD."""
    return not training.momentum and not training.weight_decay and training.clip_norm is None


def rate(training: TrainingConfig, t: int, rounds: int) -> float:
    """Return the step length of round `t` (from 0) of a run of `rounds` rounds.

    See `fl.config.TrainingConfig` for the schedules; they are those of `torch.optim.lr_scheduler`,
    with one step a round.
    """
    options, lr = training.schedule_options, training.lr
    share = t / rounds
    if training.schedule == "step":
        return lr * float(options.get("factor", 0.1)) ** (t // int(options.get("every", 30)))
    if training.schedule == "exponential":
        return lr * float(options.get("factor", 0.99)) ** t
    final = float(options.get("final", 0.0)) * lr
    if training.schedule == "linear":
        return lr + (final - lr) * share
    if training.schedule == "cosine":
        return final + (lr - final) * (1.0 + math.cos(math.pi * share)) / 2.0
    return lr
