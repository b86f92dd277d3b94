"""Recorded rounds in, estimated steps out: the base of estimators that are only replayed."""

from __future__ import annotations

from typing import Any

from cvrcore.aggregators import Aggregator


class Replayed(Aggregator):
    """An estimator of experiments: it runs through recorded rounds, and is never saved."""

    whole_population = True
    needs_layers = True

    def state_dict(self) -> dict[str, Any]:
        """Refuse: a saved state that lacks what was learned would go on with another result."""
        raise TypeError(f"aggregator {self.name!r} must not be saved: it replays recorded rounds")
