"""The plan of a selector: its size and memory limit in, methods, bytes and work out."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

import numpy as np

from ..validation import check_choice, check_count, check_number
from .memory import free_memory, show_bytes
from .sizes import (
    CACHED_PAIRS,
    CLUSTERINGS,
    DEFERRED,
    EIGENSOLVERS,
    EXACT_LIMIT,
    LANDMARKS,
    LANES,
    LAPACK_LIMIT,
    STORES,
    block_width,
    caches_pairs,
    packed_pairs,
)

_WINDOW: Final = 32  # residuals in a window, if memory allows
_USABLE: Final = 0.97  # share of the limit; the rest is for library pages and thread buffers


class _Size(NamedTuple):
    """The size of a selector, as far as its plan depends on it."""

    n_clients: int
    n_features: int
    n_select: int
    n_landmarks: int
    itemsize: int
    direct: bool  # whether each clustering computes eigenvectors without a warm start


@dataclasses.dataclass(frozen=True)
class Plan:
    """The methods, memory and work of a `CoalitionSelector`; ``str(plan)`` is a table.

    Attributes
    ----------
    clustering : {"plane", "exact", "nystrom"}
    eigensolver : str
    store : str
        Kind of the covariance store, see `cvrcore.covariance.store.CovarianceStore`.
    window : int or None
        Number of residuals that the store keeps; None for all.
    may_be_dense : bool
    n_landmarks : int
    landmarks : str
    keeps_affinities : bool
        Whether affinities of all clients to landmarks are kept, so that a round recomputes
        only changed rows.
    nbytes : dict of str to int
        Peak bytes of each part.
    work : dict of str to float
        Multiply-adds of each part in a steady round.
    limit : int
        Memory limit in bytes.

    Examples
    --------
    >>> import cvrcore
    >>> plan = cvrcore.make_plan(n_clients=100_000, n_features=50, n_select=100, memory_limit=2e9)
    >>> plan.clustering, plan.n_landmarks, sum(plan.nbytes.values()) < plan.limit
    ('nystrom', 500, True)
    """

    clustering: str
    eigensolver: str
    store: str
    window: int | None
    may_be_dense: bool
    n_landmarks: int
    landmarks: str
    keeps_affinities: bool
    nbytes: dict[str, int]
    work: dict[str, float]
    limit: int

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all parts together."""
        return sum(self.nbytes.values())

    def __str__(self) -> str:
        """Return the plan as a small table."""
        kept = "every round" if self.window is None else f"the last {self.window} rounds"
        near = ", keeps affinities to landmarks" if self.keeps_affinities else ""
        lines = [
            f"clustering   {self.clustering}{near}",
            f"eigensolver  {self.eigensolver}",
            f"covariance   {self.store}, keeps {kept}",
            f"memory       {show_bytes(self.total_bytes)} of {show_bytes(self.limit)} allowed",
        ]
        lines += [f"  {name:22} {show_bytes(n):>9}" for name, n in self.nbytes.items()]
        lines.append(f"a round      {sum(self.work.values()):.3g} multiply-adds")
        lines += [f"  {name:22} {n:9.3g}" for name, n in self.work.items()]
        return "\n".join(lines)


