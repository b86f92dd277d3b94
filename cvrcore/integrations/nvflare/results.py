"""Results of NVFlare clients in, replies for the policy out, or why they are invalid."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from ...aggregators import Aggregator
from ...guards.bounds import weight_bound
from ...selectors.base import Selector
from ..clients import ClientInfo, Reply
from ..options import Reports
from ..untrusted import (
    MAX_COUNT,
    REAL,
    as_number,
    as_sent,
    brief,
    by_name,
    check_layers,
    layers_of,
    metric_form,
)

#: Keys of the ``meta`` by which a client introduces itself.
N_SAMPLES, LABEL_COUNTS = "n_samples", "label_counts"
#: Key of the ``meta`` of a training result that holds the loss that the policy needs.
LOSS = "selection_loss"
#: Key of the ``meta`` by which NVFlare weights results.
N_STEPS = "NUM_STEPS_CURRENT_ROUND"


def check_initial(model: FLModel, aggregator: Aggregator) -> None:
    """Refuse an initial model that an aggregator of cvrcore cannot start from."""
    if not model.params:
        raise ValueError(
            f"the persistor must give an initial model to aggregator {aggregator.name!r}; got none"
        )
    for name, array in model.params.items():
        if not isinstance(array, (np.ndarray, np.generic)):
            raise ValueError(
                f"the persistor must give NumPy arrays to aggregator {aggregator.name!r}, got "
                f"{type(array).__name__} as {name!r}"
            )


def read_training_result(
    model: FLModel, result: FLModel, reports: Reports, seconds: float | None
) -> Reply:
    """Return what a training result holds; differences are added to the model that was sent.

    Parameters
    ----------
    model : FLModel
        The model that was sent.
    result : FLModel
        Its arrays are brought to the precision that was sent.
    reports : Reports
    seconds : float or None
        How long the result took by the server's clock, where the policy is told.

    Raises
    ------
    ValueError
        If the result is invalid.
    """
    if not isinstance(result.params, dict) or not result.params:
        raise ValueError("its answer holds no parameters")
    if result.params_type not in (ParamsType.FULL, ParamsType.DIFF):
        raise ValueError(f"its parameters must be FULL or DIFF, got {brief(result.params_type)}")
    meta = result.meta or {}
    if meta.get(N_STEPS) is not None:
        as_number(meta[N_STEPS], f"its {N_STEPS}", minimum=0.0, maximum=MAX_COUNT)
    params = by_name(result.params)
    if model.params and reports.same_shape:
        sent = layers_of(model.params)
        check_layers(params, sent)
        for name, array in params.items():
            if (precise := as_sent(array, sent[name])) is not array:
                params[name] = result.params[name] = precise
    if result.params_type == ParamsType.DIFF:
        params = {name: np.asarray(model.params[name]) + array for name, array in params.items()}
    metrics = result.metrics or {}
    loss = meta.get(LOSS)
    if loss is None and reports.loss_key is not None:
        loss = metrics.get(reports.loss_key)
    return Reply(model=params, loss=loss, seconds=seconds)


def form_of(result: FLModel) -> Hashable:
    """Return the type of the parameters, and names and shapes of metrics that are arrays.

    NVFlare adds such metrics up, takes the type of the first result for all of them, and leaves
    metrics that are no numbers out of the mean.
    """
    metrics = result.metrics
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ValueError(f"its metrics must be a dict, got {type(metrics).__name__}")
    arrays = []
    for name, value in (metrics or {}).items():
        if isinstance(value, (bool, numbers.Real)):
            metric_form({name: value})
        elif not isinstance(value, (str, bytes, list, tuple, dict, set, type(None))):
            array = np.asarray(value)
            if array.dtype.kind not in REAL:
                raise ValueError(f"its metric {brief(name)} must be a number, got {array.dtype}")
            if array.ndim:
                arrays.append((str(name), array.shape))
    return result.params_type, frozenset(arrays)


def bound_steps(results: list[FLModel], selector: Selector | None) -> None:
    """Let no result weigh more in NVFlare's mean than the guard `max_weight` allows.

    Steps are no samples: only a bound in medians means anything, that of the round's steps.
    """
    limit = None if selector is None else selector.guards.max_weight
    if not isinstance(limit, str) or not results:
        return
    steps = np.array([float((result.meta or {}).get(N_STEPS) or 1.0) for result in results])
    bound = float(weight_bound(limit, steps))
    for result, count in zip(results, steps, strict=True):
        if count > bound:
            result.meta[N_STEPS] = bound


def read_introduction(result: FLModel) -> ClientInfo:
    """Return the facts that a client states about itself in the ``meta`` of a result."""
    meta = result.meta or {}
    if N_SAMPLES not in meta:
        raise ValueError(
            f"its meta must hold {N_SAMPLES!r}, got {brief(', '.join(map(str, meta)))}"
        )
    return ClientInfo(meta[N_SAMPLES], meta.get(LABEL_COUNTS))


def read_loss(result: FLModel, key: str) -> float:
    """Return the metric `key` of a result."""
    metrics: Any = result.metrics or {}
    if not isinstance(metrics, Mapping) or key not in metrics:
        raise ValueError(f"its metrics must hold {key!r}")
    return as_number(metrics[key], f"its metric {key!r}")
