"""A federation in, tensors ordered by client out: each client is one slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from .data import Federation


TENSORS = ("x_train", "y_train", "x_test", "y_test")


@dataclasses.dataclass(frozen=True)
class ClientSamples:
    """Tensors of both splits; client k owns rows ``starts[k] .. starts[k + 1] - 1``.

    Starts are int64 of shape (n_clients + 1,); `n_classes` is 0 in regression; `task` is one of
    `fl.objectives.TASKS`, by default what `n_classes` says.
    """

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    train_starts: np.ndarray
    test_starts: np.ndarray
    n_classes: int
    task: str = ""

    def __post_init__(self) -> None:
        if not self.task:
            task = "classification" if self.n_classes else "regression"
            object.__setattr__(self, "task", task)

    @classmethod
    def of(cls, federation: Federation) -> ClientSamples:
        """Order the samples of `federation` by client."""
        x_train, y_train, train_starts = _ordered(federation, federation.train)
        x_test, y_test, test_starts = _ordered(federation, federation.test)
        starts = train_starts, test_starts
        facts = federation.n_classes, federation.task
        return cls(x_train, y_train, x_test, y_test, *starts, *facts)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> ClientSamples:
        """Build the samples from what `arrays` returned."""
        tensors = {name: torch.from_numpy(arrays[name]) for name in TENSORS}
        facts = {"n_classes": int(arrays["n_classes"]), "task": str(arrays["task"])}
        return cls(**{**arrays, **tensors, **facts})

    def arrays(self) -> dict[str, Any]:
        """Return all fields as arrays and plain values, to be sent to another process."""
        return {**vars(self), **{name: getattr(self, name).numpy() for name in TENSORS}}

    @property
    def regression(self) -> bool:
        """Whether targets are values, not classes."""
        return self.task == "regression"

    @property
    def n_clients(self) -> int:
        """Number of clients K."""
        return len(self.train_starts) - 1

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x_train.shape[1:])

    def train_range(self, client: int) -> tuple[int, int]:
        """Return the first training row of `client`, and the one after its last."""
        return int(self.train_starts[client]), int(self.train_starts[client + 1])

    def split(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of ``"train"`` or ``"test"``."""
        if name == "train":
            return self.x_train, self.y_train
        if name == "test":
            return self.x_test, self.y_test
        raise ValueError(f"name must be 'train' or 'test', got {name!r}")


def _ordered(
    federation: Federation, parts: tuple[np.ndarray, ...]
) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    order = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return torch.from_numpy(federation.x[order]), torch.from_numpy(federation.y[order]), starts
