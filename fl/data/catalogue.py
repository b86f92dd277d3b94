"""The data sets by name, and their files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..settings import nearest
from .cifar10 import CIFAR10, read_cifar10
from .cifar100 import CIFAR100, read_cifar100
from .digits import read_digits
from .fashion_mnist import FASHION_MNIST
from .federation import DataError, Samples
from .fetching import download as download_files
from .fetching import unpack_local
from .files import FileCheck, PathLike, Source, locate, missing_message, verify
from .mnist import MNIST, read_mnist
from .pixels import to_centred, to_unit
from .regression import generate_regression
from .synthetic import generate_synthetic


@dataclass(frozen=True)
class DataSet:
    """How one data set is made.

    Parameters
    ----------
    title : str
        One line for people.
    in_shape : tuple of int or None
        Shape of one sample; None when an option decides it.
    n_classes : int
        0 for regression.
    source : Source, optional
        Its files; None if it needs none.
    read : callable, optional
        Files in, raw `Samples` out.
    scale : callable, optional
        Raw inputs in, float32 inputs out.
    scaling : str
        What `scale` does, for the record.
    generate : callable, optional
        ``(n_clients, rng, **options)`` in, `Samples` with clients out; instead of `read`.
    """

    title: str
    in_shape: tuple[int, ...] | None
    n_classes: int
    source: Source | None = None
    read: Callable[[Mapping[str, Path]], Samples] | None = None
    scale: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
    scaling: str = "none"
    generate: Callable[..., Samples] | None = None


DATASETS: dict[str, DataSet] = {
    "digits": DataSet(
        title="Handwritten digits 8 x 8, embedded",
        in_shape=(1, 8, 8),
        n_classes=10,
        read=read_digits,
        scale=functools.partial(to_unit, top=16.0),
        scaling="[0, 1]",
    ),
    "mnist": DataSet(
        title="MNIST, handwritten digits 28 x 28",
        in_shape=(1, 28, 28),
        n_classes=10,
        source=MNIST,
        read=read_mnist,
        scale=to_unit,
        scaling="[0, 1]",
    ),
    "fashion-mnist": DataSet(
        title="Fashion-MNIST, clothes 28 x 28",
        in_shape=(1, 28, 28),
        n_classes=10,
        source=FASHION_MNIST,
        read=read_mnist,
        scale=to_unit,
        scaling="[0, 1]",
    ),
    "cifar10": DataSet(
        title="CIFAR-10, colour photographs 32 x 32",
        in_shape=(3, 32, 32),
        n_classes=10,
        source=CIFAR10,
        read=read_cifar10,
        scale=to_centred,
        scaling="mean 0.5, std 0.5",
    ),
    "cifar100": DataSet(
        title="CIFAR-100, colour photographs 32 x 32",
        in_shape=(3, 32, 32),
        n_classes=100,
        source=CIFAR100,
        read=read_cifar100,
        scale=to_centred,
        scaling="mean 0.5, std 0.5",
    ),
    "synthetic": DataSet(
        title="Synthetic(alpha, beta), one logistic model per client",
        in_shape=(60,),
        n_classes=10,
        generate=generate_synthetic,
    ),
    "regression": DataSet(
        title="Linear regression, clients in latent groups",
        in_shape=None,
        n_classes=0,
        generate=generate_regression,
    ),
}


def find_dataset(dataset: str) -> DataSet:
    """Return an entry of `DATASETS`, or say which there are."""
    if dataset not in DATASETS:
        hint = nearest(dataset, DATASETS)
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}{hint}")
    return DATASETS[dataset]


def find_files(dataset: str, data_dir: PathLike | None = None) -> dict[str, Path] | None:
    """Return the path of each training file of a data set by name.

    Searched in order: `data_dir`, ``$CVRCORE_DATA``, the user's cache, a distribution's
    package; in each, sub-folders such as ``mnist/`` or ``cifar-10-batches-bin/``, then the
    folder itself. Files may be plain, .gz or .xz.

    Returns
    -------
    files : dict or None
        Empty for data sets that need no file; None if no place has all of them.
    """
    source = find_dataset(dataset).source
    return {} if source is None else locate(source, data_dir)


def check_files(dataset: str, data_dir: PathLike | None = None) -> list[FileCheck]:
    """Compare the files that `find_files` finds with their published md5.

    Returns
    -------
    checks : list of FileCheck
        ``name``, ``path``, ``status`` ("ok", "missing", "differs" or "damaged") and
        ``detail`` of each file; empty for data sets that need no file.
    """
    source = find_dataset(dataset).source
    return [] if source is None else verify(source, data_dir)


def fetch(
    dataset: str, data_dir: PathLike | None = None, *, download: bool = True
) -> dict[str, Path]:
    """Make sure that the files of a data set are on this machine.

    Files found are used; failing that, an official archive found is unpacked into the
    user's cache; failing that, the files are downloaded there, mirror by mirror.

    Parameters
    ----------
    dataset : str
    data_dir : path, optional
        First place searched; see `find_files`.
    download : bool, default=True
        False: never touch the network.

    Returns
    -------
    files : dict of str to Path
        Empty for data sets that need no file.

    Raises
    ------
    DataError
        If there is no way; the message says which files to put where.
    """
    source = find_dataset(dataset).source
    if source is None:
        return {}
    files = locate(source, data_dir)
    if files is None and unpack_local(source, data_dir):
        files = locate(source, data_dir)
    if files is not None:
        return files
    message = missing_message(dataset, source, data_dir)
    if not download:
        raise DataError(f"{message}\nDownload is off.")
    try:
        return download_files(dataset, source)
    except DataError as error:
        raise DataError(f"{message}\n{error}") from None
