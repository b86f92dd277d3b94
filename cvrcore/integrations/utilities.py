"""Replies of a round and the server's measure of a model in, a measure of groups of clients out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..features import Model
from ..validation import Float
from .clients import Reply
from .untrusted import by_name

#: A function of a model, by name of array, that returns its worth on the server's own samples.
Utility = Callable[[dict[str, Any]], float]


def group_worth(
    utility: Utility, replies: Mapping[int, Reply], weights: Float, sent: Model | None
) -> Callable[[Iterable[int]], float]:
    """Return the function from reported clients to the worth of their weighted average.

    Parameters
    ----------
    utility : callable
    replies : mapping
        Replies with models, by slot.
    weights : ndarray of shape (n_clients,)
        Number of samples of every client.
    sent : list or dict of arrays
        The model that was sent: the average of no clients.
    """
    before = by_name(sent or {})
    models = {slot: by_name(reply.model or {}) for slot, reply in replies.items()}

    def worth(clients: Iterable[int]) -> float:
        slots = [int(slot) for slot in clients]
        total = sum(float(weights[slot]) for slot in slots)
        if not total:
            return float(utility(before))
        mean = {
            name: sum(
                np.asarray(models[slot][name], dtype=np.float64) * (weights[slot] / total)
                for slot in slots
            )
            for name in before
        }
        return float(utility({n: np.asarray(a, before[n].dtype) for n, a in mean.items()}))

    return worth
