"""Results of NVFlare clients in, replies for the policy out, or why they are invalid."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from ...aggregators import Aggregator
from ..clients import ClientInfo, Reply
from ..options import Reports

#: Keys of the ``meta`` by which a client introduces itself.
N_SAMPLES, LABEL_COUNTS = "n_samples", "label_counts"


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
    model: FLModel, result: FLModel, reports: Reports, seconds: float
) -> Reply:
    """Return what a training result holds; differences are added to the model that was sent.

    Parameters
    ----------
    model : FLModel
        The model that was sent.
    result : FLModel
    reports : Reports
    seconds : float
        How long the result took.

    Raises
    ------
    ValueError
        If the result is invalid.
    """
    if not result.params:
        raise ValueError("its answer holds no parameters")
    params = {name: np.asarray(array) for name, array in result.params.items()}
    if model.params and reports.same_shape:
        wanted = {name: np.shape(array) for name, array in model.params.items()}
        shapes = {name: array.shape for name, array in params.items()}
        if shapes != wanted:
            raise ValueError(f"its parameters must have shapes {wanted}, got {shapes}")
    if result.params_type == ParamsType.DIFF:
        params = {name: np.asarray(model.params[name]) + array for name, array in params.items()}
    loss = (result.metrics or {}).get(reports.loss_key)
    return Reply(
        model=params,
        loss=None if loss is None else float(loss),
        seconds=max(seconds, 1e-9) if reports.durations else None,
    )


def read_introduction(result: FLModel) -> ClientInfo:
    """Return the facts that a client states about itself in the ``meta`` of a result."""
    counts = result.meta.get(LABEL_COUNTS)
    return ClientInfo(float(result.meta[N_SAMPLES]), None if counts is None else np.asarray(counts))


def read_loss(result: FLModel, key: str) -> float:
    """Return the metric `key` of a result."""
    metrics: dict[str, Any] = result.metrics or {}
    return float(metrics[key])