def make_plan(
    n_clients: int,
    n_features: int,
    n_select: int,
    *,
    dtype: str = "float64",
    predictor: str = "regression",
    store: str = "auto",
    window: int | None = None,
    clustering: str = "auto",
    eigensolver: str = "auto",
    n_landmarks: int | None = None,
    landmarks: str = "uniform",
    recluster_every: int = 1,
    memory_limit: float | None = None,
) -> Plan:
    """Choose the methods for a selector of this size; nothing large is allocated.

    Parameters
    ----------
    n_clients, n_features, n_select : int
    dtype, predictor, store, window, clustering, eigensolver
    n_landmarks, landmarks, recluster_every
        As in `CoalitionSelector`; a value other than "auto" is used as given.
    memory_limit : float, optional
        Memory limit in bytes. Default: half of the free memory.

    Returns
    -------
    Plan

    Raises
    ------
    MemoryError
        If no plan fits; the message gives the bytes needed, the limit, and what to change.

    Examples
    --------
    >>> import cvrcore
    >>> plan = cvrcore.make_plan(100_000, 300, 100, dtype="float32", memory_limit=4e9)
    >>> plan.clustering, plan.store, plan.window
    ('nystrom', 'window', 26)
    """
    n_clients = check_count(n_clients, "n_clients")
    n_features = check_count(n_features, "n_features")
    n_select = check_count(n_select, "n_select", maximum=n_clients)
    store = check_choice(store, "store", STORES)
    clustering = check_choice(clustering, "clustering", CLUSTERINGS)
    landmarks = check_choice(landmarks, "landmarks", LANDMARKS)
    direct = check_choice(eigensolver, "eigensolver", EIGENSOLVERS) == "direct"
    limit = free_memory() // 2
    if memory_limit is not None:
        limit = int(check_number(memory_limit, "memory_limit", above=0))
    if n_landmarks is None:
        n_landmarks = min(max(500, 2 * n_select), n_clients)
    n_landmarks = check_count(n_landmarks, "n_landmarks", n_select, n_clients)
    itemsize = np.dtype(dtype).itemsize
    size = _Size(n_clients, n_features, n_select, n_landmarks, itemsize, direct)
    row_bytes = n_clients * n_features * itemsize
    nbytes = {"rows and moments": 3 * row_bytes + 8 * n_features * min(n_clients, 4096)}

    kind = _clustering_of(clustering, size, limit)
    nbytes["clustering"] = _clustering_bytes(kind, size)
    near = 4 * n_clients * n_landmarks
    keeps = kind == "nystrom" and 8 * near <= limit
    nbytes["clustering"] += near if keeps else 0
    left = int(_USABLE * limit) - sum(nbytes.values())
    if store == "none" or (store == "auto" and predictor == "cosine"):
        store, window, may_be_dense = "none", None, False
        nbytes["covariance"] = row_bytes
    else:
        store, window, may_be_dense, taken = _store_of(store, window, size, left)
        nbytes["covariance"] = taken
    renewed = n_select if keeps else n_clients  # rows whose affinities a clustering computes
    work = _work(kind, store, window, size, renewed, recluster_every)
    plan = Plan(
        clustering=kind,
        eigensolver=_solver(kind, size),
        store=store,
        window=window,
        may_be_dense=may_be_dense,
        n_landmarks=n_landmarks,
        landmarks=landmarks,
        keeps_affinities=keeps,
        nbytes=nbytes,
        work=work,
        limit=limit,
    )
    if plan.total_bytes > limit:
        raise MemoryError(_advice(plan, size))
    return plan


def _clustering_of(wanted: str, size: _Size, limit: int) -> str:
    if size.n_features <= 2:
        return "plane"
    exact, nystrom = (_clustering_bytes(kind, size) for kind in ("exact", "nystrom"))
    affordable = size.n_clients <= EXACT_LIMIT and (2 * exact <= limit or exact <= nystrom)
    return "exact" if wanted == "exact" or (wanted == "auto" and affordable) else "nystrom"


def _solver(kind: str, size: _Size) -> str:
    """Return the name of the eigensolver, for the plan's table."""
    if kind == "exact" and size.direct:
        return f"{'LAPACK' if size.n_clients <= LAPACK_LIMIT else 'ARPACK'}, each time"
    return {
        "plane": "none",
        "exact": "LAPACK, then warm-started Chebyshev subspace iteration",
        "nystrom": "LAPACK on the landmarks",
    }[kind]


