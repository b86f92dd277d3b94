"""Rounds in, logs of tracking tools out: TensorBoard, MLflow, Weights & Biases, CSV files.

Data flows one way: the `fl` loop or an adapter makes one `Facts`, a `RoundRecord` per round and
a summary; `Trackers` hands each to every `Tracker`. A tool is imported when its tracker is made.
"""

from __future__ import annotations

from .base import Tracker, Trackers
from .records import Facts, Pick, RoundRecord, Snapshot
from .registry import TRACKERS, make_tracker, make_trackers

__all__ = [
    "TRACKERS",
    "Facts",
    "Pick",
    "RoundRecord",
    "Snapshot",
    "Tracker",
    "Trackers",
    "make_tracker",
    "make_trackers",
]
