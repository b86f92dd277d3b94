"""What every data set becomes: samples, and the clients that hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Array = NDArray[Any]


class DataError(RuntimeError):
    """Data that cannot be found, fetched or trusted; the message says what to do.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from fl.data import DataError
    >>> from fl.data.idx import read_idx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "train-images")
    ...     _ = path.write_bytes(b"these are no images, as the reader will find")
    ...     try:
    ...         read_idx(path, ndim=3)
    ...     except DataError:
    ...         print("damaged")
    damaged
    """


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
        Indices of each client, for data generated client by client, or with natural clients.
    test : bool ndarray of shape (n_samples,), optional
        The published test samples, if the data set has any that are used as such.
    """

    x: Array
    y: Array
    n_classes: int
    record: dict[str, Any] = field(default_factory=dict)
    clients: tuple[Ids, ...] = ()
    test: Array | None = None


@dataclass(frozen=True, eq=False)
class Federation:
    """Samples and, for each client, which of them it trains and tests on.

    Parameters
    ----------
    name : str
        Name of the data set.
    x : float32 ndarray of shape (n_samples, ...)
        Scaled inputs; images are ``(n_samples, channels, height, width)``.
    y : ndarray of shape (n_samples,), or (n_samples, length)
        int64 labels or tokens, or float32 targets for regression.
    n_classes : int
        0 for regression.
    train, test : tuple of int64 ndarray
        Per client, indices into `x`, ascending. Either may be empty.
    record : dict
        Every choice taken where the paper is silent, JSON-able.
    task : {"classification", "regression", "next-token"}, optional
        Decides loss and metric; see `fl.objectives`. Default: regression if `n_classes` is 0,
        else classification.

    Examples
    --------
    >>> import numpy as np
    >>> from fl.data import Federation
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(60, 4)), rng.integers(0, 3, size=60)
    >>> federation = Federation.from_arrays(x, y, partition="iid", n_clients=5, seed=0)
    >>> federation.n_clients, federation.label_counts.shape
    (5, (5, 3))
    """

    name: str
    x: Array
    y: Array
    n_classes: int
    train: tuple[Ids, ...]
    test: tuple[Ids, ...]
    record: dict[str, Any]
    task: str = ""

    @classmethod
    def from_arrays(cls, x: Any, y: Any, **options: Any) -> Federation:
        """Make a federation of arrays, lists or tensors.

        Parameters
        ----------
        x : array-like of shape (n_samples, ...)
            Floats, kept as float32, or whole numbers (tokens), kept as int64. Finite.
        y : array-like of shape (n_samples,), or (n_samples, length) for next-token
            Whole numbers or strings are labels, floats are targets of regression, whole
            numbers of the shape of a whole-numbered `x` are next tokens.
        clients : array-like of shape (n_samples,), or dict of index arrays
            The client of each sample, a number or a string; or each client's samples.
            Clients are numbered in sorted order; ``record["client_names"]`` has the names.
        partition : {"dirichlet", "iid", "shards"}
            In place of `clients`: deal the samples out over `n_clients` (100) clients, with
            `alpha`, `shards_per_client` and `min_size` as in `load_federation`.
        test : array-like, optional
            Mask or indices of the test samples. Default: `test_fraction` (0.2) of the samples
            of each client, drawn.
        task : {"classification", "regression", "next-token"}, optional
            Default: by the type of `y`, as above.
        n_classes : int, optional
            Default: one more than the largest label.
        name : str
            For records; default "own".
        seed : int
            Decides partition and split; default 0.

        Examples
        --------
        >>> x, y = np.zeros((6, 4)), np.array([0, 1, 0, 1, 0, 1])
        >>> federation = Federation.from_arrays(x, y, clients=["a", "a", "a", "b", "b", "b"])
        >>> federation.n_clients, federation.n_classes, federation.sizes
        (2, 2, array([2, 2]))
        """
        from .own import from_arrays

        return from_arrays(x, y, **options)

    @classmethod
    def from_dataset(cls, dataset: Any, **options: Any) -> Federation:
        """Make a federation of a `torch.utils.data.Dataset`.

        Its items are (x, y), with `clients` or `partition` as in `from_arrays`, or
        (x, y, client). Every item is read once, transforms included, and kept in memory.
        """
        from .own import from_dataset

        return from_dataset(dataset, **options)

    @classmethod
    def from_frame(cls, frame: Any, target: str, **options: Any) -> Federation:
        """Make a federation of a pandas DataFrame.

        Parameters
        ----------
        frame : DataFrame
        target : str
            Column of labels or targets.
        client : str, optional
            Column that names the client; without it, `clients` or `partition`.
        features : list of str, optional
            Columns of inputs. Default: all others; they must hold numbers.
        **options
            As in `from_arrays`.
        """
        from .own import from_frame

        return from_frame(frame, target, **options)

    def __post_init__(self) -> None:
        if not self.task:
            task = "classification" if self.n_classes else "regression"
            object.__setattr__(self, "task", task)
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
                labels = self.y[ids].ravel()
                counts[k] = np.bincount(labels[labels >= 0], minlength=self.n_classes)
        return counts
