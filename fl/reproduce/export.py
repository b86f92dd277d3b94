"""Experiments as documents: ``python -m fl.reproduce.export RUNS DOCS``.

For each experiment below RUNS, writes ``DOCS/results/NAME.csv`` and copies its figures to
``DOCS/figures``; then fills the tables of ``DOCS/results.md`` between the lines
``<!-- table NAME -->`` and ``<!-- end NAME -->``. The words around them stay as they are.
"""

from __future__ import annotations

import csv
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..presets import STEADY
from ..store import StoreError, read_json
from .ladder import LADDERS, ladder_table, variance_table
from .manifest import NAME
from .results import Row, measure, read_experiment
from .tables import commands_of, difference, pair, rounds_to
from .versus import versus, versus_table


def export(runs: Path, docs: Path) -> list[Path]:
    """Write CSV files, figures and tables of every experiment in a folder.

    Parameters
    ----------
    runs : path
        Folder of experiments, as ``cvrcore reproduce --out``.
    docs : path

    Returns
    -------
    written : list of path
    """
    folders = sorted(path.parent for path in runs.glob(f"*/{NAME}"))
    if not folders:
        raise StoreError(f"{runs} holds no experiment: no folder in it has {NAME}")
    written = []
    tables: dict[str, str] = {}
    for folder in folders:
        experiment, rows = read_experiment(folder), measure(folder)
        if (folder / "theory.json").exists():
            rows = read_json(folder / "theory.json")["verdicts"]
            tables[folder.name] = theory_table(rows)
        elif (folder / "variance.json").exists():
            rows = read_json(folder / "variance.json")["outcomes"]
            tables[folder.name] = variance_table(rows)
        elif experiment["experiment"] in LADDERS:
            tables[folder.name] = ladder_table(experiment, rows)
            paired = versus(folder, STEADY)
            tables[f"{folder.name}-paired"] = versus_table(paired)
            if paired:
                written.append(write_csv(docs / "results" / f"{folder.name}-paired.csv", paired))
        elif experiment["baseline"]:
            tables[folder.name] = markdown(experiment, rows)
        if rows and folder.name in tables:
            written.append(write_csv(docs / "results" / f"{folder.name}.csv", rows))
        for name in experiment["figures"]:
            place = docs / "figures" / f"{folder.name}-{Path(name).name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, place)
            written.append(place)
    page = docs / "results.md"
    if page.exists():
        page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        written.append(page)
    return written


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as they are, floats to six digits; None becomes an empty field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return path


def fill(text: str, tables: dict[str, str]) -> str:
    """Replace what stands between the marks of each table; tables without marks are left out."""
    for name, table in tables.items():
        mark = re.escape(name)
        found = re.search(rf"<!-- table {mark} -->\n(.*?)<!-- end {mark} -->", text, re.DOTALL)
        if found:
            text = f"{text[: found.start(1)]}\n{table}\n{text[found.end(1) :]}"
    return text


def markdown(experiment: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return the table of an experiment, one line per cell, and the commands behind it."""
    accuracy = experiment["metric"] == "accuracy"
    digits, unit = (2, "%") if accuracy else (4, "MSE")
    target = max((row["target"] or 0.0 for row in rows), default=0.0)
    with_paper = any(row["paper"] is not None for row in rows)
    headings = ["", "", "seeds", f"last five, {unit}", f"final, {unit}"]
    headings += [f"paper, {unit}"] * with_paper + [f"minus {experiment['baseline']} [95 %]"]
    headings += [f"rounds to {100 * target:.0f} %"] * (target > 0)
    headings += ["swing"] * accuracy
    headings += ["TV"] * any(row["tv_mean"] is not None for row in rows)
    lines = ["| " + " | ".join(headings) + " |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for row in rows:
        cells = [
            row["row"],
            row["column"],
            str(row["seeds"]),
            pair(row["last_five"], row["last_five_2std"], digits),
            pair(row["final"], row["final_2std"], digits),
        ]
        if with_paper:
            cells.append(pair(row["paper"], row["paper_2std"], digits, missing="-"))
        cells.append(difference(row, digits))
        if target:
            cells.append(rounds_to(row))
        if accuracy:
            cells.append("-" if row["swing"] is None else f"{row['swing']:.2f}")
        if "TV" in headings:
            cells.append("-" if row["tv_mean"] is None else f"{row['tv_mean']:.4f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *commands_of(rows)])


def theory_table(rows: Sequence[Row]) -> str:
    """Return the table of `fl.reproduce.theory`."""
    lines = [
        "| clients | eta | L | M | c, mean | c, worst round | measured | bound | with start |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        names = ("smoothness", "second_moment", "alignment", "worst_alignment")
        values = [f"{row[name]:.2f}" for name in names]
        ends = [f"{row[name]:.3f}" for name in ("mean_square", "bound", "finite_bound")]
        lines.append("| " + " | ".join([row["groups"], f"{row['step']:g}", *values, *ends]) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for path in export(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
