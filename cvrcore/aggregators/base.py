"""The protocol of every aggregator: from the models that came back to the next one."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import Float, Ids, check_finite, check_ids, check_weights
from ..selection import Selection

Arrays = list[NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class News:
    """One round, checked: the arguments of `Aggregator.aggregate`."""

    current: Sequence[NDArray[Any]]
    updates: Sequence[Sequence[NDArray[Any]]]
    clients: Ids
    weights: Float
    selection: Selection | None


class Aggregator(abc.ABC):
    """Merges reported models; a subclass writes `_merge`."""

    name: ClassVar[str]
    #: Whether it estimates the update of the whole population, so that one model must
    #: serve all clients: algorithms that keep several models cannot use it.
    whole_population: ClassVar[bool] = False

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
        return self._merge(News(current, updates, ids, checked, selection))

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        return {"aggregator": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        if state.get("aggregator") != self.name:
            raise ValueError(
                f"state must be of aggregator {self.name!r}, got {state.get('aggregator')!r}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes that the server keeps between rounds, in memory or on disk."""
        return 0

    @abc.abstractmethod
    def _merge(self, news: News) -> Arrays:
        """Return the next model; somebody reported."""


class ShareAggregator(Aggregator):
    """An aggregator whose model is a weighted sum of those that came back."""

    @abc.abstractmethod
    def _shares(self, news: News) -> Float:
        """Return how much each reporter counts, not yet normalised."""

    @property
    def _keeps_sum(self) -> bool:
        """Whether shares mean what they say: the rest up to 1 is left to the model sent."""
        return False

    def _merge(self, news: News) -> Arrays:
        shares = self._shares(news)
        total = shares.sum()
        if not total > 0:
            raise ValueError(f"weights of the clients that reported must sum above 0, got {total}")
        if not self._keeps_sum:
            return weighted_mean(news.updates, shares / total)
        return weighted_mean([*news.updates, news.current], np.append(shares, 1.0 - total))


class Flat:
    """Models as one vector: the form in which updates are remembered.

    Parameters
    ----------
    model : list of arrays
        Any model of the family; only shapes and dtypes are read.
    """

    def __init__(self, model: Sequence[NDArray[Any]]) -> None:
        self._kinds = [(array.shape, array.dtype) for array in model]
        self.size = sum(array.size for array in model)

    def join(self, model: Sequence[NDArray[Any]]) -> Float:
        """Return the model as one vector: float32 if all its arrays are, else float64."""
        single = all(dtype == np.float32 for _, dtype in self._kinds)
        parts = [np.asarray(a, dtype=np.float32 if single else np.float64).ravel() for a in model]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, vector: Float) -> Arrays:
        """Return the vector as arrays; whole numbers are rounded."""
        arrays, start = [], 0
        for shape, dtype in self._kinds:
            stop = start + int(np.prod(shape))
            part = vector[start:stop].reshape(shape)
            arrays.append((np.rint(part) if dtype.kind in "iu" else part).astype(dtype))
            start = stop
        return arrays

    def changes(
        self, updates: Sequence[Sequence[NDArray[Any]]], clients: Ids, base: Float
    ) -> Float:
        """Return what each client changed, rows of float32; what is not finite is refused."""
        found = np.empty((len(updates), self.size), dtype=np.float32)
        for client, update, row in zip(clients, updates, found, strict=True):
            with np.errstate(over="ignore", invalid="ignore"):  # refused on the next line
                np.subtract(self.join(update), base, out=row, casting="same_kind")
            check_finite(row, f"updates of client {client}")
        return found


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
