"""Experiments in, documents out: ``python -m fl.experiments.export RUNS DOCS``.

For each experiment below RUNS, writes ``DOCS/results/NAME.csv`` and copies its figures to
``DOCS/figures``; then fills the tables of ``DOCS/results.md`` between the lines
``<!-- table NAME -->`` and ``<!-- end NAME -->``. The words around them stay as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..presets import BALANCED, STEADY
from ..store import StoreError
from .manifest import MANIFEST
from .measures import rows_of, versus
from .results import read_figure, read_results
from .table import Row, write_csv
from .text_tables import document_tables

#: Methods of each experiment that are compared, pair by pair, with all others of their row.
OURS = {"beyond": (STEADY,), "holdout": (STEADY,), "balanced": tuple(BALANCED)}


def export(runs: Path, docs: Path) -> list[Path]:
    """Write CSV files, figures and tables of every experiment in `runs`; return the files."""
    folders = sorted(path.parent for path in runs.glob(f"*/{MANIFEST}"))
    if not folders:
        raise StoreError(f"{runs} holds no experiment: no folder in it has {MANIFEST}")
    written = []
    tables: dict[str, str] = {}
    for folder in folders:
        results, rows, name = read_results(folder), rows_of(folder), folder.name
        paired = [row for method in OURS.get(results.name, ()) for row in versus(results, method)]
        found = document_tables(results, rows, paired)
        tables |= {f"{name}{ending}": table for ending, table in found.items()}
        for ending, some in {"": rows, "-paired": paired}.items():
            if some and ending in found:
                written.append(_write(docs / "results" / f"{name}{ending}.csv", some))
        for figure in results.figures:
            place = docs / "figures" / f"{name}-{figure.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(read_figure(figure))
            written.append(place)
    page = docs / "results.md"
    if page.exists():
        page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        written.append(page)
    return written


def _write(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV, floats to six digits."""
    short = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    write_csv(path, short)
    return path


def fill(text: str, tables: dict[str, str]) -> str:
    """Replace the text between the marks of each table; tables without marks are left out."""
    for name, table in tables.items():
        mark = re.escape(name)
        found = re.search(rf"<!-- table {mark} -->\n(.*?)<!-- end {mark} -->", text, re.DOTALL)
        if found:
            text = f"{text[: found.start(1)]}\n{table}\n{text[found.end(1) :]}"
    return text


def main() -> None:
    """Export the folders named on the command line."""
    for path in export(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)


if __name__ == "__main__":
    main()
