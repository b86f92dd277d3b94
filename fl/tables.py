"""Results as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from .history import History


def comparison_table(rows: Sequence[dict[str, Any]], title: str = "") -> Table:
    """Return the rows of `fl.compare.Comparison.table` as a rich table; accuracies in %."""
    percent = rows[0]["metric"] == "accuracy"
    scale, digits = (100.0, 1) if percent else (1.0, 4)
    with_target = any(row["rounds_to_target"] is not None for row in rows)
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("method", no_wrap=True)
    unit = "%" if percent else "MSE"
    headings = [f"last five, {unit}", f"final, {unit}", "gain", "worst tenth"]
    for heading in headings + ["to target"] * with_target + ["MB", "s"]:
        table.add_column(heading, justify="right")
    for i, row in enumerate(rows):
        cells = [
            _pair(row["last_five"], row["last_five_2std"], scale, digits),
            _pair(row["final"], row["final_2std"], scale, digits),
            _pair(row["gain"], row["gain_2se"], scale, digits, sign="+") if i else "-",
            _pair(row["worst_decile"], None, scale, digits),
        ]
        if with_target:
            cells.append(f"{_pair(row['rounds_to_target'], None)} ({row['reached']})")
        cells += [_pair(row["megabytes"], None), _pair(row["seconds"], None, digits=1)]
        table.add_row(row["method"], *cells)
    return table


def run_table(history: History) -> Table:
    """Return the summary of one run as a rich table."""
    table = Table(show_header=False, box=None)
    for name, value in history.summary().items():
        if value is not None:
            table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table


def _pair(
    value: float | None,
    spread: float | None,
    scale: float = 1.0,
    digits: int = 0,
    sign: str = "",
) -> str:
    if value is None:
        return "-"
    text = f"{scale * value:{sign}.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"
