"""Less revealing features: rows of features in, noisy or coarse rows out.

A row of head features (`cvrcore.head`) tells the labels of a client. A policy needs less: near
rows for clients that are alike. `Blur` adds noise to a row or keeps only a coarse part of it. It
belongs where the row is computed, on the client; see docs/privacy.md for what is left of the
labels and what it costs.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from .validation import Float, check_choice, check_count, check_number

COARSE: Final = ("none", "sign", "top")


class Blur:
    """Noise and coarseness of features; rows are scaled to length 1 before and after.

    Parameters
    ----------
    noise : float, default=0
        Standard deviation of the Gaussian noise that is added to each number of a row of
        length 1. It is drawn once for each client: a client that reports again reveals no
        more, where the mean over fresh noise would tell its row.
    coarse : {"none", "sign", "top"}
        Keep of each number its sign; or of the row the position of its largest number alone.
        Noise comes first.
    seed : int
        Of the noise. Only the clients may know it.

    Examples
    --------
    >>> rows = np.array([[0.6, -0.8, 0.0]])
    >>> Blur(coarse="top")(rows, [0])
    array([[1., 0., 0.]])
    >>> Blur(noise=0.1, seed=3)(rows, [0]).round(2)
    array([[ 0.61, -0.8 ,  0.03]])
    """

    def __init__(self, noise: float = 0.0, coarse: str = "none", seed: int = 0) -> None:
        self.noise = check_number(noise, "noise", minimum=0)
        self.coarse = check_choice(coarse, "coarse", COARSE)
        self.seed = check_count(seed, "seed", minimum=0)

    @property
    def is_identity(self) -> bool:
        """Whether rows stay as they are."""
        return self.noise == 0 and self.coarse == "none"

    def __call__(self, rows: ArrayLike, clients: ArrayLike) -> Float:
        """Return the rows of `clients` as a server may see them; a row of zeros stays one."""
        values = np.array(rows, dtype=np.float64)
        if values.ndim != 2:
            raise ValueError(f"rows must be a matrix, got shape {values.shape}")
        ids = np.asarray(clients, dtype=np.int64)
        if ids.shape != (len(values),):
            raise ValueError(f"clients must have shape ({len(values)},), got {ids.shape}")
        if (ids < 0).any():
            raise ValueError(f"clients must be at least 0, got {ids.min()}")
        if self.is_identity:
            return values
        told = values.any(axis=1)
        values[told] = _scaled(values[told])
        if self.noise:
            for client, row in zip(ids[told], np.flatnonzero(told), strict=True):
                rng = np.random.default_rng([self.seed, int(client)])
                values[row] += self.noise * rng.standard_normal(values.shape[1])
        if self.coarse == "sign":
            values[told] = np.sign(values[told])
        elif self.coarse == "top":
            best = values[told].argmax(axis=1)
            values[told] = np.eye(values.shape[1])[best]
        values[told] = _scaled(values[told])
        return values


def _scaled(rows: Float) -> Float:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))
