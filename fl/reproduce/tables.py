"""Results of an experiment as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from .results import Row


def results_table(rows: Sequence[Row], title: str, metric: str = "accuracy") -> Table:
    """Return the rows of `fl.reproduce.results.measure`, without rows of no run at all."""
    digits = 2 if metric == "accuracy" else 4
    unit = "%" if metric == "accuracy" else "MSE"
    alive = {row["row"] for row in rows if row["seeds"]}
    timed = any(row["reached"] is not None for row in rows)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("row", no_wrap=True)
    table.add_column("column", no_wrap=True)
    headings = ["seeds", f"last five, {unit}", "paper", "difference [95 %]"]
    for heading in headings + ["to target"] * timed:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        if row["row"] not in alive:
            continue
        cells = [
            str(row["seeds"]),
            pair(row["last_five"], row["last_five_2std"], digits),
            pair(row["paper"], row["paper_2std"], digits, missing="-"),
            difference(row, digits),
        ]
        if timed:
            reached = row["reached"]
            cells.append(f"{row['rounds_to_target']:.0f} ({reached})" if reached else "-")
        table.add_row(row["row"], row["column"], *cells)
    return table


def pair(
    value: float | None, spread: float | None, digits: int = 2, missing: str = "not run"
) -> str:
    """Return ``value ± spread`` as text."""
    if value is None:
        return missing
    text = f"{value:.{digits}f}"
    return text if spread is None else f"{text} ± {spread:.{digits}f}"


def number(value: float | None, digits: int) -> str:
    """Return a number as text, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def difference(row: Row, digits: int = 2) -> str:
    """Return the paired difference of a row with its interval, as text."""
    if row["difference"] is None:
        return "-"
    text = f"{row['difference']:+.{digits}f}"
    if row["low"] is None:
        return text
    return f"{text} [{row['low']:+.{digits}f}, {row['high']:+.{digits}f}]"


def rounds_to(row: Row) -> str:
    """Return the rounds that a row took to its target, as text."""
    if row["target"] is None:
        return "-"
    if not row["seeds"]:
        return "not run"
    if not row["reached"]:
        return "never"
    missed = row["seeds"] - row["reached"]
    return f"{row['rounds_to_target']:.0f}" + (f" ({missed} never)" if missed else "")


def commands_of(rows: Sequence[Row]) -> list[str]:
    """Return the commands behind the rows that have runs, as lines of Markdown."""
    commands = dict.fromkeys(row["command"] for row in rows if row["seeds"])
    return [f"`{command}`\n" for command in commands]
