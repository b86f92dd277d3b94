"""Handwritten digits, 8 x 8: scikit-learn's embedded data set, the default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .federation import Samples


def read_digits(files: Mapping[str, Path]) -> Samples:
    """Return the 1797 images as ``(n, 1, 8, 8)`` values 0 .. 16; `files` is not used."""
    from sklearn.datasets import load_digits  # half a second: only when asked for

    x, y = load_digits(return_X_y=True)
    return Samples(x.reshape(-1, 1, 8, 8), y.astype(np.int64), n_classes=10)