def _clustering_bytes(kind: str, size: _Size) -> int:
    n_clients, n_features, n_select, n_landmarks, itemsize, direct = size
    if kind == "plane":
        return 16 * n_clients
    if kind == "nystrom":
        sampled = 4 * min(16 * n_landmarks, n_clients) * n_landmarks
        return n_clients * (4 * n_select + 40) + 3 * sampled + 40 * n_landmarks**2
    width = block_width(n_clients, n_select - 1) if n_select > 1 and n_clients > 2 else n_clients
    # The affinity; the centred affinity in float32, or a normalised one in float64; float64
    # matrices of LAPACK if it solves the first problem; blocks of vectors; normalised rows
    # and one copy of them at the start.
    cells = itemsize + (8 if direct else 4) + (24 if n_clients <= LAPACK_LIMIT else 0)
    return n_clients**2 * cells + 24 * n_clients * width + 2 * n_clients * n_features * itemsize


def _store_of(
    wanted: str, window: int | None, size: _Size, left: int
) -> tuple[str, int | None, bool, int]:
    """Return the store's kind, its window, whether it may become dense, and its bytes."""
    n_clients, n_features = size.n_clients, size.n_features
    one = n_clients * n_features * size.itemsize  # bytes of one residual
    cache = CACHED_PAIRS * one
    padded = -(-n_features // LANES) * LANES
    dense = packed_pairs(n_clients) * padded * size.itemsize + DEFERRED * one
    history = -(-n_clients // 2) * one + cache  # residuals of "auto" before it becomes dense
    if window is not None:
        window = check_count(window, "window")
        if wanted not in ("auto", "window"):
            raise ValueError(f"window must go with store 'window' or 'auto', got {wanted!r}")
        return "window", window, False, window * one + (cache if caches_pairs(window) else 0)
    if wanted == "dense":
        return "dense", None, True, dense
    if wanted == "factored":
        return "factored", None, False, 200 * one + cache
    fits = dense + history <= left
    if wanted == "auto" and fits:
        return "auto", None, True, dense + history
    if wanted == "auto" and 200 * one + cache <= left:
        rounds = (left - cache) // one
        return "window", rounds, False, rounds * one + cache
    rounds = max(min(_WINDOW, left // one), 4)
    return "window", rounds, False, rounds * one


def _work(
    kind: str, store: str, window: int | None, size: _Size, renewed: int, recluster_every: int
) -> dict[str, float]:
    """Return multiply-adds of a steady round; a clustering counts as a mean over its rounds."""
    n_clients, n_features, n_select, n_landmarks, _, direct = size
    area = float(n_clients) * n_features
    products = 10.0 * n_clients**2 * n_select
    if direct and n_clients <= LAPACK_LIMIT:
        products = 2 / 3 * n_clients**3 + 2.0 * n_clients**2 * n_select
    clustering = {
        "plane": 100.0 * n_clients * n_select,
        "exact": area * n_select + products,
        "nystrom": 1.0 * renewed * n_features * n_landmarks
        + 4.0 * n_clients * n_select * (n_landmarks + n_select),
    }[kind]
    read = {"none": 0.0, "dense": 0.5 * n_clients + DEFERRED / 2}.get(
        store, float(min(window or n_clients // 2, n_clients // 2, 200))
    )
    return {
        "clustering": clustering / recluster_every,
        "prediction": area * (read + 2),
        "scores": 6.0 * area,
    }


def _advice(plan: Plan, size: _Size) -> str:
    """Return the error message: memory needed, the limit, and arguments that would help."""
    ways = []
    if plan.clustering == "exact" and size.n_clients > 20 * plan.n_landmarks:
        ways.append("clustering='nystrom'")
    if plan.store in ("dense", "factored", "auto"):
        ways.append("store='window'")
    if plan.window is not None and plan.window > 4:
        ways.append(f"window={max(plan.window // 2, 1)}")
    if size.itemsize == 8:
        ways.append("dtype='float32'")
    if plan.store != "none":
        ways.append("predictor='cosine'")
    ways += ["fewer n_features", "a larger memory_limit"]
    parts = ", ".join(f"{name} {show_bytes(n)}" for name, n in plan.nbytes.items())
    return (
        f"{size.n_clients} clients need {show_bytes(plan.total_bytes)} ({parts}), memory_limit is "
        f"{show_bytes(plan.limit)}; try {', or '.join(ways)}"
    )
