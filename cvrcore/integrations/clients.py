"""Data about clients, by the framework's ids: replies in, rows for `Selector.observe` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..features import FeatureMap, Model
from ..ids import IdMap
from ..selection import Selection
from ..selectors.base import Selector
from ..validation import check_finite

#: Arguments of `Selector.observe` that are read from replies.
REPORTED = ("models", "losses", "durations")


@dataclasses.dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client before its first round.

    Attributes
    ----------
    weight : float
        Its number of training samples; a client of weight 0 is never selected.
    label_counts : sequence of int, optional
        Its number of samples of each class, for policies that need them.
    """

    weight: float = 1.0
    label_counts: ArrayLike | None = None


@dataclasses.dataclass(frozen=True)
class Reply:
    """What one client sent back after training.

    Attributes
    ----------
    model : list or dict of arrays, optional
        Its trained model, from which the watched coordinates are extracted.
    watched : array-like, optional
        The watched coordinates themselves, where the client has extracted them.
    loss : float, optional
        The loss that the policy's ``loss_statistic`` names.
    seconds : float, optional
        How long the reply took.
    """

    model: Model | None = None
    watched: ArrayLike | None = None
    loss: float | None = None
    seconds: float | None = None


@dataclasses.dataclass
class Round:
    """The record of one round, by the framework's ids.

    Attributes
    ----------
    available, selected, reported : list of ids
        Clients that were connected, that the policy selected, and whose replies were used.
    selection : Selection
        The policy's decision, with its probabilities.
    failed : dict
        The reason for each selected client without a usable reply, by id.
    """

    available: list[Any]
    selected: list[Any]
    selection: Selection
    reported: list[Any] = dataclasses.field(default_factory=list)
    failed: dict[Any, str] = dataclasses.field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the ids and reasons, without the policy's decision."""
        names = ("available", "selected", "reported", "failed")
        return {name: getattr(self, name) for name in names}


class NoEligibleClientError(ValueError):
    """No connected client can be selected."""


def read_reply(
    reply: Reply, features: FeatureMap | None, watches: bool, statistic: str | None
) -> dict[str, Any]:
    """Return one client's row of each argument of `REPORTED`; None where there is nothing.

    Parameters
    ----------
    reply : Reply
    features : FeatureMap or None
        The watched coordinates.
    watches : bool
        Whether the policy watches models.
    statistic : str or None
        The loss that the policy needs.

    Raises
    ------
    ValueError
        If something that the policy needs is missing or invalid.
    """
    if reply.model is not None:
        arrays = reply.model.values() if isinstance(reply.model, Mapping) else reply.model
        for array in arrays:
            if np.asarray(array).dtype.kind == "f":
                check_finite(np.asarray(array), "its model")
    row: dict[str, Any] = dict.fromkeys(REPORTED)
    if watches:
        row["models"] = _watched(reply, features)
    if statistic is not None:
        if reply.loss is None or not np.isfinite(reply.loss):
            raise ValueError(f"its {statistic} loss is wanted, got {reply.loss}")
        row["losses"] = float(reply.loss)
    if reply.seconds is not None and np.isfinite(reply.seconds) and reply.seconds > 0:
        row["durations"] = float(reply.seconds)
    return row


def stack_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `Selector.observe`; None for one that the rows do not hold."""
    if not rows:
        return dict.fromkeys(REPORTED)
    return {n: None if rows[0][n] is None else np.stack([r[n] for r in rows]) for n in REPORTED}


def accepted_rows(
    selector: Selector, ids: IdMap, rows: dict[Any, dict[str, Any]], reasons: dict[Any, str]
) -> dict[Any, dict[str, Any]]:
    """Return the rows that the policy accepts; the others get an entry in `reasons`.

    Parameters
    ----------
    selector : Selector
        With an open round.
    ids : IdMap
    rows : dict
        What `read_reply` returned, by id.
    reasons : dict
        Why clients failed, by id.
    """

    def check(some: list[Any]) -> None:
        stacked = stack_rows([rows[id] for id in some])
        selector.check_report([ids.slot(id) for id in some], **stacked, failed=())

    try:
        check(list(rows))  # all at once: the cost of one check grows with all clients
        return rows
    except (TypeError, ValueError):
        accepted = {}
    for id in rows:
        try:
            check([id])
            accepted[id] = rows[id]
        except (TypeError, ValueError) as error:
            reasons[id] = str(error)
    return accepted


def _watched(reply: Reply, features: FeatureMap | None) -> np.ndarray:
    if reply.watched is None:
        if reply.model is None or features is None:
            raise ValueError("its watched coordinates are wanted, got none")
        return features.extract(reply.model)
    watched = np.asarray(reply.watched, dtype=np.float64)
    if features is not None and watched.shape != (features.n_features,):
        raise ValueError(
            f"its watched coordinates must have shape ({features.n_features},), got {watched.shape}"
        )
    return watched
