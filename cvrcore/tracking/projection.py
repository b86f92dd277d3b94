"""Rows of clients in, points in the plane out: principal components, stable from call to call."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..selection import Selection
from .records import Snapshot

Float = NDArray[np.float64]

MAX_POINTS: Final = 400  # clients of a snapshot, the picked ones apart
MAX_ASKED: Final = 8_000  # clients among which those with a report are looked for


def principal_plane(rows: NDArray[np.floating[Any]]) -> Float:
    """Return the two leading principal coordinates of each row, (n, 2).

    The Gram matrix of n rows is used, so that the work grows as n^2 D, never as D^2.

    Examples
    --------
    >>> points = principal_plane(np.array([[3.0, 0.0, 1.0], [-3.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    >>> np.abs(points[:, 0]).round(6).tolist()
    [3.0, 3.0, 0.0]
    """
    centred = np.asarray(rows, dtype=np.float64)
    centred = centred - centred.mean(axis=0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    points = np.zeros((len(centred), 2))
    for axis in range(min(2, len(centred))):
        points[:, axis] = vectors[:, -1 - axis] * np.sqrt(max(values[-1 - axis], 0.0))
    return points


def directions(rows: NDArray[np.floating[Any]]) -> Float:
    """Return each row divided by its length: coalitions are made of directions, Algorithm 1."""
    values = np.asarray(rows, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(lengths > 0, lengths, 1.0)


class Projection:
    """Makes snapshots of a run's clients; each is turned to agree with the one before.

    Points are principal coordinates of the directions of the clients' rows.
    """

    def __init__(self) -> None:
        self._last: dict[int, Float] = {}

    def snapshot(self, selector: Any, selection: Selection) -> Snapshot | None:
        """Return the clients in the plane; None for a policy that keeps no rows.

        At most `MAX_POINTS` clients at even distances among those seen, and the picked ones.
        """
        if not hasattr(selector, "rows_of") or selection.coalitions is None:
            return None
        n_clients = len(selection.coalitions)
        even = np.linspace(0, n_clients - 1, min(n_clients, MAX_ASKED)).astype(np.int64)
        seen = selector.seen(np.union1d(even, selection.clients))
        if len(seen) < 3:
            return None
        even = np.linspace(0, len(seen) - 1, min(len(seen), MAX_POINTS)).astype(np.int64)
        clients = np.union1d(seen[even], np.intersect1d(selection.clients, seen)[:MAX_POINTS])
        points = self._aligned(clients, principal_plane(directions(selector.rows_of(clients))))

        def entries(values: Any) -> list[float | None] | None:
            if values is None:
                return None
            return [float(v) if np.isfinite(v) else None for v in values[clients]]

        return Snapshot(
            clients.tolist(),
            [float(f"{v:.5g}") for v in points[:, 0]],
            [float(f"{v:.5g}") for v in points[:, 1]],
            selection.coalitions[clients].tolist(),
            entries(selection.scores),
            entries(selection.probabilities),
        )

    def _aligned(self, clients: NDArray[np.int64], points: Float) -> Float:
        """Rotate or mirror points so that they lie near the last ones (orthogonal Procrustes)."""
        shared = [i for i, k in enumerate(clients.tolist()) if k in self._last]
        if len(shared) > 2:
            before = np.array([self._last[int(clients[i])] for i in shared])
            now = points[shared]
            moment = (now - now.mean(axis=0)).T @ (before - before.mean(axis=0))
            left, _, right = np.linalg.svd(moment)
            points = points @ (left @ right)
        self._last = {int(k): point for k, point in zip(clients, points, strict=True)}
        return points
