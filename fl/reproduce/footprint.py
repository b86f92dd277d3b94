"""What a policy kept in the server's memory during a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from cvrcore.selectors import policy_class
from cvrcore.state import load_state

from ..history import History


def selector_megabytes(runs: Iterable[tuple[Path, History]]) -> float | None:
    """Return what the policy of some runs, alike but for the seed, held at most.

    The mean over the runs that recorded it. Where none did, being older than the record,
    what the last checkpoint of the first gives when it is restored: what the policy held at
    the end, which is its most unless its covariance has changed form. None without either.
    """
    runs = list(runs)
    recorded = [
        max(r["selector_bytes"] for r in history.rounds if "selector_bytes" in r)
        for _, history in runs
        if any("selector_bytes" in r for r in history.rounds)
    ]
    if recorded:
        return sum(recorded) / len(recorded) / 1e6
    for folder, _ in runs[:1]:
        path = folder / "checkpoint.npz"
        if path.exists() and (held := _restored(path, path.stat().st_mtime_ns)) is not None:
            return held / 1e6
    return None


@functools.lru_cache
def _restored(path: Path, changed: int) -> int | None:
    """Return the bytes of a checkpoint's policy; `changed` tells versions of it apart."""
    try:
        states = load_state(path)["policy"].values()
        found = [s for s in states if s is not None]
        return sum(policy_class(s["policy"]).from_state_dict(s).nbytes for s in found)
    except (KeyError, MemoryError, OSError, ValueError):  # damaged, or of a policy not installed
        return None
