"""Experiments in, documents out: ``python -m fl.experiments.export RUNS docs``.

For each experiment below RUNS, adds its numbers to ``docs/results/NAME.csv`` and copies its
figures to ``docs/figures``; then fills the tables of ``docs/results.md`` and
``docs/results/*.md`` from the CSV files, see `documents`. A cell of the CSV file that rests on
more seeds than RUNS holds stays as it is, and so do the figures of its row. RUNS may also be the
folder of an archive, ``docs/results/runs``. Without RUNS, only the tables are filled.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..presets import BALANCED, STEADY
from ..store import StoreError, read_json, write_json
from .archive import SUFFIX, unpack
from .definition import Request, slug
from .documents import PAGE, completed, defined, fill_pages, merged, read_rows, write_rows
from .documents import fill as fill
from .figures import draw_curves
from .manifest import MANIFEST
from .measures import rows_of, versus
from .results import Results, read_figure, read_results
from .table import Row

#: Methods of each experiment that are compared, pair by pair, with all others of their row.
OURS = {
    "beyond": (STEADY,),
    "holdout": (STEADY,),
    "balanced": tuple(BALANCED),
    "balanced-choice": tuple(BALANCED),
}


def export(runs: Path, docs: Path) -> list[Path]:
    """Write CSV files, figures and tables of every experiment in `runs`; return the files.

    `runs` is a folder of run folders, or of an archive.
    """
    if any(runs.glob(f"*{SUFFIX}")):
        with tempfile.TemporaryDirectory() as place:
            unpack(runs, Path(place))
            redraw(Path(place))
            return export(Path(place), docs)
    folders = sorted(path.parent for path in runs.glob(f"*/{MANIFEST}"))
    if not folders:
        raise StoreError(f"{runs} holds no experiment: no folder in it has {MANIFEST}")
    written = []
    for folder in folders:
        results, rows, name = read_results(folder), rows_of(folder), folder.name
        path = docs / "results" / f"{name}.csv"
        if not results.cells:
            if rows:  # an archive has no measurements, only runs
                written.append(write_rows(path, rows))
            written += _figures(results, docs, name, set())
            continue
        if not any(row["seeds"] for row in rows) or not results.baseline:
            written += _figures(results, docs, name, set())
            continue
        older = read_rows(path)
        plan = None if results.quick else defined(name)
        rows = completed(merged(older, rows, ("row", "column")), plan)
        written.append(write_rows(path, rows))
        paired = [row for method in OURS.get(results.name, ()) for row in versus(results, method)]
        path = path.with_name(f"{name}-paired.csv")
        paired = merged(read_rows(path), paired, ("row", "method", "against"))
        if paired:
            written.append(write_rows(path, paired))
        written += _figures(results, docs, name, _richer(older, results))
    return [*written, *fill_pages(docs)]


def redraw(runs: Path) -> None:
    """Draw the figures of every experiment in `runs` anew, as far as they need no other file."""
    for folder in sorted(path.parent for path in runs.glob(f"*/{MANIFEST}")):
        experiment = defined(folder.name)
        if experiment is None or not experiment.baseline:
            continue
        names = (experiment.draw or draw_curves)(folder, Request())
        write_json(folder / MANIFEST, {**read_json(folder / MANIFEST), "figures": names})


def _richer(older: Sequence[Row], results: Results) -> set[str]:
    """Return the rows of which the CSV file had more seeds than the runs do."""
    found = {(cell.row, cell.column): len(cell.runs) for cell in results.cells}
    return {r["row"] for r in older if (r["seeds"] or 0) > found.get((r["row"], r["column"]), 0)}


def _figures(results: Results, docs: Path, name: str, kept: set[str]) -> list[Path]:
    """Copy the figures of an experiment, except those of the rows `kept`."""
    written = []
    for figure in results.figures:
        place = docs / "figures" / f"{name}-{figure.name}"
        if not figure.is_file():
            continue
        if place.exists() and any(figure.name.startswith(f"{slug(row)}-") for row in kept):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(read_figure(figure))
        written.append(place)
    return written


def _check_docs(docs: str) -> None:
    if not (Path(docs) / PAGE).is_file():
        sys.exit(f"DOCS must be a folder that holds {PAGE}, got {docs}")


def main() -> None:
    """Export the folders named on the command line."""
    usage = "usage: python -m fl.experiments.export [RUNS] DOCS"
    match sys.argv[1:]:
        case ["-h" | "--help"]:
            print(usage)
            return
        case [docs]:
            _check_docs(docs)
            written = fill_pages(Path(docs))
        case [runs, docs]:
            _check_docs(docs)
            written = export(Path(runs), Path(docs))
        case _:
            sys.exit(usage)
    for path in written:
        print(path)


if __name__ == "__main__":
    main()
