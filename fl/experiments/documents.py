"""CSV files of ``docs/results`` in, tables of pages out: what a page prints, a CSV file holds.

Tables stand between the lines ``<!-- table NAME -->`` and ``<!-- end NAME -->`` of
``docs/results.md`` and ``docs/results/*.md``; the words around them stay as they are.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..presets import BALANCED, STEADY
from .columns import ADVICE_COLUMNS, SUMMARY_COLUMNS, present
from .definition import Experiment, Request
from .definitions import NAMES, ORDER, define
from .definitions.balanced_choice import best_steps
from .definitions.policies import TITLES
from .measures import CSV
from .policy_tables import policy_tables
from .results import Results
from .table import Column, Row, Table, write_csv
from .text_tables import document_tables

PAGE, FOLDER = "results.md", "results"
#: Columns of text; all others are numbers.
_TEXT = (
    "row", "column", "method", "reference", "against", "commit", "machine", "command", "groups",
    "policy", "aggregator", "dataset", "rounds", "draw", "estimator", "features",
)  # fmt: skip
_AVERAGED = ("fedavg, step 1", "fedavg", "fedcvr-bolt", "fedcbs", *BALANCED)
_MANY = ("fedavg", "fedcbs", "balanced-factor, adaptive", "balanced-factor")
#: Rows of the summary: table, row of it, and methods.
SUMMARY = (
    ("classification", "mnist", ("active", "fedcbs", "fedcvr-bolt")),
    ("classification", "cifar10", ("fedavg", "fedavg-memory", "oort", "active", "fedcvr-bolt")),
    ("holdout", "synthetic", (STEADY,)),
    ("balanced", "mnist, K=100", _AVERAGED),
    ("balanced", "mnist, K=1000", _AVERAGED),
    ("balanced", "fashion-mnist, K=1000", _MANY),
    ("balanced", "cifar10, K=1000", _MANY),
    ("balanced", "cifar10, K=100", tuple(BALANCED)),
    ("balanced", "synthetic, K=100", ("fedavg", "fedcvr-bolt", "fedcbs", *BALANCED)),
)


#: Rows of the advice: federation, method, and the table and row that measured it. The README
#: shows the first of them.
ADVICE = (
    ("many clients, each seldom seen", "balanced-factor", "balanced", "mnist, K=1000"),
    (
        "few clients; the server keeps an update of each",
        "balanced-memory",
        "balanced",
        "mnist, K=100",
    ),
    (
        "few clients; label counts are known, the server keeps nothing",
        "fedcbs",
        "balanced",
        "mnist, K=100",
    ),
    ("few clients; losses are reported", "oort", "balanced", "mnist, K=100"),
    ("many clients; label counts are known", "fedcbs", "balanced", "mnist, K=1000"),
    (
        "many clients; other data, step set to 4",
        "balanced-factor",
        "balanced",
        "fashion-mnist, K=1000",
    ),
    ("few clients; a convolutional network", "balanced-memory", "balanced", "cifar10, K=100"),
    (
        "many clients; a convolutional network, step set to 4",
        "balanced-factor",
        "balanced",
        "cifar10, K=1000",
    ),
    (
        "a few clients hold most samples; label counts are known",
        "fedcbs",
        "balanced",
        "synthetic, K=100",
    ),
    ("a few clients hold most samples", "balanced-memory", "balanced", "synthetic, K=100"),
    ("the paper's method", "fedcvr-bolt", "balanced", "mnist, K=100"),
)
README_ROWS = 3


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file that `write_rows` wrote; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        found = [{k: _value(k, v) for k, v in row.items()} for row in csv.DictReader(file)]
    if found and {"row", "column"} <= found[0].keys():
        # A number that is newer than the file is not known.
        return [dict.fromkeys(CSV) | row for row in found]
    return found


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV, floats to six digits."""
    short = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows]
    write_csv(path, short)
    return path


