"""Arrays, tensors, a torch ``Dataset`` or a pandas ``DataFrame`` in, a `Federation` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .federation import Federation, Ids
from .partition import share_out
from .split import split_clients

TASKS = ("classification", "regression", "next-token")
MAX_NAMES = 1000  # of clients or classes in a record


def from_arrays(
    x: Any,
    y: Any,
    *,
    clients: Any = None,
    partition: str | None = None,
    n_clients: int | None = None,
    alpha: float = 0.1,
    shards_per_client: int = 2,
    min_size: int = 0,
    test: Any = None,
    test_fraction: float = 0.2,
    task: str | None = None,
    n_classes: int | None = None,
    name: str = "own",
    seed: int = 0,
) -> Federation:
    """Make a federation of arrays; see `Federation.from_arrays`."""
    x, y = _inputs(x), _array(y, "y")
    if len(x) != len(y) or not len(x):
        raise ValueError(f"y must have {len(x)} entries like x, at least one, got {len(y)}")
    y, task, n_classes, classes = _targets(x, y, task, n_classes)
    partition_seed, split_seed = np.random.SeedSequence(seed).spawn(2)
    if (clients is None) == (partition is None):
        raise ValueError(
            "clients must name the client of each sample, or partition say how to deal the "
            "samples out ('dirichlet', 'iid' or 'shards'): give one of them"
        )
    if clients is not None:
        if n_clients is not None:
            raise ValueError("n_clients goes with partition; clients says how many there are")
        parts, names = _natural(clients, len(x))
        record: dict[str, Any] = {"partition": "natural", "client_names": names[:MAX_NAMES]}
    else:
        labels = y if y.ndim == 1 else np.zeros(len(y), dtype=np.int64)
        parts, record = share_out(
            str(partition),
            labels,
            100 if n_clients is None else n_clients,
            np.random.default_rng(partition_seed),
            alpha=alpha,
            shards_per_client=shards_per_client,
            min_size=min_size,
        )
    if test is None:
        stratify = task == "classification"
        rng = np.random.default_rng(split_seed)
        trains, tests, split = split_clients(y, parts, test_fraction, rng, stratify=stratify)
    else:
        held = _mask(test, len(x))
        trains = tuple(ids[~held[ids]] for ids in parts)
        tests = tuple(ids[held[ids]] for ids in parts)
        split = {"split": "given"}
        empty = [k for k, ids in enumerate(trains) if not len(ids)]
        if clients is not None and empty:
            raise ValueError(f"client {names[empty[0]]} must keep training samples: test takes all")
    record = {
        "dataset": name,
        "n_samples": len(x),
        "n_clients": len(parts),
        **({"classes": classes[:MAX_NAMES]} if classes else {}),
        **record,
        **split,
        "seed": seed,
    }
    return Federation(name, x, y, n_classes, trains, tests, record, task)


def from_dataset(dataset: Any, *, clients: Any = None, **options: Any) -> Federation:
    """Make a federation of a torch ``Dataset``; see `Federation.from_dataset`."""
    items = (
        list(dataset)
        if not hasattr(dataset, "__getitem__")
        else [dataset[i] for i in range(len(dataset))]
    )
    if not items:
        raise ValueError("dataset must hold at least one sample, got none")
    widths = {len(item) if isinstance(item, tuple | list) else 0 for item in items}
    if widths not in ({2}, {3}):
        raise ValueError(
            "items of dataset must all be (x, y), or (x, y, client), got "
            f"{type(items[0]).__name__} of length {sorted(widths)}"
        )
    columns = list(zip(*items, strict=True))
    if widths == {3}:
        if clients is not None or "partition" in options:
            raise ValueError("items of dataset name their client: give no clients or partition")
        clients = [_scalar(value) for value in columns[2]]
    x, y = (_stacked(column, label) for column, label in zip(columns, "xy", strict=False))
    return from_arrays(x, y, clients=clients, **options)


def from_frame(
    frame: Any,
    target: str,
    *,
    client: str | None = None,
    features: Sequence[str] | None = None,
    **options: Any,
) -> Federation:
    """Make a federation of a pandas ``DataFrame``; see `Federation.from_frame`."""
    wanted = [target, *([client] if client else []), *(features or [])]
    for column in wanted:
        if column not in frame.columns:
            raise ValueError(
                f"frame has no column {column!r}: {', '.join(map(str, frame.columns))}"
            )
    used = list(features or [c for c in frame.columns if c not in (target, client)])
    for column in used:
        if frame[column].dtype.kind not in "fiub":
            raise ValueError(
                f"column {column!r} of frame must hold numbers, got {frame[column].dtype}: "
                "encode it first, for instance by pandas.get_dummies, or choose features"
            )
    x = frame[used].to_numpy(dtype=np.float32)
    clients = frame[client].to_numpy() if client else options.pop("clients", None)
    return from_arrays(x, frame[target].to_numpy(), clients=clients, **options)


# -- the parts of a federation -------------------------------------------------------


def _array(value: Any, name: str) -> NDArray[Any]:
    """Return an array of numbers or strings from an array, a tensor, a list or a Series."""
    if hasattr(value, "detach"):  # a tensor, on any device
        value = value.detach().cpu().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array, got rows of unequal shapes: {error}") from None
    if array.dtype.kind == "O":  # strings of pandas, or numbers and strings mixed
        array = array.astype(str)
    if array.ndim == 0:
        raise ValueError(f"{name} must have one entry per sample, got a scalar")
    return array


def _inputs(x: Any) -> NDArray[Any]:
    """Return inputs as float32, or as int64 if they are whole numbers (tokens)."""
    x = _array(x, "x")
    if x.dtype.kind in "iu":
        return np.ascontiguousarray(x, dtype=np.int64)
    if x.dtype.kind not in "fb":
        raise ValueError(f"x must hold numbers, got {x.dtype}")
    x = np.ascontiguousarray(x, dtype=np.float32)
    refuse_not_finite(x, "x")
    return x


def refuse_not_finite(values: NDArray[Any], name: str) -> None:
    """Refuse NaN and infinite values; the message names the first sample."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    raise ValueError(
        f"{name} must be finite, got NaN or infinity in {int(bad.sum())} of {len(bad)} samples, "
        f"first in sample {int(bad.argmax())}"
    )


