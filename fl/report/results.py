"""The tables of an experiment: results beside the paper's, differences, progress."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..history import History
from .collect import Cell, Experiment
from .statistics import Difference, default_target, paired_difference, reach, spread
from .tables import Column, Table

NOT_RUN = "not run"
REFERENCE = "fedavg"


def slug(*words: str) -> str:
    """Return words as a file name."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-") or "untitled"


def file_stem(experiment: Experiment, kind: str, row: str | None = None) -> str:
    """Return the name of a file of an experiment, or of one of its rows; quick ones say so."""
    words = [experiment.name, *(["quick"] if experiment.quick else [])]
    if row is not None:
        names = list(experiment.rows)
        place = names.index(row)
        words.append(row)
        if slug(row) in map(slug, names[:place]):  # rows that differ in signs only
            words.append(str(place + 1))
    return slug(*words, kind)


def unit(experiment: Experiment) -> tuple[str, float, int]:
    """Return the unit of the metric, the factor to it and its decimals."""
    return ("%", 100.0, 2) if experiment.metric == "accuracy" else ("MSE", 1.0, 4)


def baseline_of(experiment: Experiment, cells: Sequence[Cell]) -> Cell:
    """Return the cell that others of a row are compared with."""
    named = [cell for cell in cells if cell.column == experiment.baseline]
    usual = [cell for cell in cells if cell.method == REFERENCE]
    return [*named, *usual, *cells][0]


def target_of(experiment: Experiment, cells: Sequence[Cell]) -> tuple[float | None, str]:
    """Return the target of a row and where it comes from."""
    own = {cell.target for cell in cells if cell.target is not None}
    if len(own) == 1:
        return own.pop(), "set by the experiment"
    histories = [history for cell in cells for history in cell.histories]
    named = {history.config.target for history in histories}
    for target in (experiment.target, named.pop() if len(named) == 1 else None):
        # One experiment may hold data sets of which only some can come near its target.
        if target is not None and reach(histories, target).reached:
            return target, "set by the experiment"
    level = default_target(baseline_of(experiment, cells).histories, experiment.metric)
    if level is None:
        level = default_target(histories, experiment.metric)
    return level, "a level that the reference reached"


def results_table(experiment: Experiment) -> Table:
    """Return every cell's value beside the paper's."""
    symbol, scale, digits = unit(experiment)
    suffix = "_percent" if experiment.metric == "accuracy" else ""
    rows = []
    for cell in experiment.cells:
        late = spread([history.last_five() for history in cell.histories])
        final = spread([history.final() for history in cell.histories])
        paper, paper_std = cell.paper or (None, None)
        row: dict[str, Any] = {
            "row": cell.row,
            "column": cell.column,
            f"last_five{suffix}": NOT_RUN if late.mean is None else late.mean,
            f"last_five_2std{suffix}": late.two_std,
            f"final{suffix}": NOT_RUN if final.mean is None else final.mean,
            f"final_2std{suffix}": final.two_std,
            "seeds": _seeds(cell),
            f"paper{suffix}": paper,
            f"paper_2std{suffix}": paper_std,
        }
        if late.mean is not None and paper is not None:
            row[f"gap{suffix}"] = late.mean - paper
        rows.append(row)
    columns = [
        Column("row", _row_heading(experiment)),
        Column("column", _column_heading(experiment)),
        Column(f"last_five{suffix}", f"last five, {symbol}", digits, scale, strong=True),
        Column(f"last_five_2std{suffix}", "± 2 std", digits, scale),
        Column(f"paper{suffix}", f"paper, {symbol}", digits, scale),
        Column(f"paper_2std{suffix}", "± 2 std", digits, scale),
        Column(f"gap{suffix}", "last five − paper", digits, scale, sign=True),
        Column(f"final{suffix}", f"final, {symbol}", digits, scale),
        Column(f"final_2std{suffix}", "± 2 std", digits, scale),
        Column("seeds", "seeds", 0),
    ]
    if not any(cell.paper for cell in experiment.cells):
        columns = [*columns[:4], *columns[7:]]
    what = (
        "Accuracy, the mean over clients on their own test samples"
        if experiment.metric == "accuracy"
        else "Test MSE, the mean over clients; lower is better"
    )
    caption = (
        f"{what}: over the last five evaluations, and after the last round. Mean and two standard "
        "deviations over seeds."
    )
    return _table(experiment, "results", "Results", caption, columns, rows)


