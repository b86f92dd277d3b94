"""Labels in, the samples of each client out, as index arrays.

Each function returns one ascending int64 array per client; together they hold every
sample exactly once. A client may end up empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .federation import Ids

PARTITIONS = ("dirichlet", "iid", "shards")
MAX_REDRAWS = 1000


def dirichlet(
    labels: NDArray[Any], n_clients: int, alpha: float, rng: np.random.Generator
) -> tuple[Ids, ...]:
    """Cut each class over the clients with proportions drawn from a Dirichlet law.

    Per class: shuffle its samples, draw ``p ~ Dirichlet(alpha, ..., alpha)`` over the
    clients and cut at ``floor(cumsum(p) * n)``. Small `alpha` skews both the labels and
    the sizes of clients; the paper's is 0.1.
    """
    parts: list[list[Ids]] = [[] for _ in range(n_clients)]
    for label in np.unique(labels):
        ids = np.flatnonzero(labels == label)
        rng.shuffle(ids)
        proportions = rng.dirichlet(np.full(n_clients, alpha))
        # A cumulative sum may overshoot 1 by rounding, never the last cut: it is implied.
        cuts = np.minimum(np.cumsum(proportions)[:-1] * ids.size, ids.size).astype(np.int64)
        for part, piece in zip(parts, np.split(ids, cuts), strict=True):
            part.append(piece)
    return tuple(_ascending(part) for part in parts)


def iid(n_samples: int, n_clients: int, rng: np.random.Generator) -> tuple[Ids, ...]:
    """Deal shuffled samples out in equal parts (sizes differ by one at most)."""
    order = rng.permutation(n_samples)
    return tuple(_ascending([piece]) for piece in np.array_split(order, n_clients))


def shards(
    labels: NDArray[Any], n_clients: int, shards_per_client: int, rng: np.random.Generator
) -> tuple[Ids, ...]:
    """Sort by label, cut into equal shards and deal a few to each client (McMahan 2017).

    A client sees few labels: `shards_per_client` when the shards divide the classes. There
    are at most as many shards as samples.
    """
    n_shards = n_clients * shards_per_client
    if n_shards > len(labels):
        raise ValueError(
            f"n_clients * shards_per_client must be at most the {len(labels)} samples, "
            f"got {n_shards}"
        )
    # Shuffled before the stable sort, so that samples of one label fall in any shard.
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = np.array_split(order, n_shards)
    deal = rng.permutation(n_shards).reshape(n_clients, shards_per_client)
    return tuple(_ascending([pieces[s] for s in row]) for row in deal)


def share_out(
    name: str,
    labels: NDArray[Any],
    n_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    shards_per_client: int = 2,
    min_size: int = 0,
) -> tuple[tuple[Ids, ...], dict[str, Any]]:
    """Partition by name, drawing again while a client holds fewer than `min_size`.

    `alpha` is read by "dirichlet" only, `shards_per_client` by "shards" only; a `min_size`
    of 0 never draws again, as in the paper.

    Returns
    -------
    clients : tuple of n_clients int64 arrays
    record : dict
        The name, its parameter, `min_size` and the number of redraws.
    """
    if name not in PARTITIONS:
        raise ValueError(f"partition must be one of {', '.join(PARTITIONS)}, got {name!r}")
    if n_clients < 1:
        raise ValueError(f"n_clients must be at least 1, got {n_clients}")
    if min_size < 0 or min_size * n_clients > len(labels):
        raise ValueError(
            f"min_size must be in 0..{len(labels) // n_clients} for {len(labels)} samples and "
            f"{n_clients} clients, got {min_size}"
        )
    record: dict[str, Any] = {"partition": name, "min_size": min_size}
    if name == "dirichlet":
        if not (math.isfinite(alpha) and alpha > 0):
            raise ValueError(f"alpha must be positive and finite, got {alpha}")
        record["alpha"] = float(alpha)
    elif name == "shards":
        if shards_per_client < 1:
            raise ValueError(f"shards_per_client must be at least 1, got {shards_per_client}")
        record["shards_per_client"] = shards_per_client

    for redraws in range(MAX_REDRAWS + 1):
        if name == "dirichlet":
            clients = dirichlet(labels, n_clients, alpha, rng)
        elif name == "shards":
            clients = shards(labels, n_clients, shards_per_client, rng)
        else:
            clients = iid(len(labels), n_clients, rng)
        if min(map(len, clients)) >= min_size:
            return clients, {**record, "redraws": redraws}
    raise ValueError(
        f"min_size={min_size} was not reached by every client in {MAX_REDRAWS} redraws of "
        f"{name!r} over {n_clients} clients; lower it, raise alpha or take fewer clients"
    )


def _ascending(pieces: Sequence[NDArray[Any]]) -> Ids:
    return np.sort(np.concatenate(pieces)).astype(np.int64, copy=False)