def _targets(
    x: NDArray[Any], y: NDArray[Any], task: str | None, n_classes: int | None
) -> tuple[NDArray[Any], str, int, list[str]]:
    """Return targets, task, number of classes and their names if they have any."""
    if task is not None and task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    classes: list[str] = []
    if y.dtype.kind in "US":
        found, y = np.unique(y, return_inverse=True)
        classes = [str(value) for value in found]
    if task is None:
        tokens = y.ndim == 2 and x.dtype.kind == "i" and x.shape == y.shape
        whole = y.dtype.kind in "iub"
        task = "next-token" if whole and tokens else "classification" if whole else "regression"
    if task == "regression":
        if n_classes:
            raise ValueError(f"n_classes must be 0 in regression, got {n_classes}")
        y = np.ascontiguousarray(y, dtype=np.float32)
        refuse_not_finite(y, "y")
        return y, task, 0, []
    if y.dtype.kind not in "iub":
        raise ValueError(
            f"y must hold whole numbers in {task}, got {y.dtype}: convert it with "
            "y.astype(int), or give task='regression'"
        )
    if task == "classification" and y.ndim != 1:
        raise ValueError(f"y must have shape ({len(y)},) in classification, got {y.shape}")
    if task == "next-token" and y.ndim != 2:
        raise ValueError(f"y must have shape (n, length) in next-token, got {y.shape}")
    y = np.ascontiguousarray(y, dtype=np.int64)
    top = int(y.max())
    if task == "next-token" and x.dtype.kind == "i":
        top = max(top, int(x.max()))  # one vocabulary for both
    return y, task, top + 1 if n_classes is None else int(n_classes), classes


def _natural(clients: Any, n: int) -> tuple[tuple[Ids, ...], list[Any]]:
    """Return the samples of each client and the clients' names, in order of name."""
    if isinstance(clients, Mapping):
        names = list(clients)
        parts = [np.sort(np.asarray(clients[name], dtype=np.int64)) for name in names]
        for name, part in zip(names, parts, strict=True):
            if not len(part):
                raise ValueError(f"client {name!r} must hold samples, got none")
            if part[0] < 0 or part[-1] >= n:
                raise ValueError(f"client {name!r} must hold samples of 0..{n - 1}, got {part}")
        return tuple(parts), [_scalar(name) for name in names]
    ids = _array(clients, "clients")
    if ids.shape != (n,):
        raise ValueError(f"clients must name the client of each of {n} samples, got {ids.shape}")
    if ids.dtype.kind == "f":
        refuse_not_finite(ids, "clients")
    found, codes = np.unique(ids, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    cuts = np.cumsum(np.bincount(codes))[:-1]
    return tuple(np.split(order, cuts)), [_scalar(name) for name in found]


def _mask(test: Any, n: int) -> NDArray[np.bool_]:
    chosen = _array(test, "test")
    if chosen.dtype == bool and chosen.shape == (n,):
        return chosen
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or not len(chosen):
        raise ValueError(f"test must be a mask of shape ({n},) or indices, got {chosen.dtype}")
    if chosen.min() < 0 or chosen.max() >= n:
        raise ValueError(f"test must hold indices of 0..{n - 1}")
    mask = np.zeros(n, dtype=bool)
    mask[chosen] = True
    return mask


def _stacked(column: Sequence[Any], name: str) -> NDArray[Any]:
    rows = [np.asarray(value) for value in column]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise ValueError(f"{name} of every item must have one shape, got {sorted(shapes)[:3]}")
    return np.stack(rows)


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
