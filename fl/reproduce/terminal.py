"""What an experiment found, printed in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .ladder import LADDERS
from .results import Row
from .tables import difference, number, pair, results_table, rounds_to

#: Columns of text that a ladder takes with its paired differences.
_WIDE = 110
#: Those of a policy's name, and of an aggregator's numbers.
_POLICY, _AGGREGATOR = 28, 12


def print_experiment(experiment: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print the table that an experiment has, if any; into a file or pipe in full width.

    Parameters
    ----------
    experiment : mapping
        Its ``experiment.json``.
    rows : sequence of dict
        Of `fl.reproduce.results.measure`, or the pairs of `fl.reproduce.variance`.
    """
    console = Console()
    console = Console(width=console.width if console.is_terminal else 140)
    title, baseline = experiment["title"], experiment["baseline"]
    if experiment["experiment"] in LADDERS:
        for table in ladder_results(rows, title, baseline, console.width):
            console.print(table)
    elif experiment["experiment"] == "variance":
        for table in variance_results(rows, title, console.width):
            console.print(table)
    elif baseline:
        title = f"{title}; ± 2 std, paired with {baseline}"
        console.print(results_table(rows, title, experiment["metric"]))


def ladder_results(
    rows: Sequence[Row], title: str, baseline: str, width: int = _WIDE
) -> Iterator[Table]:
    """Yield a table for each data set: what each part that was run gains, and what it costs.

    Paired differences are there where `width` has room for them.
    """
    wide = width >= _WIDE
    for name in dict.fromkeys(row["row"] for row in rows if row["seeds"]):
        parts = [row for row in rows if row["row"] == name and row["seeds"]]
        target = parts[0]["target"]
        aim = "" if target is None else f", aim {100 * target:.0f} %"
        table = _table(f"{title}: {name}{aim}; ± 2 std")
        table.add_column("part")
        headings = ["seeds", "last five, %", *[f"minus {baseline}\n[95 %]"] * wide, "spread"]
        for heading in (*headings, "rounds\nto aim", "MB\nto aim", "server\nMB"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in parts:
            cells = [str(row["seeds"]), pair(row["last_five"], row["last_five_2std"])]
            cells += [difference(row)] * wide
            cells += [number(row["spread"], 2), rounds_to(row)]
            cells += [number(row["megabytes_to_target"], 0), number(_server(row), 1)]
            table.add_row(row["column"], *cells)
        yield table


def _server(row: Row) -> float | None:
    """Return what policy and aggregator hold together; None where one is not known."""
    held = [row["selector_megabytes"], row["memory_megabytes"]]
    return None if None in held else sum(held)


def variance_results(rows: Sequence[Row], title: str, width: int = _WIDE) -> Iterator[Table]:
    """Yield variances relative to FedAvg's, policies by aggregators, biased ones in brackets.

    One table, or as many as it takes for `width`.
    """
    title = f"{title}:\nvariance / FedAvg's, in brackets where the mean is biased"
    aggregators = list(dict.fromkeys(row["aggregator"] for row in rows))
    n_tables = math.ceil(len(aggregators) / max((width - _POLICY) // _AGGREGATOR, 1))
    for i, some in enumerate(np.array_split(aggregators, n_tables)):
        table = _table("" if i else title)
        table.add_column("policy", no_wrap=True)
        for aggregator in some:
            heading = str(aggregator).replace(" ", "\n").replace("-", "-\n")
            table.add_column(heading, justify="right", no_wrap=True)
        for policy in dict.fromkeys(row["policy"] for row in rows):
            found = {row["aggregator"]: row for row in rows if row["policy"] == policy}
            table.add_row(policy, *[_variance(found.get(name)) for name in some])
        yield table


def _variance(row: Row | None) -> str:
    if row is None:
        return "-"
    text = f"{row['variance']:.3f}"
    return f"{text} " if row["unbiased"] else f"({text})"


def _table(title: str) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
