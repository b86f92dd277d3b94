"""Control variates per coalition: updates and remembered updates in, the next model out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..runtime.threads import serialised, single_blas_thread
from ..validation import Float, Ids, Mask, check_number, check_shape, check_stored
from .base import Aggregator, Arrays, RoundUpdates, loading
from .flat import FlatLayout
from .importance import FORMS, check_form, importance_factors, inclusion_for
from .noise import step_variance
from .row_store import LIMIT, RowStore


class CoalitionMemoryAggregator(Aggregator):
    r"""One remembered update per coalition is used in place of each of its clients.

    The step is that of `MemoryAggregator` with :math:`m_k = M_p` for all k of coalition p: it
    is unbiased too, with P remembered updates instead of K. When coalitions change, M_p
    becomes the mean of the old ones over the clients of p, weighted by samples: it is fixed
    before the draw, and the mean over all clients stays the same. Rounds without coalitions,
    as in warm-up, have a single coalition of all clients. After the round, M_p is the mean of
    the updates of p, weighted by samples.

    Where the factors of a coalition sum to its share of the samples (``form="stratified"``, or
    one client drawn in proportion to its samples) M_p cancels: the step is then that of
    `CoalitionMassAggregator`, except for coalitions without a report. M_p reduces the variance
    where factors vary.

    Parameters
    ----------
    form, dtype, limit, folder
        See `MemoryAggregator`; there is no form "none".
    fade : float in (0, 1], default=1
        Factor on a remembered update in each round in which no client of its coalition reports.

    Examples
    --------
    >>> import numpy as np
    >>> import cvrcore
    >>> from cvrcore.aggregators import make_aggregator
    >>> aggregator, model = make_aggregator("coalition-memory"), [np.zeros(1)]
    >>> for client in (0, 2):
    ...     picked = cvrcore.Selection(
    ...         np.array([client]), np.array([0, 0, 1]), inclusion=np.array([0.4, 0.4, 0.2])
    ...     )
    ...     received = [[model[0] + 1.0]]
    ...     model = aggregator.aggregate(model, received, picked.clients, [10, 10, 10], picked)
    >>> sorted(aggregator.state_dict())
    ['aggregator', 'bank', 'heard', 'labels']
    """

    name = "coalition-memory"
    whole_population = True

    def __init__(
        self,
        form: str = "horvitz-thompson",
        dtype: str = "float32",
        limit: int = LIMIT,
        folder: str | os.PathLike[str] | None = None,
        fade: float = 1.0,
    ) -> None:
        self.form = check_form(form, FORMS)
        self.fade = check_number(fade, "fade", above=0, maximum=1)
        self._store = RowStore(dtype, limit, folder)
        self._labels: Ids = np.zeros(0, dtype=np.int64)
        self._heard: Mask = np.zeros(0, dtype=bool)  # clients whose updates are in some mean

    @property
    def nbytes(self) -> int:
        """Bytes of the remembered updates."""
        return self._store.nbytes

    def _merge(self, received: RoundUpdates) -> Arrays:
        clients, weights = received.clients, received.weights
        inclusion = inclusion_for(self.name, received)
        assert received.selection is not None
        factors = importance_factors(self.form, received, weights, inclusion)
        layout = FlatLayout(received.current)
        base = layout.flatten(received.current)
        changes = layout.differences(received.updates, clients, base)
        labels = received.selection.coalitions
        if labels is None:
            labels = np.zeros(weights.size, dtype=np.int64)
        known, before = self._current_means(labels, weights, layout.size)

        mass = np.bincount(labels, weights=weights)
        share = np.zeros((mass.size, clients.size))
        share[labels[clients], np.arange(clients.size)] = weights[clients]
        counted = share.sum(axis=1)
        share /= np.where(counted > 0, counted, 1.0)[:, None]
        taken = np.bincount(labels[clients], weights=factors, minlength=mass.size)
        with single_blas_thread():
            step = (mass / mass.sum() - taken).astype(np.float32) @ before
            step += factors.astype(np.float32) @ changes
            after = share.astype(np.float32) @ changes
        if self.measures_noise:
            errors = changes - before[labels[clients]]
            if self.form != "horvitz-thompson":
                errors -= (factors / factors.sum()).astype(np.float32) @ errors
            self.noise = step_variance(factors, errors, received.inclusion)
        self._store.fit(mass.size, layout.size)
        for p in range(mass.size):
            if counted[p] > 0:
                self._store.write(p, after[p])
            elif known:
                self._store.write(p, self.fade * before[p])
        self._labels = labels.copy()
        added = np.zeros(weights.size - self._heard.size, dtype=bool)
        self._heard = np.concatenate([self._heard, added])
        self._heard[clients] = True
        return layout.unflatten(base + step)

    def _current_means(self, labels: Ids, weights: Float, size: int) -> tuple[bool, Float]:
        """Return whether any update is remembered, and M_p of the current coalitions."""
        n_coalitions = int(labels.max()) + 1
        if not self._store.known.any():
            return False, np.zeros((n_coalitions, size), dtype=np.float32)
        self._store.fit(self._store.n_rows, size)
        n_old = int(self._labels.max()) + 1
        known = self._store.known[:n_old]
        old = np.zeros((n_old, size), dtype=np.float32)
        for q in np.flatnonzero(known):
            old[q] = self._store.read(int(q))
        n_both = min(labels.size, self._labels.size)
        # Clients that joined since, and clients of weight 0, do not contribute.
        table = np.zeros((n_coalitions, n_old))
        np.add.at(table, (labels[:n_both], self._labels[:n_both]), weights[:n_both])
        table[:, ~known] = 0.0
        mass = table.sum(axis=1, keepdims=True)
        overall = table.sum(axis=0) / max(table.sum(), 1e-300)
        shares = np.where(mass > 0, table / np.where(mass > 0, mass, 1.0), overall)
        with single_blas_thread():
            return True, shares.astype(np.float32) @ old

    def _forget(self, client: int) -> None:
        """Erase all remembered updates if they contain this client's: means cannot be undone."""
        if client >= self._heard.size or not self._heard[client]:
            return
        for p in range(self._store.n_rows):
            self._store.erase(p)
        self._heard[:] = False

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; see `RowStore` about files."""
        return {
            **super().state_dict(),
            "labels": self._labels.copy(),
            "heard": self._heard.copy(),
            "bank": self._store.state(),
        }

    @loading
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        super().load_state_dict(state)
        labels = np.array(
            check_shape(state["labels"], "labels", state["labels"].shape[:1]), np.int64
        )
        if labels.size and labels.min() < 0:
            raise ValueError(f"labels must be non-negative, got {labels.min()}")
        if labels.size and labels.max() >= state["bank"]["shape"][0]:
            raise ValueError(f"labels must be below {state['bank']['shape'][0]}, as rows are")
        # Older states do not tell whose updates they hold: anybody's.
        heard = check_stored(state.get("heard", np.ones(labels.size)), "heard", labels.size, bool)
        self._store.restore(state["bank"])
        self._labels, self._heard = labels, heard
