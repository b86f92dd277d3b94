"""Models as vectors: lists of arrays in, flat float vectors out, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..validation import Float, Ids, check_finite
from .base import Arrays


class FlatLayout:
    """The shapes and dtypes of a model, by which it becomes one vector and an array list again.

    Parameters
    ----------
    model : list of arrays
        Any model of that kind; only shapes and dtypes are read.
    """

    def __init__(self, model: Sequence[NDArray[Any]]) -> None:
        self._kinds = [(array.shape, array.dtype) for array in model]
        self.size = sum(array.size for array in model)

    def flatten(self, model: Sequence[NDArray[Any]]) -> Float:
        """Return the model as one vector: float32 if all its arrays are, else float64."""
        single = all(dtype == np.float32 for _, dtype in self._kinds)
        parts = [np.asarray(a, dtype=np.float32 if single else np.float64).ravel() for a in model]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def unflatten(self, vector: Float) -> Arrays:
        """Return the vector as arrays; integer arrays are rounded."""
        arrays, start = [], 0
        for shape, dtype in self._kinds:
            stop = start + int(np.prod(shape))
            part = vector[start:stop].reshape(shape)
            arrays.append((np.rint(part) if dtype.kind in "iu" else part).astype(dtype))
            start = stop
        return arrays

    def differences(
        self, updates: Sequence[Sequence[NDArray[Any]]], clients: Ids, base: Float
    ) -> Float:
        """Return each client's change of the model, one float32 row each; refuse NaN and Inf."""
        rows = np.empty((len(updates), self.size), dtype=np.float32)
        for client, update, row in zip(clients, updates, rows, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):  # refused on the next line
                np.subtract(self.flatten(update), base, out=row, casting="same_kind")
            check_finite(row, f"updates of client {client}")
        return rows
