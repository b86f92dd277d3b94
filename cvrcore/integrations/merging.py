"""Aggregators in adapters: which one is meant, what it can merge, and the next model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validation import Float, check_finite
from ..aggregators import Aggregator, make_aggregator
from ..features import Model
from ..selection import Selection


def as_aggregator(value: str | Aggregator | None) -> Aggregator | None:
    """Return the aggregator of that name, or the one given; None stays None."""
    if value is None or isinstance(value, Aggregator):
        return value
    if isinstance(value, str):
        return make_aggregator(value)
    raise TypeError(f"aggregator must be a name or an Aggregator, got {value!r}")


def check_no_noise(strategy: object) -> None:
    """Refuse a strategy of Flower that clips models and adds noise to their mean."""
    # By name: which of these classes there are depends on Flower's version.
    kinds = [kind.__name__ for kind in type(strategy).__mro__]
    if any(kind.startswith(("DifferentialPrivacy", "DPFedAvg")) for kind in kinds):
        raise ValueError(
            "strategy must not promise differential privacy with an aggregator, since its noise "
            f"is meant for a mean of clipped models, got {kinds[0]}"
        )


def check_change(model: Model, sent: Model) -> None:
    """Refuse a model that cannot be merged with others trained from the one sent.

    Raises
    ------
    ValueError
        If names, shapes or types differ, or it is too far away for the float32 in which
        changes are remembered: a single such model would end the round for all.
    """
    found, wanted = _by_name(model), _by_name(sent)
    if set(found) != set(wanted):
        names = ", ".join(found) or "none"
        raise ValueError(f"its arrays must be {', '.join(wanted)}, got {names}")
    for name, before in wanted.items():
        after = found[name]
        if after.dtype.kind not in "biuf":
            raise ValueError(f"its array {name!r} must hold numbers, got {after.dtype}")
        if after.shape != before.shape:
            raise ValueError(
                f"its array {name!r} must have shape {before.shape}, got {after.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # refused on the next line
            change: Float = np.subtract(after, before, dtype=np.float64).astype(np.float32)
        check_finite(change, f"the change of its array {name!r}, in float32,")


def merged(
    aggregator: Aggregator,
    sent: Model,
    models: Sequence[Model],
    slots: ArrayLike,
    weights: ArrayLike,
    selection: Selection,
) -> dict[str, NDArray[Any]]:
    """Return the next model, by name, a list's arrays by their places.

    Parameters
    ----------
    aggregator : Aggregator
    sent : list or dict of arrays
        The model that was sent.
    models : list of models
        Those that came back, each passed by `check_change`.
    slots : array-like of int
        Who sent each of them.
    weights : array-like of shape (n_clients,)
        Samples of all clients.
    selection : Selection
        The round's decision.
    """
    current = _by_name(sent)
    back = [_by_name(model) for model in models]
    arrays = [[_alike(model[name], current[name]) for name in current] for model in back]
    found = aggregator.aggregate(list(current.values()), arrays, slots, weights, selection)
    return dict(zip(current, found, strict=True))


def restore_aggregator(aggregator: Aggregator | None, state: dict[str, Any] | None) -> None:
    """Give an aggregator its saved state; both must be there, or neither.

    Raises
    ------
    ValueError
        If the state was saved with another aggregator: a run would go on otherwise.
    """
    saved = None if state is None else state.get("aggregator")
    own = None if aggregator is None else aggregator.name
    if saved != own:
        raise ValueError(f"aggregator must be {saved!r}, as in the saved state, got {own!r}")
    if aggregator is not None and state is not None:
        aggregator.load_state_dict(state)


def _by_name(model: Model) -> dict[str, NDArray[Any]]:
    items = model.items() if isinstance(model, Mapping) else enumerate(model)
    return {str(name): np.asarray(array) for name, array in items}


def _alike(array: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """Return real numbers in the type that was sent: clients may answer in another one."""
    both_real = array.dtype.kind == before.dtype.kind == "f"
    return array.astype(before.dtype, copy=False) if both_real else array
