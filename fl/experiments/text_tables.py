"""Rows of `measures` in, tables of text out: Markdown for documents, and for the terminal."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..history import History
from .columns import (
    DIFFERENCE,
    LADDER,
    LEAKAGE,
    PAIRED,
    SEEDS,
    SHARE,
    STEP_ERROR,
    THEORY,
    VARIANCE,
    WEIGHTED,
    gap,
    pair,
    percent_text,
    present,
    reached_text,
    rounds_text,
    server_text,
    simulated_columns,
)
from .regimes import regime_table
from .results import Results
from .table import Column, Row, Table

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

#: Experiments whose table shows gain and cost of each part.
LADDERS = (
    "beyond", "holdout", "balanced", "balanced-choice", "policies", "devices", "ceiling",
)  # fmt: skip
#: Width of a terminal in which a ladder shows its paired differences.
_WIDE = 110
#: Width of a policy's name, and of an aggregator's numbers.
_POLICY, _AGGREGATOR = 28, 12
#: Names of methods up to this length stay on one line of a comparison.
_METHOD = 18


def document_tables(results: Results, rows: Sequence[Row], paired: Sequence[Row]) -> dict[str, str]:
    """Return the Markdown tables of an experiment by the ending of their names."""
    if results.name == "step-error":
        return {"": Table(STEP_ERROR, rows).markdown(left=4)}
    if results.name == "leakage":
        return {"": Table(LEAKAGE, rows).markdown(left=2)}
    named = [row["command"] for row in rows if row.get("seeds") and row.get("command")]
    commands = dict.fromkeys(map(whole_table, named))
    tail = "".join(f"\n`{command}`\n" for command in commands)
    if results.name == "theory":
        return {"": Table(THEORY, rows).markdown(left=1)}
    if results.name == "variance":
        return {"": Table(VARIANCE, rows).markdown(left=3)}
    if results.name in LADDERS:
        name = Column("", show=lambda row: row["row"] + percent_text(row, " ({:.0f} %)"))
        shown = [name, Column("", "column"), *present(LADDER, rows)]
        ladder = Table(shown, condensed(rows)).markdown()
        ladder = ladder.replace("minus {}", f"minus {results.baseline}", 1)
        found = {"": ladder + tail}
        return found | ({"-paired": Table(PAIRED, paired).markdown()} if paired else {})
    if results.name == "map":
        return {"": regime_table(rows).markdown(left=1) + tail}
    if not results.baseline:
        return {}
    unit, _, digits = results.form
    columns = [Column("", "row"), Column("", "column"), SEEDS]
    columns += [pair(f"last five, {unit}", "last_five", digits)]
    columns += [pair(f"final, {unit}", "final", digits)]
    if any(row["paper"] is not None for row in rows):
        columns.append(pair(f"paper, {unit}", "paper", digits, missing="-"))
    columns.append(gap(f"minus {results.baseline} [95 %]", DIFFERENCE, digits))
    columns += present([WEIGHTED, SHARE] if results.accuracy else [], rows)
    target = max((row["target"] or 0.0 for row in rows), default=0.0)
    if target:
        columns.append(Column(f"rounds to {100 * target:.0f} %", show=rounds_text))
    if results.accuracy:
        columns.append(Column("swing", "swing", ".2f"))
    if any(row["tv_mean"] is not None for row in rows):
        columns.append(Column("TV", "tv_mean", ".4f"))
    return {"": Table(columns, rows).markdown() + tail}


def condensed(rows: Sequence[Row]) -> list[Row]:
    """Return `rows` with one line for each data set of which no cell was run."""
    counts = Counter(row["row"] for row in rows)
    begun = {row["row"] for row in rows if row["seeds"]}
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row["row"] not in begun and counts[row["row"]] > 1:
            row = {**row, "column": f"all {counts[row['row']]}"}
        found.setdefault((row["row"], row["column"]), row)
    return list(found.values())


def whole_table(command: str) -> str:
    """Return the command of a slice of a table without what makes it a slice.

    Examples
    --------
    >>> whole_table("cvrcore reproduce map --preset paper --rows 'K=100*' --seeds 1")
    'cvrcore reproduce map --preset paper'
    """
    words, kept = shlex.split(command), []
    while words:
        word = words.pop(0)
        if word in ("--methods", "--rows", "--columns", "--seeds"):
            del words[:1]
        else:
            kept.append(word)
    return shlex.join(kept)


def print_experiment(results: Results, rows: Sequence[Row]) -> None:
    """Print the table that an experiment has, if any; into a file or pipe in full width."""
    from rich.console import Console

    console = Console()
    console = Console(width=console.width if console.is_terminal else 140)
    for table in terminal_tables(results, rows, console.width):
        console.print(table)


def terminal_tables(
    results: Results, rows: Sequence[Row], width: int = _WIDE
) -> Iterator[TerminalTable]:
    """Yield the tables of an experiment, without data sets that have no run."""
    if results.name == "step-error":
        of_late = [row for row in rows if row["rounds"] == "late"]
        shown = [column for column in STEP_ERROR if column.heading != "rounds"]
        title = f"{results.heading}, late rounds; ± std"
        yield Table(shown, of_late, title).terminal(left=3)
        return
    if results.name == "leakage":
        yield Table(LEAKAGE, rows, f"{results.heading}; ± std").terminal(left=2)
        return
    alive = dict.fromkeys(row["row"] for row in rows if row.get("seeds"))
    if results.name == "variance":
        yield from _variance_tables(rows, results.heading, width)
    elif results.name in LADDERS:
        named = {column.heading: column for column in LADDER}
        seeds, late, difference, sent, weighted, share, spread = LADDER[:7]
        minus = Column(difference.heading.format(results.baseline), show=difference.show)
        wide = [minus, *present([sent, weighted, share], rows)] if width >= _WIDE else []
        columns = [Column("part", "column"), seeds, late, *wide, spread]
        columns += [named["rounds\nto aim"], named["MB\nto aim"]]
        columns += present([named["simulated s\nto aim"]], rows)
        columns += [Column("server\nMB", show=server_text)]
        for name in alive:
            parts = [row for row in rows if row["row"] == name and row["seeds"]]
            aim = percent_text(parts[0], ", aim {:.0f} %")
            title = f"{results.heading}: {name}{aim}; ± 2 std"
            yield Table(columns, parts, title).terminal(tight=True, wrapped=(0,))
    elif results.name == "map":
        table = regime_table([row for row in rows if row["row"] in alive])
        yield table.terminal(tight=True, wrapped=range(len(table.columns)))
    elif results.baseline:
        unit, _, digits = results.form
        columns = [Column("row", "row"), Column("column", "column"), SEEDS]
        columns += [pair(f"last five, {unit}", "last_five", digits)]
        columns += [pair("paper", "paper", digits, missing="-")]
        columns += [gap("difference [95 %]", DIFFERENCE, digits)]
        columns += present([WEIGHTED, SHARE] if results.accuracy else [], rows)
        if any(row["reached"] is not None for row in rows):
            columns.append(Column("to target", show=reached_text))
        title = f"{results.heading}; ± 2 std, paired with {results.baseline}"
        yield Table(columns, [row for row in rows if row["row"] in alive], title).terminal(left=2)


def _variance_tables(rows: Sequence[Row], title: str, width: int) -> Iterator[TerminalTable]:
    """Yield variances relative to FedAvg's, policies by aggregators, biased ones in brackets.

    The aggregators are split over several tables where `width` is too small for one.
    """
    title = f"{title}:\nvariance / FedAvg's, in brackets where the mean is biased"
    by_policy: dict[str, Row] = {}
    for row in rows:
        text = f"{row['variance']:.3f} " if row["unbiased"] else f"({row['variance']:.3f})"
        by_policy.setdefault(row["policy"], {"policy": row["policy"]})[row["aggregator"]] = text
    aggregators = list(dict.fromkeys(row["aggregator"] for row in rows))
    n_tables = math.ceil(len(aggregators) / max((width - _POLICY) // _AGGREGATOR, 1))
    for i, some in enumerate(np.array_split(aggregators, n_tables)):
        columns = [Column("policy", "policy")]
        columns += [Column(n.replace(" ", "\n").replace("-", "-\n"), n) for n in map(str, some)]
        yield Table(columns, list(by_policy.values()), "" if i else title).terminal(tight=True)


def comparison_table(rows: Sequence[Row], title: str = "") -> TerminalTable:
    """Return the rows of `compare.Comparison.table`; accuracies in percent."""
    percent = rows[0]["metric"] == "accuracy"
    scale, digits, unit = (100.0, 1, "%") if percent else (1.0, 4, "MSE")
    late = pair("", "last_five", digits, scale)
    gain = gap("", ("gain", "gain_low", "gain_high"), digits, scale)

    def two_lines(column: Column, mark: str) -> Callable[[Row], str]:
        """Break a cell before the noise: a terminal has 80 characters a line."""
        return lambda row: column.text(row).replace(f" {mark}", f"\n{mark}")

    gained = two_lines(gain, "[")
    columns = [
        Column("method", "method"),
        Column("picks,\nmerges", show=lambda row: f"{row['picks']},\n{row['merges']}"),
        Column("server", show=lambda row: (row["server"] or "-").replace(", ", ",\n")),
        Column(f"last\nfive, {unit}", show=two_lines(late, "±")),
        Column("gain\n[95 %]", show=lambda row: "-" if row is rows[0] else gained(row)),
        Column("seconds\na run", "seconds", ".1f"),
    ]
    if any(row["rounds_to_target"] is not None for row in rows):
        columns.insert(5, Column("rounds\nto target\n(seeds)", show=reached_text))
    if times := simulated_columns(rows, "to target\n", "in all"):  # one column: lines are short
        heading = "simulated\nseconds\n" + "".join(time.heading for time in times)
        join = "\n".join
        columns.insert(-1, Column(heading, show=lambda row: join(t.text(row) for t in times)))
    wrapped = (0, 4) if max(len(row["method"]) for row in rows) > _METHOD else (4,)
    return Table(columns, rows, title).terminal(tight=True, wrapped=wrapped)


def run_table(history: History) -> TerminalTable:
    """Return the summary of one run."""
    from rich.table import Table as TerminalTable

    table = TerminalTable(show_header=False, box=None)
    for name, value in history.summary().items():
        if value is not None:
            table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table