def _value(name: str, text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    if name in _TEXT:  # a quote stands before text that looks like a formula
        return text[1:] if re.match(r"'[=+\-@]", text) else text
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def defined(name: str) -> Experiment | None:
    """Return the definition of the experiment whose CSV file is called `name`, if there is one."""
    known = name.removesuffix("-quick")
    return define(known, Request()) if known in NAMES and known != "all" else None


def merged(older: Sequence[Row], newer: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return the newer rows, and the older ones where they rest on more seeds or stand alone.

    The runs of an older row may be gone: a table never loses seeds that it once had.
    """
    found = {tuple(row[k] for k in keys): row for row in older}
    for row in newer:
        key = tuple(row[k] for k in keys)
        if key not in found or (row["seeds"] or 0) >= (found[key]["seeds"] or 0):
            found[key] = row
    first = [tuple(row[k] for k in keys) for row in newer]
    order = [*first, *(key for key in found if key not in set(first))]
    if len(keys) == 2:  # cells of a table: rows stay together
        rows = list(dict.fromkeys(row["row"] for row in (*older, *newer)))
        columns = list(dict.fromkeys(key[1] for key in order))
        order.sort(key=lambda key: (rows.index(key[0]), columns.index(key[1])))
    return [found[key] for key in order]


def completed(rows: Sequence[Row], experiment: Experiment | None) -> list[Row]:
    """Return rows with those cells of the definition that were never run, as empty rows."""
    if experiment is None or not rows or "column" not in rows[0]:
        return list(rows)
    present = {row["row"] for row in rows}
    blank = [
        dict.fromkeys(CSV)
        | {"row": cell.row, "column": cell.column, "method": cell.config.method, "seeds": 0}
        | {"target": cell.target, "paper": cell.paper and cell.paper[0]}
        | {"paper_2std": cell.paper and cell.paper[1]}
        for cell in experiment.cells
        if cell.row in present or cell.wanted
    ]
    return merged(rows, blank, ("row", "column"))


def tables_of(name: str, rows: Sequence[Row], paired: Sequence[Row]) -> dict[str, str]:
    """Return the Markdown tables of one CSV file, by name."""
    experiment = defined(name)
    if experiment is None or not rows:
        return {}
    results = Results(
        name=experiment.name,
        title=experiment.title,
        metric=experiment.metric,
        cells=(),
        command="",
        baseline=experiment.baseline,
    )
    found = document_tables(results, rows, paired)
    return {f"{name}{ending}": table for ending, table in found.items()}


def fill_pages(docs: Path) -> list[Path]:
    """Fill the tables of every page below `docs` from its CSV files; return the pages."""
    tables: dict[str, str] = {}
    for path in sorted((docs / FOLDER).glob("*.csv")):
        if not path.stem.endswith("-paired"):
            paired = read_rows(path.with_name(f"{path.stem}-paired.csv"))
            plan = None if path.stem.endswith("-quick") else defined(path.stem)
            tables |= tables_of(path.stem, completed(read_rows(path), plan), paired)
    for name in NAMES:
        if name not in tables:
            tables[name] = f"Not run yet: `cvrcore reproduce {name}`\n"
    tables["progress"] = progress_table(docs / FOLDER).markdown(left=1)
    tables["summary"] = summary_table(docs / FOLDER).markdown()
    tables["balanced-choice-steps"] = _steps(docs / FOLDER / "balanced-choice.csv")
    tables |= {f"{name}-figures": _figures(docs, name) for name in NAMES}
    tables |= policy_tables(read_rows(docs / FOLDER / "policies.csv"), TITLES)
    tables["advice"] = advice_table(docs / FOLDER, FOLDER).markdown()
    gains = advice_table(docs / FOLDER, f"docs/{FOLDER}", README_ROWS)
    tables["gains"] = gains.markdown()
    pages = [docs / PAGE, docs / "which-policy.md", docs.parent / "README.md"]
    pages += sorted((docs / FOLDER).glob("*.md")) + sorted((docs / "policies").glob("*.md"))
    filled = [page for page in pages if page.exists()]
    for page in filled:
        page.write_text(fill(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    return filled


def progress_table(folder: Path) -> Table:
    """Return how many cells of each table are run, on how many seeds, and how many are planned."""
    lines: list[Row] = []
    for name in ORDER:
        experiment = define(name, Request())
        if not experiment.cells or name == "overview":
            continue
        rows = completed(read_rows(folder / f"{name}.csv"), experiment)
        done = [row for row in rows if row["seeds"]]
        planned = {(c.row, c.column): len(experiment.seeds_of(c)) for c in experiment.cells}
        whole = sum(
            row["seeds"] >= planned.get((row["row"], row["column"]), experiment.seeds)
            for row in done
        )
        seeds = [row["seeds"] for row in done]
        span = " to ".join(map(str, dict.fromkeys((min(seeds), max(seeds))))) if seeds else "-"
        lines.append(
            {
                "name": f"[{name}]({FOLDER}/{name}.md)",
                "cells": len(rows) or len(experiment.cells),
                "done": len(done) or "not run",
                "whole": whole,
                "seeds": span,
            }
        )
    columns = [Column("table", "name"), Column("cells", "cells"), Column("run", "done")]
    columns += [Column("on all planned seeds", "whole"), Column("seeds", "seeds")]
    return Table(columns, lines)


def summary_table(folder: Path) -> Table:
    """Return the methods of `SUMMARY` beside FedAvg, from the CSV files of their tables."""
    lines = []
    for name, place, methods in SUMMARY:
        for row in _beside_fedavg(folder, name, place):
            if row["column"] in methods and row["seeds"]:
                lines.append({**row, "where": f"[{name}]({FOLDER}/{name}.md): {place}"})
    shown = present(SUMMARY_COLUMNS, lines)
    return Table([Column("table", "where"), Column("method", "column"), *shown], lines)


def advice_table(folder: Path, link: str, n_rows: int | None = None) -> Table:
    """Return which method `ADVICE` gives for which federation, with what was measured.

    `link` leads to the folder of the tables from the page that shows the advice.
    """
    lines = []
    for where, method, name, place in ADVICE[:n_rows]:
        for row in _beside_fedavg(folder, name, place):
            if row["column"] == method:
                measured = f"[{place}]({link}/{name}.md)"
                lines.append({**row, "where": where, "on": measured, "take": f"`{method}`"})
    columns = [Column("federation", "where"), Column("recommended", "take")]
    columns += [Column("measured on", "on")]
    return Table([*columns, *present(ADVICE_COLUMNS, lines)], lines)


def _beside_fedavg(folder: Path, name: str, place: str) -> list[Row]:
    """Return the rows of a table at `place`, each with its difference to FedAvg."""
    experiment = define(name, Request())
    rows = [row for row in read_rows(folder / f"{name}.csv") if row["row"] == place]
    if experiment.baseline == "fedavg":
        return rows
    paired, found = read_rows(folder / f"{name}-paired.csv"), []
    for row in rows:
        keys = {"row": place, "method": row["column"], "against": "fedavg"}
        pairs = [p for p in paired if keys.items() <= p.items()]
        ends = {"difference": "", "low": "_low", "high": "_high", "pairs": "_pairs"}
        gap = {k: pairs[0][f"last_five{v}"] if pairs else None for k, v in ends.items()}
        found.append({**row, **gap})
    return found


def _steps(path: Path) -> str:
    """Return the best server step of each method that was run at all steps on all seeds."""
    best = best_steps(read_rows(path))
    lines = [{"row": row, "method": m, "step": step} for (row, m), step in best.items()]
    columns = [Column("", "row"), Column("method", "method"), Column("best step", "step")]
    return Table(columns, lines).markdown() if lines else "No method was run at all steps yet.\n"


def _figures(docs: Path, name: str) -> str:
    """Return links to the figures and the CSV file of a table, as far as they exist."""
    longer = [other for other in NAMES if other.startswith(f"{name}-")]
    found = [
        path
        for path in sorted((docs / "figures").glob(f"{name}-*.png"))
        if not any(path.name.startswith(f"{other}-") for other in longer)
    ]
    words = [(p.stem.removeprefix(f"{name}-").replace("-", " "), p.name) for p in found]
    lines = [f"![{word}](../figures/{file})" for word, file in words]
    lines += [f"[CSV]({name}.csv)"] if (docs / FOLDER / f"{name}.csv").exists() else []
    return "\n\n".join(lines) + "\n" if lines else "No figures yet.\n"


def fill(text: str, tables: Mapping[str, str]) -> str:
    """Replace the text between the marks of each table; tables without marks are left out."""
    for name, table in tables.items():
        mark = re.escape(name)
        found = re.search(rf"<!-- table {mark} -->\n(.*?)<!-- end {mark} -->", text, re.DOTALL)
        if found:
            text = f"{text[: found.start(1)]}\n{table}\n{text[found.end(1) :]}"
    return text
