"""Guards of a `Selector`: settings in, incidents out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import Ids
from .guards import Gate, Guards, Incident


class Guarded:
    """The part of `Selector` that holds its guards."""

    n_clients: int
    n_select: int
    guards: Guards
    _gate: Gate | None
    _lock: threading.RLock
    _pending: Selection | None

    @serialised
    def guard(self, /, **settings: Any) -> None:
        """Set limits on hostile and broken clients from now on; see `Guards`.

        Resets all counts; without settings all limits are off. `make_selector` takes the
        settings too.

        Examples
        --------
        >>> import cvrcore
        >>> selector = cvrcore.CoalitionSelector(n_clients=100, n_features=300, n_select=10)
        >>> selector.guard(max_norm="median", max_share=1.25)
        """
        guards = Guards(**settings)
        if self._pending is not None:
            raise ValueError("guard must come between rounds: observe the pending one first")
        self._use_guards(guards)

    def _use_guards(self, guards: Guards) -> None:
        if not isinstance(guards, Guards):
            raise TypeError(f"guards must be a cvrcore.Guards, got {guards!r}")
        self.guards = guards
        self._gate = None if guards == Guards() else Gate(guards, self.n_clients)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Return the last thousand actions of guards, oldest first."""
        with self._lock:
            return () if self._gate is None else tuple(self._gate.record)

    @property
    def incident_counts(self) -> Ids:
        """Return the number of all guard actions on each client's reports, (K,)."""
        with self._lock:
            if self._gate is None:
                return np.zeros(self.n_clients, dtype=np.int64)
            return self._gate.counts.copy()
