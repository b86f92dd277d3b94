"""Guards under the name of earlier releases; they are in `cvrcore.guards`."""

from __future__ import annotations

from ..guards import SETTINGS, Gate, Guards, Incident, Judged, as_guards

__all__ = ["SETTINGS", "Gate", "Guards", "Incident", "Judged", "as_guards"]
