"""Settings and histories in, what a difference may come from out: picking, merging, warm-up."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig
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
