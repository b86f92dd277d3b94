"""Rounds in, CSV files out: rounds, picks, metrics, incidents, shares; for spreadsheets."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .base import Summary, Tracker
from .records import Facts, RoundRecord
from .views import PickHistory

#: Columns of each file. All but ``shares.csv`` begin with the number of the round.
COLUMNS: Final = {
    "rounds.csv": (
        "round", "phase", "available", "picked", "failed", "incidents", "coalition_sizes", "metric",
    ),
    "picks.csv": (
        "round", "client", "name", "coalition", "score", "probability", "reported", "reason",
    ),
    "metrics.csv": ("round", "name", "value"),
    "incidents.csv": ("round", "client", "kind", "detail"),
    "shares.csv": ("client", "name", "picks", "share"),
}  # fmt: skip


class CsvTracker(Tracker):
    """Writes five CSV files; a continued run keeps its lines up to the checkpoint.

    Parameters
    ----------
    folder : path
        Made if missing.
    """

    name = "csv"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._metric = "accuracy"
        self._history = PickHistory()

    def start(self, facts: Facts) -> None:
        """Write the headers; with ``facts.done`` keep the lines of those rounds."""
        self._metric = facts.metric
        self._history = PickHistory(facts.earlier)
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in COLUMNS:
            self._write(name, _kept(self._folder / name, facts.done) if facts.done else [])

    def round(self, record: RoundRecord) -> None:
        """Append the lines of one round."""
        self._history.add(record)
        failed = sum(not pick.reported for pick in record.picks)
        sizes = " ".join(map(str, record.coalition_sizes))
        counts = record.available, len(record.picks), failed, len(record.incidents)
        main = record.metrics.get(self._metric, "")
        self._append("rounds.csv", [(record.round, record.phase, *counts, sizes, main)])
        self._append(
            "picks.csv",
            [
                (record.round, p.client, p.name, p.coalition, p.score, p.probability,
                 int(p.reported), p.reason)
                for p in record.picks
            ],
        )  # fmt: skip
        self._append("metrics.csv", [(record.round, *one) for one in record.scalars().items()])
        self._append(
            "incidents.csv", [(record.round, i.client, i.kind, i.detail) for i in record.incidents]
        )

    def finish(self, summary: Summary) -> None:
        """Write the share of each client in all picks."""
        counts, shares = self._history.counts.tolist(), self._history.shares.tolist()
        names = self._history.names
        self._write(
            "shares.csv",
            [
                (k, names.get(k, k), n, s)
                for k, (n, s) in enumerate(zip(counts, shares, strict=True))
            ],
        )

    def _write(self, name: str, rows: Iterable[Iterable[Any]]) -> None:
        with open(self._folder / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [COLUMNS[name], *([spreadsheet_safe(v) for v in row] for row in rows)]
            )

    def _append(self, name: str, rows: Iterable[Iterable[Any]]) -> None:
        with open(self._folder / name, "a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([spreadsheet_safe(v) for v in row] for row in rows)


def spreadsheet_safe(value: Any) -> Any:
    """Quote text that a spreadsheet would take for a formula: names come from clients."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        try:
            float(value)  # a number as text is no formula
        except ValueError:
            return f"'{value}"
    return value


def _kept(path: Path, done: int) -> list[list[str]]:
    """Return the whole lines of rounds up to `done`."""
    if not path.exists() or path.name == "shares.csv":
        return []
    width = len(COLUMNS[path.name])
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    return [row for row in rows if len(row) == width and row[0].isdigit() and int(row[0]) <= done]