def differences_table(experiment: Experiment) -> Table:
    """Return each method against the reference of its row, paired by seed."""
    symbol, scale, digits = unit(experiment)
    suffix = "_points" if experiment.metric == "accuracy" else ""
    rows = []
    for name, cells in _begun(experiment).items():
        reference = baseline_of(experiment, cells)
        for cell in cells:
            if cell is reference:
                continue
            final = difference(cell, reference, "final")
            late = difference(cell, reference, "last_five")
            row: dict[str, Any] = {
                "row": name,
                "column": cell.column,
                "reference": reference.column,
                "pairs": late.n,
                "verdict": verdict(late),
            }
            for key, gap in {"final": final, "last_five": late}.items():
                row[f"{key}{suffix}"] = NOT_RUN if gap.mean is None else gap.mean
                row[f"{key}_low{suffix}"], row[f"{key}_high{suffix}"] = gap.low, gap.high
            rows.append(row)
    points = "points" if symbol == "%" else symbol
    columns = [
        Column("row", _row_heading(experiment)),
        Column("column", _column_heading(experiment)),
        Column("reference", "against"),
        Column("pairs", "pairs", 0),
        Column(f"last_five{suffix}", f"last five, {points}", digits, scale, True, True),
        Column(f"last_five_low{suffix}", "95 % from", digits, scale, True),
        Column(f"last_five_high{suffix}", "to", digits, scale, True),
        Column(f"final{suffix}", f"final, {points}", digits, scale, True),
        Column(f"final_low{suffix}", "95 % from", digits, scale, True),
        Column(f"final_high{suffix}", "to", digits, scale, True),
        Column("verdict", "verdict"),
    ]
    caption = (
        "Mean of the differences over seeds that both have run, and Student's 95 % interval "
        "of it; not corrected for the number of comparisons. Verdict on the last five; open: its "
        "interval holds 0, the two cannot be told apart. With one or two pairs no interval can "
        "be given."
    )
    return _table(experiment, "differences", "Paired differences", caption, columns, rows)


def progress_table(experiment: Experiment) -> Table:
    """Return how each method got there: last five, best, worst tenth, cost of a target."""
    symbol, scale, digits = unit(experiment)
    suffix = "_percent" if experiment.metric == "accuracy" else ""
    rows = []
    for name, cells in _begun(experiment).items():
        target, _ = target_of(experiment, cells)
        for cell in cells:
            histories = cell.histories
            best = spread([h.best() for h in histories])
            row: dict[str, Any] = {
                "row": name,
                "column": cell.column,
                f"best{suffix}": best.mean if histories else NOT_RUN,
                f"worst_decile{suffix}": spread([h.final("worst_decile") for h in histories]).mean,
                "megabytes": spread([_megabytes(h) for h in histories]).mean,
            }
            if histories and target is not None:
                cost = reach(histories, target)
                row |= {
                    f"target{suffix}": target,
                    "reached": f"{cost.reached} of {cost.n}",
                    "rounds_to_target": cost.rounds,
                    "megabytes_to_target": cost.megabytes,
                }
            rows.append(row)
    fine = 1 if any((row["megabytes"] or 0.0) >= 10 for row in rows) else 3
    columns = [
        Column("row", _row_heading(experiment)),
        Column("column", _column_heading(experiment)),
        Column(f"best{suffix}", f"best, {symbol}", digits, scale),
        Column(f"worst_decile{suffix}", f"worst tenth, {symbol}", digits, scale),
        Column(f"target{suffix}", "target", 0 if symbol == "%" else digits, scale),
        Column("reached", "reached"),
        Column("rounds_to_target", "rounds to it", 1),
        Column("megabytes_to_target", "MB to it", fine),
        Column("megabytes", "MB in all", fine),
    ]
    origins = {target_of(experiment, cells)[1] for cells in _begun(experiment).values()}
    caption = (
        "Means over seeds. Best: the best evaluation of a run. Worst tenth: the mean over the "
        "worst tenth of the clients, at the end. Rounds and megabytes (both ways) until the "
        f"target was first met, over the seeds that met it; the target is {' or '.join(origins)}."
    )
    return _table(experiment, "progress", "Progress and cost", caption, columns, rows)


def difference(cell: Cell, reference: Cell, what: str) -> Difference:
    """Return the paired difference of ``"final"`` or ``"last_five"``."""

    def values(of: Cell) -> dict[int, float | None]:
        return {run.seed: _value(run.history, what) for run in of.runs}

    return paired_difference(values(cell), values(reference))


def verdict(gap: Difference) -> str:
    """Return in words what an interval says."""
    if gap.mean is None:
        return NOT_RUN
    if gap.low is None:
        return "no interval"
    if not gap.decided:
        return "open"
    return "higher" if gap.mean > 0 else "lower"


def _begun(experiment: Experiment) -> dict[str, list[Cell]]:
    """Return the rows with a finished run; the table of results has the others too."""
    return {name: cells for name, cells in experiment.rows.items() if any(c.runs for c in cells)}


def _value(history: History, what: str) -> float | None:
    return history.final() if what == "final" else history.last_five()


def _megabytes(history: History) -> float:
    return (history.total("uplink") + history.total("downlink")) / 1e6


def _seeds(cell: Cell) -> int | str:
    """Return how many seeds are done; of how many, if some are not."""
    done = len(cell.runs)
    return done if done == cell.planned else f"{done} of {cell.planned}"


def _row_heading(experiment: Experiment) -> str:
    return "data" if experiment.metric == "accuracy" else "setting"


def _column_heading(experiment: Experiment) -> str:
    named = any(slug(cell.column).startswith(slug(cell.method)) for cell in experiment.cells)
    return "method" if named else "variant"


def _table(
    experiment: Experiment,
    kind: str,
    title: str,
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[dict[str, Any]],
) -> Table:
    name = file_stem(experiment, kind)
    return Table(name, f"{experiment.title}: {title}", caption, columns, rows, experiment.quick)
