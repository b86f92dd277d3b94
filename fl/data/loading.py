"""The name of a data set in, a `Federation` out: read or generate, partition, split."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from .catalogue import DataSet, fetch, find_dataset
from .federation import Federation, Samples
from .files import PathLike, Source
from .partition import PARTITIONS, share_out
from .split import ordered_split, published_split, split_clients

Options = Mapping[str, Any]
# Streams of one seed: a change of partition leaves generated data as they were.
GENERATE, PARTITION, SPLIT, SUBSET = range(4)


def load_federation(
    dataset: str = "digits",
    *,
    n_clients: int = 100,
    partition: str = "dirichlet",
    alpha: float = 0.1,
    shards_per_client: int = 2,
    test_fraction: float = 0.2,
    min_size: int = 0,
    data_dir: PathLike | None = None,
    download: bool = True,
    seed: int | np.random.SeedSequence = 0,
    options: Options | None = None,
) -> Federation:
    """Load a data set and share it out over clients.

    Parameters
    ----------
    dataset : str, default="digits"
        A key of `DATASETS`.
    n_clients : int, default=100
        Of natural clients, a random part of so many.
    partition : {"dirichlet", "iid", "shards"}, default="dirichlet"
        Data generated client by client (synthetic, regression) or with natural clients
        (shakespeare, adult) keep them: for these only the default is accepted, and recorded
        as "natural".
    alpha : float, default=0.1
        Concentration of "dirichlet".
    shards_per_client : int, default=2
        Of "shards".
    test_fraction : float, default=0.2
        Part of each client's samples that it tests on, in [0, 1). Adult has test samples of
        its own.
    min_size : int, default=0
        Redraw the partition until every client holds this many samples; 0: never.
    data_dir : path, optional
        First place searched for files; see `find_files`.
    download : bool, default=True
        Fetch missing files into the user's cache.
    seed : int or SeedSequence, default=0
        Decides everything drawn here. A SeedSequence is read, not spawned from: the same
        one always gives the same federation.
    options : mapping, optional
        For images: ``n_samples``, a random subset of that size. For the others: the keyword
        arguments of `generate_synthetic`, `generate_regression`, `read_shakespeare` or
        `read_adult`.

    Returns
    -------
    federation : Federation

    Raises
    ------
    ValueError
        If an argument is out of range.
    DataError
        If files are missing and cannot be fetched, or are damaged.

    Examples
    --------
    >>> from fl.data import load_federation
    >>> federation = load_federation("digits", n_clients=10, alpha=0.5, seed=0)
    >>> federation.n_clients, federation.n_classes
    (10, 10)
    """
    spec, options = find_dataset(dataset), options or {}
    try:
        n_clients = operator.index(n_clients)
    except TypeError:
        raise TypeError(f"n_clients must be an integer, got {n_clients!r}") from None
    if n_clients < 1:
        raise ValueError(f"n_clients must be at least 1, got {n_clients}")
    if partition not in PARTITIONS:
        raise ValueError(f"partition must be one of {', '.join(PARTITIONS)}, got {partition!r}")
    root = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    if spec.read is None:
        if partition != "dirichlet":
            raise ValueError(
                f"partition must be left at its default for {dataset!r}, which comes with its "
                f"clients, got {partition!r}"
            )
        if spec.generate is not None:
            samples = _generate(spec, dataset, n_clients, root, options)
        else:
            samples = _read_clients(spec, dataset, n_clients, data_dir, download, root, options)
        _check_smallest(dataset, samples, min_size)
        clients, drawn = samples.clients, {"partition": "natural", "min_size": min_size}
    else:
        samples = _read(spec, dataset, data_dir, download, root, options)
        clients, drawn = share_out(
            partition,
            samples.y,
            n_clients,
            _stream(root, PARTITION),
            alpha=alpha,
            shards_per_client=shards_per_client,
            min_size=min_size,
        )
    if samples.test is not None:
        train, test, split = published_split(samples.test, clients)
    elif spec.ordered:
        train, test, split = ordered_split(clients, test_fraction)
    else:
        train, test, split = split_clients(
            samples.y, clients, test_fraction, _stream(root, SPLIT), stratify=samples.n_classes > 0
        )
    record = {
        "dataset": dataset,
        "n_samples": len(samples.y),
        "n_clients": n_clients,
        "scaling": spec.scaling,
        **samples.record,
        **drawn,
        **split,
        "seed": _describe(root),
    }
    return Federation(
        dataset, samples.x, samples.y, samples.n_classes, train, test, record, spec.task
    )


def _read(
    spec: DataSet,
    dataset: str,
    data_dir: PathLike | None,
    download: bool,
    root: np.random.SeedSequence,
    options: Options,
) -> Samples:
    """Read pooled samples, keep a subset if asked, scale."""
    assert spec.read is not None
    assert spec.scale is not None
    _check_options(dataset, options, ["n_samples"])
    raw = spec.read(fetch(dataset, data_dir, download=download))
    x, y, record = raw.x, raw.y, dict(raw.record)
    if isinstance(spec.source, Source):
        published = {md5 for form in spec.source.forms for md5 in form.md5.values()}
        record["official"] = published.issuperset(record["md5"].values())
    n_samples = options.get("n_samples")
    if n_samples is not None:
        if not 1 <= n_samples <= len(y):
            raise ValueError(
                f"options['n_samples'] must be in 1..{len(y)} for {dataset!r}, got {n_samples}"
            )
        keep = np.sort(_stream(root, SUBSET).permutation(len(y))[:n_samples])
        record["subset_of"] = len(y)
        x, y = x[keep], y[keep]
    return Samples(spec.scale(x), y, raw.n_classes, record)


def _read_clients(
    spec: DataSet,
    dataset: str,
    n_clients: int,
    data_dir: PathLike | None,
    download: bool,
    root: np.random.SeedSequence,
    options: Options,
) -> Samples:
    """Read samples with natural clients, and keep `n_clients` of these."""
    assert spec.read_clients is not None
    _check_options(dataset, options, sorted(spec.read_clients.__kwdefaults__ or ()))
    (path,) = fetch(dataset, data_dir, download=download).values()
    samples = spec.read_clients(path, **options)
    n_all, record = len(samples.clients), dict(samples.record)
    if n_clients > n_all:
        raise ValueError(
            f"n_clients must be at most {n_all} for {dataset!r}, which has so many clients, "
            f"got {n_clients}"
        )
    if n_clients == n_all:
        return samples
    kept = np.sort(_stream(root, PARTITION).permutation(n_all)[:n_clients])
    clients = [samples.clients[k] for k in kept]
    rows = np.sort(np.concatenate(clients))
    record |= {
        "clients_of": n_all,
        "client_names": [samples.record["client_names"][k] for k in kept],
    }
    return Samples(
        samples.x[rows],
        samples.y[rows],
        samples.n_classes,
        record,
        tuple(np.searchsorted(rows, ids) for ids in clients),
        None if samples.test is None else samples.test[rows],
    )


def _generate(
    spec: DataSet,
    dataset: str,
    n_clients: int,
    root: np.random.SeedSequence,
    options: Options,
) -> Samples:
    """Generate samples client by client."""
    assert spec.generate is not None
    _check_options(dataset, options, sorted(spec.generate.__kwdefaults__ or ()))
    return spec.generate(n_clients, _stream(root, GENERATE), **options)


def _check_smallest(dataset: str, samples: Samples, min_size: int) -> None:
    smallest = min(map(len, samples.clients))
    if smallest < min_size:
        raise ValueError(
            f"min_size must be at most {smallest} for {dataset!r} as it is, got {min_size}"
        )


def _check_options(dataset: str, options: Options, known: list[str]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"options of {dataset!r} must be among {', '.join(known)}, got {unknown}")


def _stream(root: np.random.SeedSequence, index: int) -> np.random.Generator:
    """Child `index` of `root`, without counting it as spawned."""
    child = np.random.SeedSequence(
        root.entropy, spawn_key=(*root.spawn_key, index), pool_size=root.pool_size
    )
    return np.random.default_rng(child)


def _describe(root: np.random.SeedSequence) -> dict[str, Any]:
    entropy = root.entropy
    return {
        "entropy": entropy if isinstance(entropy, int) else [int(e) for e in entropy or ()],
        "spawn_key": [int(k) for k in root.spawn_key],
    }
