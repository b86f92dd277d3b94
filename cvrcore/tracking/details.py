"""Rounds in, ``details.jsonl`` out: one JSON line a round, which ``cvrcore watch`` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .base import Tracker
from .records import Facts, RoundRecord

#: The file, in the folder of the tracker.
FILE = "details.jsonl"


class DetailsTracker(Tracker):
    """Writes whole records: picks with coalition, score and law, incidents, clients in the plane.

    Parameters
    ----------
    folder : path
        Made if missing.
    """

    name = "details"
    map_every = 5

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = Path(folder) / FILE

    def start(self, facts: Facts) -> None:
        """Begin the file; with ``facts.done`` keep the lines of those rounds."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[bytes] = []
        if facts.done and self._path.exists():
            for line in self._path.read_bytes().split(b"\n")[:-1]:
                if json.loads(line)["round"] <= facts.done:
                    kept.append(line)
        self._path.write_bytes(b"".join(line + b"\n" for line in kept))

    def round(self, record: RoundRecord) -> None:
        """Append the line of one round."""
        with open(self._path, "ab") as file:
            file.write(json.dumps(record.plain(), allow_nan=False).encode() + b"\n")
