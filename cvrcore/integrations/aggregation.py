"""Aggregation in adapters: the model sent and the models received in, the next model out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..aggregators import Aggregator, make_aggregator
from ..features import Model
from ..selection import Selection
from ..validation import Float, check_finite
from .untrusted import REAL, as_sent, by_name, check_layers, layers_of


def as_aggregator(value: str | Aggregator | None) -> Aggregator | None:
    """Return the aggregator of that name, or the ready one; None stays None."""
    if value is None or isinstance(value, Aggregator):
        return value
    if isinstance(value, str):
        return make_aggregator(value)
    raise TypeError(f"aggregator must be a name or an Aggregator, got {value!r}")


def check_no_noise(strategy: object) -> None:
    """Refuse a Flower strategy that clips models and adds noise to their mean."""
    # By class name: which of these classes exist depends on the version of Flower.
    kinds = [kind.__name__ for kind in type(strategy).__mro__]
    if any(kind.startswith(("DifferentialPrivacy", "DPFedAvg")) for kind in kinds):
        raise ValueError(
            "strategy must not promise differential privacy with an aggregator, since its noise "
            f"is meant for a mean of clipped models, got {kinds[0]}"
        )


def check_change(model: Model, sent: Model) -> None:
    """Refuse a model that cannot be aggregated with others trained from the one sent.

    Raises
    ------
    ValueError
        If names, shapes or types differ, or if the difference overflows float32, in which
        aggregators store it: one such model would otherwise end the round for all clients.
    """
    found, wanted = by_name(model), by_name(sent)
    check_layers(found, layers_of(sent))
    for name, before in wanted.items():
        if before.dtype.kind not in REAL:
            raise ValueError(f"its array {name!r} must hold real numbers, got {before.dtype}")
        with np.errstate(over="ignore", invalid="ignore"):  # refused on the next line
            change: Float = np.subtract(found[name], before, dtype=np.float64).astype(np.float32)
        check_finite(change, f"the change of its array {name!r}, in float32,")


def aggregate_models(
    aggregator: Aggregator,
    sent: Model,
    models: Sequence[Model],
    slots: ArrayLike,
    weights: ArrayLike,
    selection: Selection,
) -> dict[str, NDArray[Any]]:
    """Return the next model by name of array; arrays of a list are named by their position.

    Parameters
    ----------
    aggregator : Aggregator
    sent : list or dict of arrays
        The model that was sent.
    models : list of models
        The models received; each has passed `check_change`.
    slots : array-like of int
        The client of each of them.
    weights : array-like of shape (n_clients,)
        Number of samples of every client.
    selection : Selection
        The round's decision.
    """
    current, layers = by_name(sent), layers_of(sent)
    received = [by_name(model) for model in models]
    arrays = [[as_sent(model[name], layers[name]) for name in current] for model in received]
    found = aggregator.aggregate(list(current.values()), arrays, slots, weights, selection)
    return dict(zip(current, found, strict=True))


def restore_aggregator(aggregator: Aggregator | None, state: dict[str, Any] | None) -> None:
    """Load the saved state of an aggregator; there must be both, or neither.

    Raises
    ------
    ValueError
        If the state was saved with another aggregator.
    """
    saved = None if state is None else state.get("aggregator")
    own = None if aggregator is None else aggregator.name
    if saved != own:
        raise ValueError(f"aggregator must be {saved!r}, as in the saved state, got {own!r}")
    if aggregator is not None and state is not None:
        aggregator.load_state_dict(state)
