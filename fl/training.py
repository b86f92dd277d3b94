"""A model and the samples of one client in; the trained model, or its losses, out."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .config import TrainingConfig
from .devices import to_device, to_host
from .flat import FlatModule, Vector
from .objectives import Objective
from .optimiser import OptimiserStep, is_plain
from .own import seeded
from .samples import ClientSamples
from .steps import Step, make_forward, make_step

#: Samples in one forward pass: fixed, so that results do not depend on the engine, and few
#: enough for a convolution's output to stay in cache.
FORWARD_BATCH = 200


@dataclasses.dataclass(frozen=True)
class Losses:
    """Loss of each sample, and its score in the metric of the run."""

    values: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True)
class Update:
    """What a client sends back.

    Attributes
    ----------
    vector : ndarray
        Its model after local training.
    loss : float or None
        The statistic that the policy asked for, of the model that it received.
    steps : int
        SGD steps made.
    """

    vector: Vector
    loss: float | None
    steps: int


class LocalTrainer:
    """Trains and measures on the samples of any client, with one model in memory.

    Samples and model move to the device once per call, results come back once.

    Parameters
    ----------
    module : nn.Module
        The architecture; its values are overwritten.
    samples : ClientSamples
        All clients' samples, in main memory.
    training : TrainingConfig
        Step length, epochs, batch size, optimiser.
    objective : Objective, optional
        Loss and metric. Default: those of the samples' task.
    device : torch.device, optional
        Default: the CPU.
    draws : bool
        Whether the module may draw random numbers while it trains, as dropout does: they are
        then seeded for each client and round.
    """

    def __init__(
        self,
        module: nn.Module,
        samples: ClientSamples,
        training: TrainingConfig,
        objective: Objective | None = None,
        device: torch.device | None = None,
        draws: bool = False,
    ) -> None:
        self.model = FlatModule(module, device)
        self.samples = samples
        self.training = training
        self.objective = objective or Objective(samples.task)
        self.step: Step
        if is_plain(training):
            self.step = make_step(self.model, samples.regression, self.objective)
        else:
            self.step = OptimiserStep(self.model, self.objective, training)
        self._forward = make_forward(self.model)
        self._draws = draws
        # BatchNorm has no variance to estimate from one sample, and raises.
        norms = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
        self._least = 2 if any(norms) else 1

    def train(
        self,
        vector: Vector,
        client: int,
        stream: np.random.SeedSequence,
        mu: float = 0.0,
        statistic: str | None = None,
        shift: Vector | None = None,
        lr: float | None = None,
    ) -> Update:
        """Run local SGD from `vector`, the model received, on the samples of `client`.

        `stream` decides the order of the samples in each epoch; `mu` is the weight of
        FedProx's proximal term, anchored at `vector`; `statistic`, "mean" or "rms", is the
        loss of the received model over the training samples to report; `shift` is added to
        every gradient, as SCAFFOLD and FedDyn do; `lr` is the step length, by default that of
        the settings.
        """
        device = self.model.device
        begin, end = self.samples.train_range(client)
        self.model.load(vector)
        x, y = self._moved("train", begin, end)
        received = None if statistic is None else self._scored(x, y)
        self.model.module.train()
        targets = self.step.targets(y, self.samples.n_classes)
        self.step.whole = shift is not None
        self.step.passes = 0 if mu or shift is not None else self.training.epochs
        x, flat = self.step.begin(x)
        added = None
        if shift is not None:
            added = to_device(torch.tensor(shift, dtype=flat.dtype), device)[: flat.numel()]
        rng, lr = np.random.default_rng(stream), self.training.lr if lr is None else lr
        with seeded(_child(stream), device) if self._draws else nullcontext():
            steps = self._descend(x, targets, flat, rng, mu, lr, added)
        self.step.end()
        loss = None
        if received is not None and statistic is not None:
            loss = summarise(to_host(received)[0], statistic)
        return Update(self.model.export(), loss, steps)

    def _descend(
        self,
        x: torch.Tensor,
        targets: torch.Tensor,
        flat: torch.Tensor,
        rng: np.random.Generator,
        mu: float,
        lr: float,
        shift: torch.Tensor | None,
    ) -> int:
        size, epochs = self.training.batch_size, self.training.epochs
        anchor = flat.clone() if mu else None
        shuffled, shuffled_targets = torch.empty_like(x), torch.empty_like(targets)
        orders = np.stack([rng.permutation(len(x)) for _ in range(epochs)])
        steps = 0
        for order in to_device(torch.from_numpy(orders), x.device):
            torch.index_select(x, 0, order, out=shuffled)
            torch.index_select(targets, 0, order, out=shuffled_targets)
            for a in range(0, len(x), size):
                if len(x) - a < self._least:
                    break  # the last batch is too small for this module
                drift = None if anchor is None else flat - anchor
                inputs, wanted = shuffled[a : a + size], shuffled_targets[a : a + size]
                if isinstance(self.step, OptimiserStep):
                    self.step.descend(inputs, wanted, lr, drift, mu, shift)
                else:
                    self.step(inputs, wanted, lr)
                    if drift is not None:
                        # w - lr * (gradient + mu * (w - anchor)), both at the same w.
                        flat.sub_(drift, alpha=lr * mu)
                    if shift is not None:
                        flat.sub_(shift, alpha=lr)
                steps += 1
        return steps

    def measure(self, vector: Vector, split: str, begin: int, end: int) -> Losses:
        """Return loss and score of `vector` on samples ``begin .. end - 1`` of a split."""
        self.model.load(vector)
        return Losses(*to_host(self._scored(*self._moved(split, begin, end))))

    def _moved(self, split: str, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples of a split on the device."""
        x, y = self.samples.split(split)
        device = self.model.device
        return to_device(x[begin:end], device), to_device(y[begin:end], device)

    @torch.no_grad()
    def _scored(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return losses and scores of samples by the present model, shape (2, n), on its device."""
        self.model.module.eval()
        found = [x.new_empty(2, 0, dtype=torch.float32)]
        for a in range(0, len(x), FORWARD_BATCH):
            output = self._forward(x[a : a + FORWARD_BATCH])
            pair = self.objective.each(output, y[a : a + FORWARD_BATCH])
            found.append(torch.stack([part.to(torch.float32) for part in pair]))
        return torch.cat(found, dim=1)


def _child(stream: np.random.SeedSequence) -> np.random.SeedSequence:
    """Return the seed of what a module draws itself, apart from the order of samples."""
    return np.random.SeedSequence(stream.entropy, spawn_key=(*stream.spawn_key, 0))


def summarise(values: np.ndarray, statistic: str) -> float:
    """Return the mean or the root mean square of per-sample losses."""
    exact = values.astype(np.float64)
    if statistic == "mean":
        return float(exact.mean())
    if statistic == "rms":
        return float(np.sqrt(np.square(exact).mean()))
    raise ValueError(f"statistic must be 'mean' or 'rms', got {statistic!r}")
