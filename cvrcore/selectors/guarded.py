"""Guards of a `Selector`: settings in, incidents out."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ..guards import Gate, Guards, Incident, as_guards
from ..guards.bounds import weight_bound
from ..runtime.journal import Atomic, atomic
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import Float, Ids

log = logging.getLogger(__name__)


class Guarded(Atomic):
    """The part of `Selector` that holds its guards."""

    n_clients: int
    n_select: int
    weights: Float
    round: int
    guards: Guards
    _rng: np.random.Generator
    _gate: Gate | None
    _pending: Selection | None

    @atomic
    def guard(self, guards: Guards | str | None = None, /, **settings: Any) -> None:
        """Set limits on hostile and broken clients from now on; see `Guards`.

        Resets all counts; without arguments all limits are off. `make_selector` takes the
        same arguments. Sample counts that `max_weight` has clipped stay clipped.

        Parameters
        ----------
        guards : Guards or "recommended", optional
        **settings
            Fields of `Guards` one by one, instead of `guards`.

        Examples
        --------
        >>> import cvrcore
        >>> selector = cvrcore.CoalitionSelector(n_clients=100, n_features=300, n_select=10)
        >>> selector.guard(max_norm="median", max_share=1.25)
        >>> selector.guard("recommended")
        """
        if guards is not None and settings:
            raise TypeError(f"{next(iter(settings))} must not be given together with guards")
        chosen = Guards(**settings) if guards is None else as_guards(guards)
        if self._pending is not None:
            raise ValueError("guard must come between rounds: observe the pending one first")
        self._use_guards(chosen)

    def _use_guards(self, guards: Guards) -> None:
        weights = self._bounded_weights(guards, self.weights)
        gate = None
        if guards != Guards():
            gate = Gate(guards, self.n_clients, self._rng, weights)
        self.guards, self._gate, self.weights = guards, gate, weights
        if guards.max_weight is not None:
            self._weights_clipped()

    def _bounded_weights(self, guards: Guards, claimed: Float) -> Float:
        """Return sample counts within `max_weight`, measured by those of the present clients."""
        present = self.weights if self.weights.any() else claimed
        if guards.max_weight is None or not present.any():
            return claimed
        bound = weight_bound(guards.max_weight, present)
        over = int(np.count_nonzero(claimed > bound))
        if not over:
            return claimed
        log.info("max_weight: %d of %d sample counts count as %g", over, claimed.size, bound)
        return np.minimum(claimed, bound)

    def _weights_clipped(self) -> None:
        """React to sample counts that `max_weight` has clipped; for policies to override."""

    @property
    @serialised
    def incidents(self) -> tuple[Incident, ...]:
        """Return the last thousand actions of guards, oldest first."""
        return () if self._gate is None else tuple(self._gate.record)

    @property
    @serialised
    def incident_counts(self) -> Ids:
        """Return the number of all guard actions on each client's reports, (K,)."""
        if self._gate is None:
            return np.zeros(self.n_clients, dtype=np.int64)
        return self._gate.counts.copy()
