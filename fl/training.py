"""A model and the samples of one client in; the trained model, or its losses, out."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .config import TrainingConfig
from .flat import FlatModule, Vector
from .samples import ClientSamples
from .steps import make_forward, make_step

#: Samples in one forward pass: fixed, so that results do not depend on the engine, and few
#: enough for a convolution's output to stay in cache.
FORWARD_BATCH = 200


@dataclasses.dataclass(frozen=True)
class Losses:
    """Loss of each sample and, in classification, whether the class was hit."""

    values: np.ndarray
    hits: np.ndarray


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

    Parameters
    ----------
    module : nn.Module
        The architecture; its values are overwritten.
    samples : ClientSamples
        All clients' samples.
    training : TrainingConfig
        Step length, epochs, batch size.
    """

    def __init__(self, module: nn.Module, samples: ClientSamples, training: TrainingConfig) -> None:
        self.model = FlatModule(module)
        self.samples = samples
        self.training = training
        self.step = make_step(self.model, samples.regression)
        self._forward = make_forward(self.model)

    def train(
        self,
        vector: Vector,
        client: int,
        stream: np.random.SeedSequence,
        mu: float = 0.0,
        statistic: str | None = None,
        shift: Vector | None = None,
    ) -> Update:
        """Run local SGD from `vector`, the model received, on the samples of `client`.

        `stream` decides the order of the samples in each epoch; `mu` is the weight of
        FedProx's proximal term, anchored at `vector`; `statistic`, "mean" or "rms", is the
        loss of the received model over the training samples to report; `shift` is added to
        every gradient, as SCAFFOLD and FedDyn do.
        """
        begin, end = self.samples.train_range(client)
        loss = None
        if statistic is not None:
            loss = summarise(self.measure(vector, "train", begin, end).values, statistic)
        self.model.load(vector)
        targets = self.step.targets(self.samples.y_train[begin:end], self.samples.n_classes)
        self.step.whole = shift is not None
        x, flat = self.step.begin(self.samples.x_train[begin:end])
        added = None if shift is None else torch.tensor(shift, dtype=flat.dtype)[: flat.numel()]
        steps = self._descend(x, targets, flat, np.random.default_rng(stream), mu, added)
        self.step.end()
        return Update(self.model.export(), loss, steps)

    def _descend(
        self,
        x: torch.Tensor,
        targets: torch.Tensor,
        flat: torch.Tensor,
        rng: np.random.Generator,
        mu: float,
        shift: torch.Tensor | None = None,
    ) -> int:
        lr, size = self.training.lr, self.training.batch_size
        anchor = flat.clone() if mu else None
        shuffled, shuffled_targets = torch.empty_like(x), torch.empty_like(targets)
        steps = 0
        for _ in range(self.training.epochs):
            order = torch.from_numpy(rng.permutation(len(x)))
            torch.index_select(x, 0, order, out=shuffled)
            torch.index_select(targets, 0, order, out=shuffled_targets)
            for a in range(0, len(x), size):
                drift = None if anchor is None else flat - anchor
                self.step(shuffled[a : a + size], shuffled_targets[a : a + size], lr)
                if drift is not None:
                    # w - lr * (gradient + mu * (w - anchor)), both at the same w.
                    flat.sub_(drift, alpha=lr * mu)
                if shift is not None:
                    flat.sub_(shift, alpha=lr)
                steps += 1
        return steps

    @torch.no_grad()
    def measure(self, vector: Vector, split: str, begin: int, end: int) -> Losses:
        """Return the loss of `vector` on samples ``begin .. end - 1`` of a split."""
        self.model.load(vector)
        x, y = self.samples.split(split)
        values = np.empty(end - begin, dtype=np.float32)
        hits = np.zeros(end - begin, dtype=bool)
        for a in range(begin, end, FORWARD_BATCH):
            b = min(a + FORWARD_BATCH, end)
            inputs, wanted = x[a:b], y[a:b]
            output = self._forward(inputs)
            batch = slice(a - begin, b - begin)
            if self.samples.regression:
                wrong = (output.reshape(b - a, -1) - wanted.reshape(b - a, -1)).square_()
                values[batch] = wrong.mean(1).numpy()
            else:
                values[batch] = F.cross_entropy(output, wanted, reduction="none").numpy()
                hits[batch] = (output.argmax(1) == wanted).numpy()
        return Losses(values, hits)


def summarise(values: np.ndarray, statistic: str) -> float:
    """Return the mean or the root mean square of per-sample losses."""
    exact = values.astype(np.float64)
    if statistic == "mean":
        return float(exact.mean())
    if statistic == "rms":
        return float(np.sqrt(np.square(exact).mean()))
    raise ValueError(f"statistic must be 'mean' or 'rms', got {statistic!r}")
