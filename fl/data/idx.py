"""Reader of idx files, the form of MNIST and its relatives."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .federation import DataError, Ids
from .files import md5_of, read_unpacked

UBYTE = 0x08


def read_idx(path: Path, ndim: int) -> tuple[NDArray[np.uint8], str]:
    """Read an idx file of unsigned bytes, plain or packed.

    Parameters
    ----------
    path : Path
    ndim : int
        Number of dimensions it must declare.

    Returns
    -------
    array : uint8 ndarray
        Read-only.
    md5 : str
        Of the unpacked content.

    Raises
    ------
    DataError
        If the header is not idx, or declares a size other than the file's.
    """
    data = read_unpacked(path)
    start = 4 + 4 * ndim
    if len(data) < start or data[:4] != bytes([0, 0, UBYTE, ndim]):
        raise DataError(
            f"{path} must start as an idx file of unsigned bytes in {ndim} dimensions, "
            f"got {data[:4].hex()!r}"
        )
    shape = struct.unpack(f">{ndim}I", data[4:start])
    if math.prod(shape) != len(data) - start:
        raise DataError(
            f"{path} declares {' x '.join(map(str, shape))} bytes, got {len(data) - start}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape), md5_of(data)


def read_images_and_labels(
    images: Path, labels: Path, n_classes: int
) -> tuple[NDArray[np.uint8], Ids, list[str]]:
    """Read a pair of idx files into ``(n, 1, height, width)`` pixels and int64 labels."""
    x, md5_x = read_idx(images, ndim=3)
    y, md5_y = read_idx(labels, ndim=1)
    if len(x) != len(y) or len(y) == 0:
        raise DataError(f"{labels} must hold one label per image ({len(x)}), got {len(y)}")
    if y.max() >= n_classes:
        raise DataError(f"{labels} must hold labels 0..{n_classes - 1}, got {y.max()}")
    return x[:, np.newaxis], y.astype(np.int64), [md5_x, md5_y]
