"""Readers of the two forms of CIFAR batches: fixed-length records, and pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .federation import DataError, Ids
from .files import md5_of, read_unpacked
from .pickles import read_pickle

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

Batch = tuple[NDArray[np.uint8], Ids, str]


def read_records(path: Path, n_label_bytes: int, n_classes: int) -> Batch:
    """Read a binary batch: per image `n_label_bytes` labels (the last counts), then pixels.

    Returns
    -------
    pixels : uint8 ndarray of shape (n, 3, 32, 32)
    labels : int64 ndarray of shape (n,)
    md5 : str
        Of the unpacked content.
    """
    data = read_unpacked(path)
    length = n_label_bytes + PIXELS
    if not data or len(data) % length:
        raise DataError(f"{path} must hold whole records of {length} bytes, got {len(data)} bytes")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, length)
    labels = _checked(records[:, n_label_bytes - 1].astype(np.int64), n_classes, path)
    return records[:, n_label_bytes:].reshape(-1, *SHAPE), labels, md5_of(data)


def read_pickled(path: Path, label_key: str, n_classes: int) -> Batch:
    """Read a python batch: ``data`` of shape (n, 3072) and labels under `label_key`."""
    data = read_unpacked(path)
    batch = read_pickle(data, str(path))
    pixels, labels = batch.get("data"), batch.get(label_key)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != PIXELS
    ):
        raise DataError(f"{path} must hold 'data' as bytes of shape (n, {PIXELS})")
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(pixels):
        raise DataError(f"{path} must hold {len(pixels)} labels as {label_key!r}")
    if not all(type(label) is int for label in labels) and not isinstance(labels, np.ndarray):
        raise DataError(f"{path} must hold integers as {label_key!r}")
    try:
        checked = _checked(np.asarray(labels).astype(np.int64), n_classes, path)
    except OverflowError:
        raise DataError(f"{path} must hold labels 0..{n_classes - 1}") from None
    return pixels.reshape(-1, *SHAPE), checked, md5_of(data)


def _checked(labels: Ids, n_classes: int, path: Path) -> Ids:
    if labels.size == 0 or labels.min() < 0 or labels.max() >= n_classes:
        found = f"{labels.min()}..{labels.max()}" if labels.size else "none"
        raise DataError(f"{path} must hold labels 0..{n_classes - 1}, got {found}")
    return labels
