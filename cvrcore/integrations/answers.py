"""What a server knows of clients and hears from them, as plain data, in a framework's ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._validation import check_finite
from ..features import FeatureMap, Model
from ..selection import Selection

#: What a policy can be told of an answer: arguments of `Selector.observe`.
TOLD = ("models", "losses", "durations")


@dataclasses.dataclass(frozen=True)
class Newcomer:
    """What is known of a client when it is first met.

    Attributes
    ----------
    weight : float
        Its number of training samples; 0 means never picked.
    label_counts : sequence of int, optional
        Samples of each class, for policies that want them.
    """

    weight: float = 1.0
    label_counts: ArrayLike | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one client sent back.

    Attributes
    ----------
    model : list or dict of arrays, optional
        Its trained model; the watched coordinates are cut out of it.
    watched : array-like, optional
        The watched coordinates themselves, where the client cut them out.
    loss : float, optional
        The loss that the policy's ``loss_statistic`` names.
    seconds : float, optional
    """

    model: Model | None = None
    watched: ArrayLike | None = None
    loss: float | None = None
    seconds: float | None = None


@dataclasses.dataclass
class Round:
    """Who was there, who was picked and why, and what came of it; ids are the framework's."""

    available: list[Any]
    selected: list[Any]
    selection: Selection
    reported: list[Any] = dataclasses.field(default_factory=list)
    failed: dict[Any, str] = dataclasses.field(default_factory=dict)


class NobodyEligibleError(ValueError):
    """Nobody who is here can be picked."""


def read_answer(
    answer: Answer, features: FeatureMap | None, watches: bool, statistic: str | None
) -> dict[str, Any]:
    """Return what a policy is told of one answer, by the names of `TOLD`.

    Parameters
    ----------
    answer : Answer
    features : FeatureMap or None
    watches : bool
        Whether the policy watches models.
    statistic : str or None
        Which loss it wants reported.

    Raises
    ------
    ValueError
        If something that the policy needs is missing or unsound.
    """
    if answer.model is not None:
        arrays = answer.model.values() if isinstance(answer.model, Mapping) else answer.model
        for array in arrays:
            if np.asarray(array).dtype.kind == "f":
                check_finite(np.asarray(array), "its model")
    row: dict[str, Any] = dict.fromkeys(TOLD)
    if watches:
        row["models"] = _cut(answer, features)
    if statistic is not None:
        if answer.loss is None or not np.isfinite(answer.loss):
            raise ValueError(f"its {statistic} loss is wanted, got {answer.loss}")
        row["losses"] = float(answer.loss)
    if answer.seconds is not None and np.isfinite(answer.seconds) and answer.seconds > 0:
        row["durations"] = float(answer.seconds)
    return row


def stacked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return columns of `rows` as arrays; None where a column holds nothing."""
    if not rows:
        return dict.fromkeys(TOLD)
    return {n: None if rows[0][n] is None else np.stack([r[n] for r in rows]) for n in TOLD}


def _cut(answer: Answer, features: FeatureMap | None) -> np.ndarray:
    if answer.watched is None:
        if answer.model is None or features is None:
            raise ValueError("its watched coordinates are wanted, got none")
        return features.extract(answer.model)
    watched = np.asarray(answer.watched, dtype=np.float64)
    if features is not None and watched.shape != (features.n_features,):
        raise ValueError(
            f"its watched coordinates must have shape ({features.n_features},), got {watched.shape}"
        )
    return watched
