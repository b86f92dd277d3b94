"""The affinity less its mean: what products with the normalised affinity are made of."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ._validation import Float, Ids, check_count, check_matrix, check_number, check_vector
from .threads import run_chunks

_CHUNK: Final = 256  # rows that one task works on
_OFTEN: Final = 8  # times that each row is replaced, on average, before all are worked out


class Deviations:
    """``A - centre`` in float32 and degrees, of which a round brings P rows up to date.

    Where clients are close together affinities are, too: what sets them apart is small, and
    float32 keeps seven digits of *it*.

    Parameters
    ----------
    affinity : array of shape (n_clients, n_clients)
        Symmetric.
    """

    def __init__(self, affinity: Float) -> None:
        n_clients = affinity.shape[0]
        self.values = np.empty(affinity.shape, dtype=np.float32)
        self.replaced = 0  # rows, since all were worked out
        # In float32, so that taking it off a float32 affinity loses nothing.
        self.centre = float(np.float32(affinity[:: 1 + n_clients // _CHUNK].mean(dtype=np.float64)))
        totals = np.empty(n_clients)

        def fill(start: int, stop: int) -> None:
            rows = slice(start, stop)
            np.subtract(affinity[rows], self.centre, out=self.values[rows], casting="same_kind")
            self.values[rows].sum(axis=1, dtype=np.float64, out=totals[rows])

        run_chunks(fill, n_clients, _CHUNK)
        self.totals = totals  # of each row

    @property
    def degrees(self) -> Float:
        """Return each client's degree, of the affinity as it is kept."""
        return self.totals + self.centre * self.totals.size

    @property
    def due(self) -> bool:
        """Return whether it is time to begin anew, rows having been replaced many times over.

        Totals gather rounding, and the mean moves away from the centre.
        """
        return self.replaced >= _OFTEN * self.totals.size

    def update(self, ids: Ids, rows: Float) -> None:
        """Replace affinities of some clients with all by `rows`: O(len(ids) K)."""
        values = np.subtract(rows, self.centre).astype(np.float32, copy=False)
        self.totals += values.sum(axis=0, dtype=np.float64)
        self.totals -= self.values[ids].sum(axis=0, dtype=np.float64)
        self.totals[ids] = values.sum(axis=1, dtype=np.float64)
        self.values[ids] = values
        self.values[:, ids] = values.T
        self.replaced += ids.size

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "values": self.values.copy(),
            "totals": self.totals.copy(),
            "centre": self.centre,
            "replaced": self.replaced,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], n_clients: int) -> Deviations:
        """Build from what `state` returned."""
        found = cls.__new__(cls)
        shape = (n_clients, n_clients)
        found.values = check_matrix(state["values"], "values", shape, np.float32).copy()
        found.totals = check_vector(state["totals"], "totals", n_clients).copy()
        found.centre = check_number(state["centre"], "centre", minimum=0, maximum=1)
        found.replaced = check_count(state["replaced"], "replaced", minimum=0)
        if not (found.degrees > 0).all():
            raise ValueError(f"totals must leave degrees positive, got {found.degrees.min():g}")
        return found
