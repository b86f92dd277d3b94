"""Rows of `measures` in, tables of text out: Markdown for documents, and for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..history import History
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


# -- columns ---------------------------------------------------------------------


def pair(
    heading: str, name: str, digits: int = 2, scale: float = 1.0, missing: str = "not run"
) -> Column:
    """Return a column of means, beside two standard deviations where the row has them."""

    def text(row: Row) -> str:
        if row[name] is None:
            return "-" if row["seeds"] else missing
        two_std = row[f"{name}_2std"]
        noise = "" if two_std is None else f" ± {scale * two_std:.{digits}f}"
        return f"{scale * row[name]:.{digits}f}{noise}"

    return Column(heading, show=text)


def gap(heading: str, names: Sequence[str], digits: int = 2, scale: float = 1.0) -> Column:
    """Return a column of differences beside their intervals; `names` are all three keys.

    A fourth key is that of the number of pairs, shown where it is not that of the seeds.
    """

    def text(row: Row) -> str:
        mean, low, high, *pairs = (row[name] for name in names)
        if mean is None:
            return "-"
        found = f"{scale * mean:+.{digits}f}"
        if low is not None:
            found += f" [{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"
        return found if pairs in ([], [row["seeds"]]) else f"{found} ({pairs[0]} pairs)"

    return Column(heading, show=text)


def _versus(heading: str, name: str, digits: int = 2) -> Column:
    return gap(heading, (name, f"{name}_low", f"{name}_high", f"{name}_pairs"), digits)


def _rounds(row: Row) -> str:
    """Return the rounds that a row took to its target, as text."""
    if row["target"] is None:
        return "-"
    if not row["reached"]:
        return "never" if row["seeds"] else "not run"
    missed = row["seeds"] - row["reached"]
    return f"{row['rounds_to_target']:.0f}" + (f" ({missed} never)" if missed else "")


def _reached(row: Row) -> str:
    return f"{row['rounds_to_target']:.0f} ({row['reached']})" if row["reached"] else "-"


def _server(row: Row) -> str:
    """Return what policy and aggregator hold together, in megabytes."""
    held = (row["selector_megabytes"], row["memory_megabytes"])
    return "-" if None in held else f"{sum(held):.1f}"


def _milliseconds(row: Row) -> str:
    """Return what selection and merge take together, in milliseconds a round."""
    parts = (row["select_ms"], row["merge_ms"])
    return "-" if None in parts else f"{sum(parts):.1f}"


def present(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Return the columns that say something about at least one row."""
    return [c for c in columns if any(c.text(row) not in ("-", "") for row in rows)]


def _percent(row: Row, form: str) -> str:
    return "" if row["target"] is None else form.format(100 * row["target"])


