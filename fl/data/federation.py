"""What every data set becomes: samples, and the clients that hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Array = NDArray[Any]


class DataError(RuntimeError):
    """Data that cannot be found, fetched or trusted; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set before its clients are known, or with the clients it came with.

    Parameters
    ----------
    x : ndarray of shape (n_samples, ...)
        Raw pixels (uint8) or features (float32).
    y : ndarray of shape (n_samples,)
        Labels, or regression targets.
    n_classes : int
        0 for regression.
    record : dict
        Choices taken while reading or generating, JSON-able.
    clients : tuple of ndarray, default=()
        Indices of each client, for data generated client by client.
    """

    x: Array
    y: Array
    n_classes: int
    record: dict[str, Any] = field(default_factory=dict)
    clients: tuple[Ids, ...] = ()


@dataclass(frozen=True, eq=False)
class Federation:
    """Samples and, for each client, which of them it trains and tests on.

    Parameters
    ----------
    name : str
        Name of the data set.
    x : float32 ndarray of shape (n_samples, ...)
        Scaled inputs; images are ``(n_samples, channels, height, width)``.
    y : ndarray of shape (n_samples,)
        int64 labels, or float32 targets for regression.
    n_classes : int
        0 for regression.
    train, test : tuple of int64 ndarray
        Per client, indices into `x`, ascending. Either may be empty.
    record : dict
        Every choice taken where the paper is silent, JSON-able.
    """

    name: str
    x: Array
    y: Array
    n_classes: int
    train: tuple[Ids, ...]
    test: tuple[Ids, ...]
    record: dict[str, Any]

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"y must have {len(self.x)} entries like x, got {len(self.y)}")
        if len(self.train) != len(self.test):
            raise ValueError(
                f"test must list {len(self.train)} clients like train, got {len(self.test)}"
            )

    @property
    def n_clients(self) -> int:
        """Number of clients K, those without data included."""
        return len(self.train)

    @property
    def sizes(self) -> Ids:
        """Training samples of each client, n_k, of shape (n_clients,)."""
        return np.array([len(ids) for ids in self.train], dtype=np.int64)

    @property
    def label_counts(self) -> Ids:
        """Training samples of each client and class, of shape (n_clients, n_classes)."""
        counts = np.zeros((self.n_clients, self.n_classes), dtype=np.int64)
        if self.n_classes:
            for k, ids in enumerate(self.train):
                counts[k] = np.bincount(self.y[ids], minlength=self.n_classes)
        return counts
