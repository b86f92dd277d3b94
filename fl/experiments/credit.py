"""Settings and histories in, what a difference may come from out: picking, merging, warm-up."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig, ServerConfig
from ..history import History


def warmup_note(histories: Sequence[History]) -> str:
    """Return how many rounds were warm-up: one sentence for all seeds."""
    notes = dict.fromkeys(note for history in histories if (note := history.warmup_note()))
    counts = [history.total("warmup") for history in histories]
    if len(notes) < 2:
        return next(iter(notes), "")
    return f"{min(counts)} to {max(counts)} of {len(histories[0])} rounds were warm-up"


def picking(config: RunConfig) -> tuple[object, ...]:
    """Return the settings that decide which clients are picked."""
    chosen = config.selection
    return chosen.policy, dict(chosen.options), chosen.features, chosen.n_select


def merging(config: RunConfig) -> tuple[object, ...]:
    """Return the settings that decide how models become the next model."""
    options = dict(config.aggregator_options), dict(config.algorithm.options)
    return config.aggregator, config.algorithm.name, config.server, *options


def server_step(server: ServerConfig) -> str | None:
    """Return what the server does with the aggregated update; None: it takes it as it is.

    Examples
    --------
    >>> server_step(ServerConfig(lr=4.0, average=0.8))
    'step 4, averaged'
    >>> server_step(ServerConfig()) is None
    True
    """
    parts = []
    if server.optimiser == "adaptive":
        parts.append("step adapts")
    elif server.optimiser != "sgd":
        parts.append(server.optimiser)
        parts += [] if server.lr is None else [f"step {server.lr:g}"]
    elif server.lr not in (None, 1.0):
        parts.append(f"step {server.lr:g}")
    parts += [f"momentum {server.momentum:g}"] if server.momentum else []
    parts += ["averaged"] if server.average else []
    return ", ".join(parts) or None
