"""Runs with simulated devices in; accuracy by simulated seconds, and seconds to a target, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..history import History
from .bands import band_text, draw_bands
from .definition import Request, slug
from .drawing import MUTED, PALETTE, new_figure, plain, save
from .figures import SMOOTH, palette
from .measures import measure
from .results import read_results
from .statistics import Band, smooth
from .table import Row

#: Points of time at which runs are read.
POINTS = 200


def clock_band(runs: Sequence[History], scale: float, until: float, width: int = SMOOTH) -> Band:
    """Return the metric by simulated seconds, over the time that all `runs` cover.

    Between two evaluations the metric is taken as a straight line.
    """
    lines = []
    for run in runs:
        clock = {r["round"]: r["simulated_clock"] for r in run.rounds if "simulated_clock" in r}
        rounds, values = run.column(run.metric)
        known = [i for i, at in enumerate(rounds.tolist()) if at in clock]
        if known:
            seconds = np.array([clock[int(rounds[i])] for i in known])
            lines.append((seconds, smooth(scale * values[known], width)))
    if not lines:
        return Band(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), 0)
    first = max(float(seconds[0]) for seconds, _ in lines)
    last = min(until, *(float(seconds[-1]) for seconds, _ in lines))
    at = np.unique(np.linspace(first, max(first, last), POINTS).astype(np.int64))
    found = np.stack([np.interp(at, seconds, values) for seconds, values in lines])
    two_std = 2 * found.std(axis=0, ddof=1) if len(found) > 1 else np.zeros(at.size)
    return Band(at, found.mean(axis=0), two_std, len(found))


def draw_clock(folder: Path, request: Request) -> list[str]:
    """Draw accuracy by simulated seconds and the seconds to the target, for each row."""
    results = read_results(folder)
    rows = [row for row in measure(results) if row["seeds"]]
    names = []
    for row, cells in results.rows.items():
        ends = [
            end
            for cell in cells
            if cell.column == results.baseline
            for run in cell.runs
            if (end := run.history.final("simulated_clock")) is not None
        ]
        until = max(ends, default=float("inf"))
        bands = {
            cell.column: clock_band(list(cell.by_seed.values()), results.form[1], until)
            for cell in cells
        }
        bands = {column: found for column, found in bands.items() if found.rounds.size}
        if not bands:
            continue
        text = f"{results.heading}: {row}; running mean of {SMOOTH} evaluations"
        text += f", {band_text(bands)}"
        figure = draw_bands(
            bands,
            palette(results),
            results.accuracy,
            reference=results.baseline,
            title=text,
            xlabel="simulated seconds",
        )
        names.append(f"{slug(row)}-clock.png")
        save(figure, folder / names[-1])
        times = _times([r for r in rows if r["row"] == row], results.baseline)
        names += _bars(times, folder, row, results.heading)
    return names


def _times(rows: Sequence[Row], baseline: str) -> Mapping[str, Row]:
    """Return the rows by column, the fastest to the target first; those without it last."""
    none = float("inf")
    key = "simulated_seconds_to_target"
    ordered = sorted(rows, key=lambda row: none if row[key] is None else row[key])
    return {row["column"]: row for row in ordered}


def _bars(times: Mapping[str, Row], folder: Path, row: str, heading: str) -> list[str]:
    target = next((r["target"] for r in times.values() if r["target"] is not None), None)
    if target is None or not any(r["simulated_seconds_to_target"] for r in times.values()):
        return []
    figure = new_figure(7.5, 1.1 + 0.27 * len(times))
    axes = figure.subplots()
    places = range(len(times))
    seconds = [r["simulated_seconds_to_target"] or 0.0 for r in times.values()]
    errors = [r["simulated_seconds_to_target_2std"] or 0.0 for r in times.values()]
    axes.barh(places, seconds, color=PALETTE[0], height=0.65)
    axes.errorbar(seconds, places, xerr=errors, fmt="none", ecolor=MUTED, elinewidth=1.2)
    for place, found in zip(places, times.values(), strict=True):
        missed = found["seeds"] - (found["reached"] or 0)
        if missed:
            note = f"  never in {missed} of {found['seeds']}"
            axes.text(seconds[place] + errors[place], place, note, va="center", size=7.5)
    axes.set_yticks(places, list(times))
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    label = f"simulated seconds to {100 * target:.0f} %, mean over the seeds that reached it"
    plain(axes, xlabel=label, title=f"{heading}: {row}; bars of 2 std", grid="x")
    name = f"{slug(row)}-seconds.png"
    save(figure, folder / name)
    return [name]
