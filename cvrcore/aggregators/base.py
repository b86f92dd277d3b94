"""The protocol of every aggregator: the models of a round in, the next global model out."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..guards import Guards, UpdateGuard, as_guards
from ..runtime.journal import Atomic, Journal, atomic
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import Float, Ids, check_count, check_ids, check_weights

Arrays = list[NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class RoundUpdates:
    """The checked arguments of one call of `Aggregator.aggregate`."""

    current: Sequence[NDArray[Any]]
    updates: Sequence[Sequence[NDArray[Any]]]
    clients: Ids
    weights: Float
    selection: Selection | None

    @property
    def inclusion(self) -> Float | None:
        """Inclusion probabilities of the clients that reported, where the policy states them."""
        stated = None if self.selection is None else self.selection.inclusion
        return None if stated is None else stated[self.clients]

    @property
    def times_drawn(self) -> Float:
        """Return how often each of `clients` was drawn; once without a selection."""
        if self.selection is None or self.selection.counts is None:
            return np.ones(self.clients.size)
        times = np.ones(self.weights.size)
        times[self.selection.clients] = self.selection.counts
        return times[self.clients]


def loading(method: Callable[[Any, dict[str, Any]], None]) -> Callable[[Any, dict[str, Any]], None]:
    """Make a `load_state_dict` atomic; a malformed state raises ValueError, whatever is wrong."""
    load = atomic(method)

    @functools.wraps(method)
    def checked(self: Any, state: dict[str, Any]) -> None:
        try:
            load(self, state)
        except (ValueError, RuntimeError, MemoryError):
            raise
        except Exception as error:  # a malformed state can raise nearly anything
            raise ValueError(f"state is incomplete or malformed: {error!r}") from error

    return checked


class Aggregator(Atomic, abc.ABC):
    """Computes the next global model; a subclass implements `_merge`.

    `aggregate` and `load_state_dict` are atomic: an exception or a signal in one of them leaves
    the state before it, see `cvrcore.runtime.journal`.

    Examples
    --------
    An aggregator that takes the median of each coordinate:

    >>> import numpy as np
    >>> from cvrcore.aggregators import Aggregator
    >>> class MedianAggregator(Aggregator):
    ...     name = "median"
    ...     def _merge(self, received):
    ...         return [np.median(arrays, axis=0) for arrays in zip(*received.updates, strict=True)]
    >>> models = [[np.array([0.0])], [np.array([1.0])], [np.array([50.0])]]
    >>> MedianAggregator().aggregate([np.zeros(1)], models, [0, 1, 2], [10, 10, 10])
    [array([1.])]
    """

    name: ClassVar[str]
    #: Whether it estimates the update of the whole population: all clients then share one
    #: model, and algorithms that keep several models cannot use it.
    whole_population: ClassVar[bool] = False
    #: Whether it looks at single layers: a model must then come as one array a parameter, in
    #: the order of the layers. Others treat a model as one vector.
    needs_layers: ClassVar[bool] = False
    #: Whether to estimate the variance of each step, and the last estimate: a server optimiser
    #: that adapts its step length asks for it.
    measures_noise: bool = False
    noise: float | None = None
    #: With `measures_noise`: the mean update of this round's reports alone, without memory.
    fresh: Arrays | None = None
    _guard: UpdateGuard | None = None
    _lock = contextlib.nullcontext()  # threads do not share an aggregator

    def enlist(self, journal: Journal) -> None:
        """Take part in a verb of another aggregator, of which this one is a part."""
        self._enlist(journal)
        self._journal = journal

    @atomic
    def guard(self, guards: Guards | str | None) -> None:
        """Bound the sample counts and the updates of clients from the next round on.

        Of `guards`, an object or "recommended", `max_weight` and `max_norm` are used; None
        removes the bounds.
        """
        limits = as_guards(guards)
        bounded = limits.max_weight is not None or limits.max_norm is not None
        self._guard = UpdateGuard(limits) if bounded else None

    @atomic
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
            The models received, aligned with `clients`; arrays of the shapes of `current`.
        clients : array-like of int, shape (len(updates),)
            The clients that reported.
        weights : array-like of shape (n_clients,)
            Sample counts n_k of all clients, not normalised.
        selection : Selection, optional
            The round's decision.

        Returns
        -------
        list of arrays
            A copy of `current` if no client reported; an aggregator with a memory may step
            by it where the policy picked nobody.

        Raises
        ------
        ValueError
            If lengths or shapes disagree, a client was not picked, all clients that reported have
            weight 0, or the sum of the weights overflows.
        TypeError
            If a model is one array or a dictionary instead of a list of arrays.
        """
        _check_model(current, "current")
        counts = np.asarray(weights)
        checked = check_weights(weights, counts.shape[0] if counts.ndim == 1 else 0)
        if selection is not None:
            _check_size(selection, checked.shape[0])
        ids = check_ids(clients, "clients", checked.shape[0])
        if selection is not None and (strangers := np.setdiff1d(ids, selection.clients)).size:
            raise ValueError(
                f"clients must have been selected this round, got client {strangers[0]}: pass ids "
                "of Selection.clients"
            )
        if len(updates) != ids.size:
            raise ValueError(f"updates must have length {ids.size}, got {len(updates)}")
        wanted = [array.shape for array in current]
        for client, update in zip(ids, updates, strict=True):
            _check_model(update, f"updates of client {client}")
            shapes = [array.shape for array in update]
            if shapes != wanted:
                raise ValueError(f"updates of client {client} must be {wanted}, got {shapes}")
        received = RoundUpdates(current, updates, ids, checked, selection)
        if self._guard is None:
            return self._merge_any(received)
        weights = self._guard.bounded_weights(checked)
        bounded, lengths = self._guard.bounded_updates(current, updates, ids)
        received = RoundUpdates(current, bounded, ids, weights, selection)
        merged = self._merge_any(received)
        self._guard.remember(ids, lengths)
        return merged

    @atomic
    def forget(self, client: int) -> None:
        """Erase everything that is remembered of this client; an unknown one is ignored.

        Pass the weight 0 for it from now on.
        """
        client = check_count(client, "client", minimum=0)
        if self._guard is not None:
            self._guard.forget(client)
        self._forget(client)

    def _forget(self, client: int) -> None:
        """Erase what the rule itself remembers of a client."""

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values."""
        state: dict[str, Any] = {"aggregator": self.name}
        if self._guard is not None:
            state["guard"] = self._guard.state()
        return state

    @loading
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        if state.get("aggregator") != self.name:
            raise ValueError(
                f"state must be of aggregator {self.name!r}, got {state.get('aggregator')!r}"
            )
        if "server" in state:
            raise ValueError("state must be of an aggregator without a server optimiser")
        if self._guard is not None and "guard" in state:  # older states have none
            self._guard.restore(state["guard"])

    @property
    def nbytes(self) -> int:
        """Bytes that the server keeps between rounds, in memory or on disk."""
        return 0

    def _merge_any(self, received: RoundUpdates) -> Arrays:
        """Return the next model of a round with or without reports."""
        if not received.clients.size:
            return self._merge_nobody(received)
        if self.measures_noise:
            self.fresh = fresh_update(received)
        return self._merge(received)

    def _merge_nobody(self, received: RoundUpdates) -> Arrays:
        """Return the next model of a round without a report."""
        return [array.copy() for array in received.current]

    @abc.abstractmethod
    def _merge(self, received: RoundUpdates) -> Arrays:
        """Return the next model; at least one client reported."""


def _check_model(model: Any, name: str) -> None:
    """Raise TypeError unless a model is a sequence of arrays."""
    if isinstance(model, np.ndarray):
        raise TypeError(f"{name} must be a list of arrays, got one array: pass [array]")
    if isinstance(model, Mapping):
        raise TypeError(f"{name} must be a list of arrays, got a dictionary: pass its values")


def _check_size(selection: Selection, n_weights: int) -> None:
    """Raise if the selection was drawn from more clients than there are weights."""
    stated = (selection.coalitions, selection.scores, selection.probabilities, selection.expected)
    lengths = [array.shape[0] for array in stated if array is not None]
    inclusion = vars(selection)["inclusion"]
    if isinstance(inclusion, np.ndarray):  # a function is not called
        lengths.append(inclusion.shape[0])
    if max(lengths, default=0) > n_weights:
        raise ValueError(f"weights must have shape ({max(lengths)},), got ({n_weights},)")


class WeightedAggregator(Aggregator):
    """An aggregator without state: the next model is a weighted sum of the models received."""

    @abc.abstractmethod
    def _factors(self, received: RoundUpdates) -> Float:
        """Return the weight of each reported model, not yet normalised."""

    @property
    def _is_unnormalised(self) -> bool:
        """Whether factors are used as they are: the model sent gets 1 minus their sum."""
        return False

    def _merge(self, received: RoundUpdates) -> Arrays:
        factors = self._factors(received)
        total = factors.sum()
        if not total > 0:
            raise ValueError(f"weights of the clients that reported must sum above 0, got {total}")
        if self.measures_noise:
            self.noise = self._variance(received, factors, total)
        if not self._is_unnormalised:
            return weighted_mean(received.updates, factors / total)
        models = [*received.updates, received.current]
        return weighted_mean(models, np.append(factors, 1.0 - total))

    def _variance(self, received: RoundUpdates, factors: Float, total: float) -> float:
        """Return the estimated variance of the step."""
        from .flat import FlatLayout  # it imports this module
        from .noise import step_variance

        layout = FlatLayout(received.current)
        base = layout.flatten(received.current)
        rows = layout.differences(received.updates, received.clients, base)
        if not self._is_unnormalised:
            factors = factors / total
            rows = rows - factors.astype(rows.dtype) @ rows
        return step_variance(factors, rows, received.inclusion)


def fresh_update(received: RoundUpdates) -> Arrays:
    """Return the mean update of the reports of one round, each divided by its inclusion.

    The weights are divided by their sum (Hajek's estimator), so that one round with few large
    clients does not change the length of the step.
    """
    factors = received.weights[received.clients] * received.times_drawn
    inclusion = received.inclusion
    if inclusion is not None and np.all(inclusion > 0):
        factors = factors / inclusion
    total = factors.sum()
    shares = factors / total if total > 0 else np.full(factors.size, 1.0 / factors.size)
    merged = weighted_mean(received.updates, shares)
    return [
        np.subtract(a, b) if b.dtype.kind == "f" else np.zeros(0)
        for a, b in zip(merged, received.current, strict=True)
    ]


def weighted_mean(updates: Sequence[Sequence[NDArray[Any]]], shares: Float) -> Arrays:
    """Return the sum of models times their shares, each array in its own dtype.

    Examples
    --------
    >>> import numpy as np
    >>> weighted_mean([[np.array([1.0])], [np.array([4.0])]], np.array([0.5, 0.25]))
    [array([1.5])]
    """
    merged = []
    for arrays in zip(*updates, strict=True):
        first = arrays[0]
        kind = first.dtype if first.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        mean = np.multiply(first, shares[0], dtype=kind)
        # Two arrays that stay in the cache; a stack of all models would not.
        term = np.empty_like(mean)
        for array, share in zip(arrays[1:], shares[1:], strict=True):
            mean += np.multiply(array, share, out=term, dtype=kind)
        merged.append(mean.astype(first.dtype, copy=False))
    return merged
