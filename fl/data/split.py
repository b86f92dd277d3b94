"""Samples of each client in, its own train and test samples out.

The rules follow scikit-learn's ``train_test_split(stratify=...)``, written in NumPy so
that one explicit generator decides everything:

- no sample: no train, no test (the client is never selected nor scored);
- one sample: it trains, there is no test;
- a class with one sample, or fewer places than classes on a side: not stratified;
- otherwise ``ceil(test_fraction * n)`` test samples, shared over the classes by largest
  remainder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .federation import Ids

RULES = ("stratified", "unstratified", "single", "empty")


def split_sizes(n: int, test_fraction: float) -> tuple[int, int]:
    """Return how many of `n` samples train and test; at least one trains."""
    n_test = min(math.ceil(test_fraction * n), max(n - 1, 0))
    return n - n_test, n_test


def stratified_split(
    labels: NDArray[Any] | None, n: int, test_fraction: float, rng: np.random.Generator
) -> tuple[Ids, Ids, str]:
    """Split positions 0 .. n - 1 of one client into ascending train and test positions.

    Without `labels` (regression) the split is never stratified. The third value returned is
    the rule that applied, one of `RULES`.
    """
    n_train, n_test = split_sizes(n, test_fraction)
    if n_test == 0:
        rule = "empty" if n == 0 else "single" if n == 1 else "unstratified"
        return np.arange(n), np.empty(0, dtype=np.int64), rule
    if labels is not None:
        _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if counts.min() > 1 and min(n_train, n_test) >= counts.size:
            take = _largest_remainder(counts, n_train, rng)
            train = np.zeros(n, dtype=bool)
            for code, quota in enumerate(take):
                members = np.flatnonzero(codes == code)
                train[rng.permutation(members)[:quota]] = True
            return np.flatnonzero(train), np.flatnonzero(~train), "stratified"
    order = rng.permutation(n)
    return np.sort(order[:n_train]), np.sort(order[n_train:]), "unstratified"


def split_clients(
    labels: NDArray[Any],
    clients: Sequence[Ids],
    test_fraction: float,
    rng: np.random.Generator,
    *,
    stratify: bool = True,
) -> tuple[tuple[Ids, ...], tuple[Ids, ...], dict[str, Any]]:
    """Split every client's samples into its train and test indices.

    `clients` holds the indices into `labels` of each client; `stratify` is False for
    regression targets; the paper's `test_fraction` is 0.2.

    Returns
    -------
    train, test : tuple of int64 arrays
        Indices into `labels`, ascending if those of `clients` are.
    record : dict
        `test_fraction`, how many clients fell under each rule, and which were empty or
        held a single sample.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction must be in [0, 1), got {test_fraction}")
    train, test, rules = [], [], []
    for ids in clients:
        strata = labels[ids] if stratify else None
        keep, hold, rule = stratified_split(strata, len(ids), test_fraction, rng)
        train.append(ids[keep])
        test.append(ids[hold])
        rules.append(rule)
    record = {
        "test_fraction": float(test_fraction),
        "split": {rule: rules.count(rule) for rule in RULES},
        "empty_clients": [k for k, rule in enumerate(rules) if rule == "empty"],
        "single_sample_clients": [k for k, rule in enumerate(rules) if rule == "single"],
    }
    return tuple(train), tuple(test), record


def ordered_split(
    clients: Sequence[Ids], test_fraction: float
) -> tuple[tuple[Ids, ...], tuple[Ids, ...], dict[str, Any]]:
    """Let the last samples of each client test: for samples in the order of their making."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction must be in [0, 1), got {test_fraction}")
    sizes = [split_sizes(len(ids), test_fraction)[0] for ids in clients]
    pairs = list(zip(clients, sizes, strict=True))
    record = {"test_fraction": float(test_fraction), "split": "last"}
    return tuple(ids[:n] for ids, n in pairs), tuple(ids[n:] for ids, n in pairs), record


def published_split(
    is_test: NDArray[np.bool_], clients: Sequence[Ids]
) -> tuple[tuple[Ids, ...], tuple[Ids, ...], dict[str, Any]]:
    """Let each client test on those of its samples that are published for it."""
    train = tuple(ids[~is_test[ids]] for ids in clients)
    test = tuple(ids[is_test[ids]] for ids in clients)
    return train, test, {"split": "published"}


def _largest_remainder(counts: Ids, total: int, rng: np.random.Generator) -> Ids:
    """Share `total` places over classes in proportion to `counts`, ties at random."""
    n = int(counts.sum())
    quotas, remainders = np.divmod(counts * total, n)  # integers: no rounding, real ties
    missing = total - int(quotas.sum())
    order = np.lexsort((rng.random(counts.size), -remainders))
    quotas[order[:missing]] += 1
    return quotas