_SEEDS = Column("seeds", "seeds")
_DIFFERENCE = ("difference", "low", "high")
#: Columns of the experiment ``theory``.
THEORY = (
    Column("clients", "groups"),
    Column("eta", "step", "g"),
    Column("L", "smoothness", ".2f"),
    Column("M", "second_moment", ".2f"),
    Column("c, mean", "alignment", ".2f"),
    Column("c, worst round", "worst_alignment", ".2f"),
    Column("measured", "mean_square", ".3f", strong=True),
    Column("bound", "bound", ".3f"),
    Column("with start", "finite_bound", ".3f"),
)
_VARIANCE = (
    Column("policy", "policy"),
    Column("aggregator", "aggregator"),
    Column("unbiased", show=lambda row: "yes" if row["unbiased"] else "no"),
    Column("bias", "bias", ".3f"),
    Column("in standard errors", "errors", ".1f"),
    Column("variance / FedAvg's", "variance", ".3f"),
    Column("squared error / FedAvg's", "mean_square", ".3f"),
)
_STEP_ERROR = (
    Column("", show=lambda row: f"{row['dataset']}, K={row['clients']}"),
    Column("rounds", "rounds"),
    Column("draw", "draw"),
    Column("estimator", "estimator"),
    _SEEDS,
    Column("error", show=lambda row: _with_std(row, "error")),
    Column("lasting", show=lambda row: _with_std(row, "lasting")),
)
_LEAKAGE = (
    Column("", show=lambda row: f"{row['dataset']}, K={row['clients']}"),
    Column("features", "features"),
    _SEEDS,
    Column("labels explained", show=lambda row: _with_std(row, "explained")),
    Column("largest class found", show=lambda row: _with_std(row, "top")),
)
_PAIRED = (
    Column("", show=lambda row: f"{row['row']}: {row['method']}"),
    Column("minus", "against"),
    _SEEDS,
    _versus("last five, points", "last_five"),
    _versus("spread, points", "spread"),
    _versus("worst tenth, points", "worst_decile"),
    _versus("rounds to aim", "rounds_to_target", 0),
    _versus("MB to aim", "megabytes_to_target", 0),
)
#: Beside the paper's mean over clients: clients by their samples, and how far to the ceiling.
_WEIGHTED = Column("by samples, %", "weighted", ".2f")
_SHARE = gap("gap closed, %\n[95 %]", ("gap_share", "gap_low", "gap_high"), 0)
#: What a part gains, then what it costs; the third column is the difference to the baseline.
_LADDER = (
    _SEEDS,
    pair("last five, %", "last_five"),
    gap("minus {}\n[95 %]", _DIFFERENCE),
    _WEIGHTED,
    _SHARE,
    Column("spread", "spread", ".2f"),
    Column("swing", "swing", ".2f"),
    Column("worst tenth, %", "worst_decile", ".2f"),
    Column("rounds\nto aim", show=_rounds),
    Column("MB\nto aim", "megabytes_to_target", ".0f"),
    Column("extra MB", "extra_megabytes", "+.0f"),
    Column("simulated s\nto aim", "simulated_seconds_to_target", ".0f"),
    Column("simulated s", "simulated_seconds", ".0f"),
    Column("samples, M", "samples", ".2f"),
    Column("at equal samples, %", "at_equal_samples", ".2f"),
    Column("select, MB", "selector_megabytes", ".1f"),
    Column("merge, MB", "memory_megabytes", ".1f"),
    Column("server, ms", show=_milliseconds),
)
#: Columns of the summary of all tables.
SUMMARY_COLUMNS = (
    _SEEDS,
    pair("last five, %", "last_five"),
    gap("minus FedAvg [95 %]", _DIFFERENCE),
    _SHARE,
    Column("rounds to aim", show=_rounds),
    Column("server, MB", show=_server),
)


def _with_std(row: Row, name: str) -> str:
    std = row[f"{name}_std"]
    return f"{row[name]:.3g}" + ("" if std is None else f" ± {std:.2g}")


# -- tables ----------------------------------------------------------------------


