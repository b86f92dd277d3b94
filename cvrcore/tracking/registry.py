"""Names of trackers in, trackers out; each tool is imported only when its tracker is made."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .base import Tracker, Trackers

#: Module and class of each tracker that has a name.
TRACKERS: Final = {
    "csv": ("csv_files", "CsvTracker"),
    "details": ("details", "DetailsTracker"),
    "mlflow": ("mlflow_runs", "MlflowTracker"),
    "tensorboard": ("tensorboard_events", "TensorBoardTracker"),
    "wandb": ("wandb_runs", "WandbTracker"),
}


def check_tracker(name: str) -> str:
    """Return the name of a tracker, or raise a ValueError that lists the known ones."""
    if name not in TRACKERS:
        raise ValueError(f"tracker must be one of {', '.join(TRACKERS)}, got {name!r}")
    return name


def make_tracker(name: str, folder: str | os.PathLike[str]) -> Tracker:
    """Return the tracker of that name, which writes to ``folder/name``.

    Raises
    ------
    ImportError
        If the tool is missing; the message holds the pip line.
    ValueError
        If there is no such tracker, or its folder holds symbolic links: a folder from outside
        could direct writing to other files.

    Examples
    --------
    >>> make_tracker("csv", "runs/a/tracking").name
    'csv'
    """
    module, kind = TRACKERS[check_tracker(name)]
    place = Path(folder) / name
    _refuse_links(place)
    made: Tracker = getattr(importlib.import_module(f".{module}", __package__), kind)(place)
    return made


def _refuse_links(place: Path) -> None:
    inner = place.iterdir() if place.is_dir() else ()
    for path in (place.parent, place, *inner):
        if path.is_symlink():
            raise ValueError(f"{path} must not be a symbolic link; delete it, or choose a folder")


def make_trackers(
    trackers: Iterable[str | Tracker], folder: str | os.PathLike[str] = "tracking"
) -> Trackers:
    """Return a group of trackers, by name or ready.

    Examples
    --------
    >>> [tracker.name for tracker in make_trackers(["csv"], "runs/a/tracking")]
    ['csv']
    """
    if isinstance(trackers, str):
        raise TypeError(f"trackers must be a list of names or trackers, got {trackers!r}")
    return Trackers(make_tracker(one, folder) if isinstance(one, str) else one for one in trackers)
