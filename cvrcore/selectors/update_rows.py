"""Policies that keep each client's last update: reports in, one row per client kept."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..validation import Float, Ids, Mask, check_count, check_matrix, check_shape, check_stored
from .base import Report, Selector
from .guards import Guards

#: Largest coordinate of an update: squares and float32 distances stay finite.
LARGEST: Final = 1e17


class UpdateRowsSelector(Selector):
    """Base of policies that compare clients by their last update, stale or not.

    A client that never reported has no row. Policies pick such clients first, at random, so
    that every client is seen after about ``n_clients / n_select`` rounds.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    n_features : int
        Watched coordinates of an update.
    """

    needs = frozenset({"updates"})
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_rows"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_features: int,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.n_features = check_count(n_features, "n_features")
        self._rows = np.zeros((self.n_clients, self.n_features))
        self._seen: Mask = np.zeros(self.n_clients, dtype=bool)

    def _unseen_first(self, eligible: Mask) -> Ids:
        """Return up to `n_select` eligible clients that never reported, in random order."""
        unseen = np.flatnonzero(eligible & ~self._seen)
        return self._rng.permutation(unseen)[: self.n_select].astype(np.int64)

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        if name != "updates":
            return None
        if n_reported == 0:
            return np.empty((0, self.n_features))
        shape = (n_reported, self.n_features)
        return check_matrix(value, name, shape, np.float64, LARGEST)

    def _learn(self, report: Report) -> None:
        if report.clients.size:
            if self._journal is not None:
                self._journal.rows(report.clients, self._rows)
            self._rows[report.clients] = report.signals["updates"]
            self._seen[report.clients] = True

    def _grow(self, n_clients: int, added: Float) -> None:
        self._rows = np.concatenate([self._rows, np.zeros((added.size, self.n_features))])
        self._seen = np.concatenate([self._seen, np.zeros(added.size, dtype=bool)])

    def _forget(self, client: int) -> None:
        seen = self._seen.copy()
        seen[client] = False
        self._rows[client] = 0.0
        self._restore({"rows": self._rows, "seen": seen})

    def _config(self) -> dict[str, Any]:
        return {"n_features": self.n_features}

    def _learned(self) -> dict[str, Any]:
        # Rows of clients never seen too: a file then justifies all that loading it allocates.
        return {"rows": self._rows.copy(), "seen": self._seen.copy()}

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        super()._check_sizes(config, learned)
        n_features = check_count(config["n_features"], "n_features")
        check_shape(learned["rows"], "rows", (config["n_clients"], n_features))

    def _restore(self, learned: dict[str, Any]) -> None:
        seen = check_stored(learned["seen"], "seen", self.n_clients, bool)
        rows = check_matrix(learned["rows"], "rows", self._rows.shape, np.float64, LARGEST)
        self._seen, self._rows = seen, np.where(seen[:, None], rows, 0.0)
