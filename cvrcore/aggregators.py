"""Aggregators: from the models that came back to the next global model.

Framework-neutral: a model is a list of arrays. An aggregator sees the `Selection` that led
to the reports, with its coalitions and probabilities, and may keep state between rounds.
"""

from __future__ import annotations

import abc
import difflib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._validation import Float, Ids, check_ids, check_weights
from .selection import Selection

Arrays = list[NDArray[Any]]


class Aggregator(abc.ABC):
    """Merges reported models; a subclass writes `_shares`, or `_merge` for more."""

    name: ClassVar[str]

    def aggregate(
        self,
        current: Sequence[NDArray[Any]],
        updates: Sequence[Sequence[NDArray[Any]]],
        clients: ArrayLike,
        weights: ArrayLike,
        selection: Selection | None = None,
    ) -> Arrays:
        """Return the next global model.

        Parameters
        ----------
        current : list of arrays
            The model that was sent.
        updates : list of lists of arrays
            The models that came back, aligned with `clients`; arrays like `current`'s.
        clients : array-like of int, shape (len(updates),)
            Who reported.
        weights : array-like of shape (n_clients,)
            Raw sample counts n_k of all clients.
        selection : Selection, optional
            The round's decision.

        Returns
        -------
        list of arrays
            `current` itself, copied, when nobody reported.

        Raises
        ------
        ValueError
            If lengths or shapes disagree, or all who reported have weight 0.
        """
        counts = np.asarray(weights)
        checked = check_weights(weights, counts.shape[0] if counts.ndim == 1 else 0)
        ids = check_ids(clients, "clients", checked.shape[0])
        if len(updates) != ids.size:
            raise ValueError(f"updates must have length {ids.size}, got {len(updates)}")
        wanted = [array.shape for array in current]
        for client, update in zip(ids, updates, strict=True):
            shapes = [array.shape for array in update]
            if shapes != wanted:
                raise ValueError(f"updates of client {client} must be {wanted}, got {shapes}")
        if ids.size == 0:
            return [array.copy() for array in current]
        return self._merge(current, updates, ids, checked, selection)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {"aggregator": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        if state.get("aggregator") != self.name:
            raise ValueError(
                f"state must be of aggregator {self.name!r}, got {state.get('aggregator')!r}"
            )

    @abc.abstractmethod
    def _shares(self, clients: Ids, weights: Float, selection: Selection | None) -> Float:
        """Return each reporter's share, not yet normalised."""

    def _merge(
        self,
        current: Sequence[NDArray[Any]],
        updates: Sequence[Sequence[NDArray[Any]]],
        clients: Ids,
        weights: Float,
        selection: Selection | None,
    ) -> Arrays:
        shares = self._shares(clients, weights, selection)
        total = shares.sum()
        if not total > 0:
            raise ValueError(f"weights of the clients that reported must sum above 0, got {total}")
        return weighted_mean(updates, shares / total)


class SizesAggregator(Aggregator):
    """Each reporter counts by its samples: n_k over the sum of those that reported, Eq. (12)."""

    name = "sizes"

    def _shares(self, clients: Ids, weights: Float, selection: Selection | None) -> Float:
        return weights[clients]


class MeanAggregator(Aggregator):
    """Each reporter counts alike: what policies that draw by size were published with."""

    name = "mean"

    def _shares(self, clients: Ids, weights: Float, selection: Selection | None) -> Float:
        return np.ones(clients.size)


class CoalitionMassAggregator(Aggregator):
    """Each coalition counts by the samples of all its clients; ours, not the paper's.

    Several reporters of one coalition share its mass by their own samples. A coalition that
    nobody reported for drops out. Without coalitions, as in warm-up, shares are by `sizes`.
    """

    name = "coalition-mass"

    def _shares(self, clients: Ids, weights: Float, selection: Selection | None) -> Float:
        own = weights[clients]
        if selection is None or selection.coalitions is None:
            return own
        labels = selection.coalitions
        mass = np.bincount(labels, weights=weights)
        reported = np.bincount(labels[clients], weights=own, minlength=mass.size)
        of_client = labels[clients]
        shares: Float = own * (mass[of_client] / np.maximum(reported[of_client], 1e-300))
        return shares


def weighted_mean(updates: Sequence[Sequence[NDArray[Any]]], shares: Float) -> Arrays:
    """Return the mean of models with the given shares, each array in its own dtype."""
    merged = []
    for arrays in zip(*updates, strict=True):
        first = arrays[0]
        kind = first.dtype if first.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        mean = np.multiply(first, shares[0], dtype=kind)
        # Two arrays that stay in cache, not a stack of all models that does not.
        term = np.empty_like(mean)
        for array, share in zip(arrays[1:], shares[1:], strict=True):
            mean += np.multiply(array, share, out=term, dtype=kind)
        merged.append(mean.astype(first.dtype, copy=False))
    return merged


AGGREGATORS: dict[str, type[Aggregator]] = {
    kind.name: kind for kind in (SizesAggregator, MeanAggregator, CoalitionMassAggregator)
}


def make_aggregator(name: str, **options: Any) -> Aggregator:
    """Build the aggregator called `name`.

    Examples
    --------
    >>> import numpy as np
    >>> make_aggregator("sizes").aggregate(
    ...     [np.zeros(1)], [[np.array([1.0])], [np.array([4.0])]], [0, 2], [30, 9, 15]
    ... )
    [array([2.])]
    """
    if name not in AGGREGATORS:
        known = ", ".join(repr(known) for known in AGGREGATORS)
        close = difflib.get_close_matches(str(name), AGGREGATORS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"aggregator must be one of {known}, got {name!r}{hint}")
    return AGGREGATORS[name](**options)
