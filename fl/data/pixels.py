"""Scaling of raw pixels, in one pass over one new float32 array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def to_unit(pixels: NDArray[Any], top: float = 255.0) -> Float32:
    """Scale ``0 .. top`` to [0, 1]."""
    x = pixels.astype(np.float32)
    x /= np.float32(top)
    return x


def to_centred(pixels: NDArray[Any]) -> Float32:
    """Scale ``0 .. 255`` to [-1, 1]: mean 0.5 and standard deviation 0.5 removed."""
    x = to_unit(pixels)
    x -= np.float32(0.5)
    x /= np.float32(0.5)
    return x
