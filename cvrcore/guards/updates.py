"""The guards of one aggregator: sample counts and models in, both within limits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.journal import Noted
from ..validation import Float, Ids
from .bounds import RunningBound, weight_bound
from .settings import Guards

Models = Sequence[Sequence[NDArray[Any]]]


class UpdateGuard(Noted):
    """Bounds on the weight and on the length of each client's update.

    Parameters
    ----------
    guards : Guards
        `max_weight` and `max_norm` of it are used. A number for `max_norm` is a length over all
        parameters of the model.
    """

    def __init__(self, guards: Guards) -> None:
        self.guards = guards
        self.lengths = RunningBound("update", guards.max_norm)

    def bounded_weights(self, weights: Float) -> Float:
        """Return the sample counts of all clients, each at most `max_weight`."""
        if self.guards.max_weight is None:
            return weights
        return np.minimum(weights, weight_bound(self.guards.max_weight, weights))

    def bounded_updates(
        self, current: Sequence[NDArray[Any]], updates: Models, clients: Ids
    ) -> tuple[Models, Float]:
        """Return the models received, each within `max_norm` of the model sent, and lengths.

        Raises
        ------
        ValueError
            If a model is not finite; the message names its client.
        """
        if self.guards.max_norm is None or not len(updates):
            return updates, np.empty(0)
        lengths = np.array([_length(current, update) for update in updates])
        if not np.isfinite(lengths).all():
            client = clients[~np.isfinite(lengths)][0]
            raise ValueError(f"updates of client {client} must be finite and of finite length")
        default = _length([np.zeros_like(array) for array in current], current) or 1.0
        bound = self.lengths.limits(lengths, default)[1]
        bounded = [
            update if length <= bound else _shortened(current, update, bound / length)
            for update, length in zip(updates, lengths, strict=True)
        ]
        return bounded, lengths

    def remember(self, clients: Ids, lengths: Float) -> None:
        """Add the lengths of a round to the running median, once its model is made."""
        self.lengths.remember(clients, lengths)

    def forget(self, client: int) -> None:
        """Remove the lengths of one client's updates."""
        self.lengths.forget(client)

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return self.lengths.state("lengths")

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""
        self.lengths.restore(state, "lengths", np.iinfo(np.int64).max)


def _length(current: Sequence[NDArray[Any]], update: Sequence[NDArray[Any]]) -> float:
    """Return the length of the change of all real arrays; counters of a model do not count."""
    total = 0.0
    for before, after in zip(current, update, strict=True):
        if before.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses them
                change = np.subtract(after, before, dtype=np.float64).ravel()
                total += float(change @ change)
    return float(np.sqrt(total))


def _shortened(
    current: Sequence[NDArray[Any]], update: Sequence[NDArray[Any]], factor: float
) -> list[NDArray[Any]]:
    return [
        (before + factor * np.subtract(after, before, dtype=np.float64)).astype(after.dtype)
        if before.dtype.kind == "f"
        else after
        for before, after in zip(current, update, strict=True)
    ]
