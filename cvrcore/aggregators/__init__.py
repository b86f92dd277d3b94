"""Aggregators: the models of a round in, the next global model out.

Framework-neutral: a model is a list of NumPy arrays, of any shapes. An aggregator gets the
round's `Selection`, with its coalitions and inclusion probabilities, and may keep state
between rounds::

    aggregator = make_aggregator("memory", dtype="bfloat16")
    selection = selector.select()
    ...                                       # send `model` to selection.clients, wait
    model = aggregator.aggregate(model, received, clients, n_samples, selection)
    state = aggregator.state_dict()           # arrays and plain values: save_state takes it

``make_aggregator("memory", server=ServerOptimiser(lr=2.0))`` makes a longer step of the same
direction; the optimiser may also have momentum, or be FedAdam or FedYogi. `ModelAverage` keeps
a moving average of the models, to evaluate and deploy.

========================  ======================================  =====================
name                      weight of each report                   the server keeps
========================  ======================================  =====================
``sizes``                 its samples (the paper)                 nothing
``mean``                  1                                       nothing
``coalition-mass``        the samples of its coalition            nothing
``importance``            its samples over its inclusion          nothing
``memory``                the same, less its last update          an update per client
``coalition-memory``      the same, less its coalition's last     an update per coalition
``factor-memory``         the same, less a linear prediction      C + 1 models, C features
========================  ======================================  =====================
"""

from __future__ import annotations

import difflib
from inspect import signature
from typing import Any

from ..guards import Guards
from .averaging import ModelAverage
from .base import Aggregator, Arrays, weighted_mean
from .coalition_memory import CoalitionMemoryAggregator
from .factor_memory import FactorMemoryAggregator
from .importance import ImportanceAggregator
from .memory import MemoryAggregator
from .server import ServedAggregator, ServerOptimiser
from .weighted import CoalitionMassAggregator, MeanAggregator, SizesAggregator

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Arrays",
    "ModelAverage",
    "ServedAggregator",
    "ServerOptimiser",
    "make_aggregator",
    "weighted_mean",
]

AGGREGATORS: dict[str, type[Aggregator]] = {
    kind.name: kind
    for kind in (
        SizesAggregator,
        MeanAggregator,
        CoalitionMassAggregator,
        ImportanceAggregator,
        MemoryAggregator,
        CoalitionMemoryAggregator,
        FactorMemoryAggregator,
    )
}


def make_aggregator(
    name: str,
    *,
    server: ServerOptimiser | None = None,
    guards: Guards | str | None = None,
    **options: Any,
) -> Aggregator:
    """Build the aggregator called `name`; an unknown option is an error.

    With `server`, every aggregated model goes through that optimiser: see `ServerOptimiser`.
    With `guards`, an object or "recommended", sample counts and updates are bounded before they
    are used or remembered: see `Aggregator.guard`.

    Examples
    --------
    >>> import numpy as np
    >>> make_aggregator("sizes").aggregate(
    ...     [np.zeros(1)], [[np.array([1.0])], [np.array([4.0])]], [0, 2], [30, 9, 15]
    ... )
    [array([2.])]
    """
    if name not in AGGREGATORS:
        known = ", ".join(repr(known) for known in AGGREGATORS)
        close = difflib.get_close_matches(str(name), AGGREGATORS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"aggregator must be one of {known}, got {name!r}{hint}")
    if server is not None and not isinstance(server, ServerOptimiser):
        raise TypeError(f"server must be a ServerOptimiser or None, got {server!r}")
    kind = AGGREGATORS[name]
    known_options = [] if kind.__init__ is object.__init__ else [*signature(kind).parameters]
    for option in options:
        if option not in known_options:
            names = ", ".join(known_options) or "none"
            raise TypeError(f"{option} is not an option of {name}, which has {names}")
    made = kind(**options)
    made.guard(guards)
    return made if server is None else ServedAggregator(made, server)