def document_tables(results: Results, rows: Sequence[Row], paired: Sequence[Row]) -> dict[str, str]:
    """Return the Markdown tables of an experiment by the ending of their names."""
    if results.name == "step-error":
        return {"": Table(_STEP_ERROR, rows).markdown(left=4)}
    if results.name == "leakage":
        return {"": Table(_LEAKAGE, rows).markdown(left=2)}
    commands = dict.fromkeys(row["command"] for row in rows if row.get("seeds"))
    tail = "".join(f"\n`{command}`\n" for command in commands)
    if results.name == "theory":
        return {"": Table(THEORY, rows).markdown(left=1)}
    if results.name == "variance":
        return {"": Table(_VARIANCE, rows).markdown(left=3)}
    if results.name in LADDERS:
        name = Column("", show=lambda row: row["row"] + _percent(row, " ({:.0f} %)"))
        shown = [name, Column("", "column"), *present(_LADDER, rows)]
        ladder = Table(shown, rows).markdown()
        ladder = ladder.replace("minus {}", f"minus {results.baseline}", 1)
        found = {"": ladder + tail}
        return found | ({"-paired": Table(_PAIRED, paired).markdown()} if paired else {})
    if results.name == "map":
        return {"": regime_table(rows).markdown(left=1) + tail}
    if not results.baseline:
        return {}
    unit, _, digits = results.form
    columns = [Column("", "row"), Column("", "column"), _SEEDS]
    columns += [pair(f"last five, {unit}", "last_five", digits)]
    columns += [pair(f"final, {unit}", "final", digits)]
    if any(row["paper"] is not None for row in rows):
        columns.append(pair(f"paper, {unit}", "paper", digits, missing="-"))
    columns.append(gap(f"minus {results.baseline} [95 %]", _DIFFERENCE, digits))
    columns += present([_WEIGHTED, _SHARE] if results.accuracy else [], rows)
    target = max((row["target"] or 0.0 for row in rows), default=0.0)
    if target:
        columns.append(Column(f"rounds to {100 * target:.0f} %", show=_rounds))
    if results.accuracy:
        columns.append(Column("swing", "swing", ".2f"))
    if any(row["tv_mean"] is not None for row in rows):
        columns.append(Column("TV", "tv_mean", ".4f"))
    return {"": Table(columns, rows).markdown() + tail}


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
        shown = [column for column in _STEP_ERROR if column.heading != "rounds"]
        title = f"{results.heading}, late rounds; ± std"
        yield Table(shown, of_late, title).terminal(left=3)
        return
    if results.name == "leakage":
        yield Table(_LEAKAGE, rows, f"{results.heading}; ± std").terminal(left=2)
        return
    alive = dict.fromkeys(row["row"] for row in rows if row.get("seeds"))
    if results.name == "variance":
        yield from _variance_tables(rows, results.heading, width)
    elif results.name in LADDERS:
        named = {column.heading: column for column in _LADDER}
        seeds, late, difference, weighted, share, spread = _LADDER[:6]
        minus = Column(difference.heading.format(results.baseline), show=difference.show)
        wide = [minus, *present([weighted, share], rows)] if width >= _WIDE else []
        columns = [Column("part", "column"), seeds, late, *wide, spread]
        columns += [named["rounds\nto aim"], named["MB\nto aim"]]
        columns += present([named["simulated s\nto aim"]], rows)
        columns += [Column("server\nMB", show=_server)]
        for name in alive:
            parts = [row for row in rows if row["row"] == name and row["seeds"]]
            aim = _percent(parts[0], ", aim {:.0f} %")
            title = f"{results.heading}: {name}{aim}; ± 2 std"
            yield Table(columns, parts, title).terminal(tight=True, wrapped=(0,))
    elif results.name == "map":
        table = regime_table([row for row in rows if row["row"] in alive])
        yield table.terminal(tight=True, wrapped=range(len(table.columns)))
    elif results.baseline:
        unit, _, digits = results.form
        columns = [Column("row", "row"), Column("column", "column"), _SEEDS]
        columns += [pair(f"last five, {unit}", "last_five", digits)]
        columns += [pair("paper", "paper", digits, missing="-")]
        columns += [gap("difference [95 %]", _DIFFERENCE, digits)]
        columns += present([_WEIGHTED, _SHARE] if results.accuracy else [], rows)
        if any(row["reached"] is not None for row in rows):
            columns.append(Column("to target", show=_reached))
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
    gain = gap("gain [95 %]", ("gain", "gain_low", "gain_high"), digits, scale)
    columns = [
        Column("method", "method"),
        Column("picks,\nmerges", show=lambda row: f"{row['picks']},\n{row['merges']}"),
        pair(f"last five, {unit}", "last_five", digits, scale),
        Column(gain.heading, show=lambda row: "-" if row is rows[0] else gain.text(row)),
        Column("s", "seconds", ".1f"),
    ]
    if any(row["rounds_to_target"] is not None for row in rows):
        columns.insert(4, Column("rounds\nto target", show=_reached))
    if times := simulated_columns(rows, "to target\n", "in all"):  # one column: lines are short
        heading = "simulated\nseconds\n" + "".join(time.heading for time in times)
        join = "\n".join
        columns.insert(-1, Column(heading, show=lambda row: join(t.text(row) for t in times)))
    wrapped = range(1, len(columns))
    return Table(columns, rows, title).terminal(tight=bool(times), wrapped=wrapped)


def simulated_columns(rows: Sequence[Row], to_target: str, in_all: str) -> list[Column]:
    """Return the columns of simulated time under these headings; none without devices."""
    keys = {"simulated_seconds_to_target": to_target, "simulated_seconds": in_all}
    longest = max((row.get("simulated_seconds") or 0.0 for row in rows), default=0.0)
    form = ".0f" if longest >= 100 else ".1f"
    return [
        Column(heading, key, form)
        for key, heading in keys.items()
        if any(row.get(key) is not None for row in rows)
    ]


def run_table(history: History) -> TerminalTable:
    """Return the summary of one run."""
    from rich.table import Table as TerminalTable

    table = TerminalTable(show_header=False, box=None)
    for name, value in history.summary().items():
        if value is not None:
            table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table
