"""A federation, a module and its objective in; the first thing that does not fit, as an error.

Everything is tried on one or two samples before the first round, so that a mistake costs a
line and no half-written run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .data import Federation
from .data.own import refuse_not_finite
from .objectives import PADDING, TASKS, Objective
from .own import seeded
from .samples import ClientSamples
from .settings import ConfigError


def check_federation(federation: Federation) -> None:
    """Refuse samples that no model could learn from: NaN, labels out of range, nobody's."""
    if federation.task not in TASKS:
        raise ConfigError(
            f"federation.task must be one of {', '.join(TASKS)}, got {federation.task!r}"
        )
    if not federation.sizes.any():
        raise ConfigError("federation must have a client with training samples, got none")
    try:
        refuse_not_finite(federation.x, "federation.x")
        refuse_not_finite(federation.y, "federation.y")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if federation.task == "regression":
        return
    if federation.y.dtype.kind not in "iu":
        raise ConfigError(
            f"federation.y must hold whole numbers in {federation.task}, got "
            f"{federation.y.dtype}: convert it with y.astype(int), or set n_classes to 0 for "
            "regression"
        )
    labels, n_classes = federation.y, federation.n_classes
    wrong = (labels < 0) | (labels >= n_classes)
    if federation.task == "next-token":
        wrong &= labels != PADDING
    if wrong.any():
        first = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise ConfigError(
            f"federation.y must lie in 0..{n_classes - 1}, as n_classes is {n_classes}; got "
            f"{int(labels[first])} in sample {int(first[0])}"
        )


def check_fit(module: nn.Module, objective: Objective, samples: ClientSamples) -> None:
    """Pass two samples forward and back; `module` keeps its values.

    Raises
    ------
    ConfigError
        If the forward pass, the loss or the metric fails or returns something of the wrong
        kind.
    """
    x, y = samples.x_train[:2], samples.y_train[:2]
    with seeded(0):
        module.eval()
        with torch.no_grad():
            output = _forward(module, x[:1])
            _check_output(output, objective, samples, y[:1])
            losses, scores = _tried("metric", objective.each, output, y[:1])
        if scores.shape != (1,) or losses.shape != (1,):
            raise ConfigError(
                f"metric must return one value per sample, or one for a batch; got shape "
                f"{tuple(scores.shape)} for one sample"
            )
        output = _forward(module, x)
        loss = _tried("loss", objective.loss, output, y)
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        kind = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss must return a scalar tensor, the mean over the batch; got {kind} for a batch "
            f"of {len(x)}: take its mean"
        )
    if not loss.requires_grad:
        raise ConfigError("loss must depend on parameters of the model that are trained")
    if not torch.isfinite(loss):
        raise ConfigError(
            f"loss of the initial model must be finite, got {loss.item()} on the first samples"
        )


def check_same_run(folder: Path, saved: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another model or federation than it began with.

    `saved` are the facts that the folder holds, `facts` those of the present run; what an
    earlier release did not write is not compared.
    """
    own = saved.get("own", facts["own"])
    for name in ("model", "loss", "metric"):
        if (name in own) != (name in facts["own"]):
            ask = "give the same again" if name in own else "leave it out"
            having = "has" if name in own else "has not"
            raise ConfigError(
                f"{folder} holds a run that {having} a {name} of the caller's own: {ask}"
            )
    for name in ("n_clients", "n_samples", "n_classes"):
        if saved.get(name, facts[name]) != facts[name]:
            raise ConfigError(
                f"{folder} holds a run of another federation: its {name} is {saved[name]}, "
                f"not {facts[name]}"
            )
    theirs, ours = saved.get("parameters", facts["parameters"]), facts["parameters"]
    for other, mine in itertools.zip_longest(theirs, ours):
        if other != mine:
            texts = ["nothing" if e is None else f"{e[0]} {tuple(e[1])}" for e in (other, mine)]
            raise ConfigError(
                f"{folder} holds a checkpoint of another model: it has {texts[0]} where this "
                f"model has {texts[1]}"
            )


def _forward(module: nn.Module, x: torch.Tensor) -> Any:
    try:
        return module(x)
    except Exception as error:  # anything may happen in a caller's module
        hint = ""
        if x.dtype == torch.int64:
            hint = "; x holds whole numbers (tokens): for a model of features, convert it to float"
        raise ConfigError(
            f"model: its forward failed on a batch of {len(x)} of shape {tuple(x.shape[1:])} and "
            f"type {str(x.dtype).removeprefix('torch.')}: {_line(error)}{hint}"
        ) from error


def _check_output(
    output: Any, objective: Objective, samples: ClientSamples, y: torch.Tensor
) -> None:
    if not isinstance(output, torch.Tensor):
        raise ConfigError(
            f"model must return a tensor, got {type(output).__name__}: wrap it in a module that "
            "returns the logits"
        )
    shape = tuple(output.shape)
    if objective.task == "regression":
        if output.numel() != y.numel():
            raise ConfigError(
                f"model must return {y.numel()} values per sample, as y has, got shape {shape} "
                "for one sample"
            )
    elif objective.is_default:
        length = () if objective.task == "classification" else tuple(y.shape[1:])
        wanted = (1, *length, samples.n_classes)
        if shape != wanted:
            raise ConfigError(
                f"model must return shape {wanted} for one sample, logits of the "
                f"{samples.n_classes} classes, got {shape}"
            )


def _tried(what: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # anything may happen in a caller's function
        raise ConfigError(f"{what}: it failed on the first samples: {_line(error)}") from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
