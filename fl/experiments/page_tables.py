"""Results and their rows in, tables of the page out: numbers, and where they come from."""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cvrcore

from ..store import StoreError, read_json
from .columns import THEORY, present, simulated_columns
from .definition import slug
from .manifest import deciding, flatten
from .measures import baseline_of, measure
from .results import CellResults, ReportError, Results, Run
from .statistics import default_target
from .table import Column, Row, Table

NOT_RUN = "not run"
#: Columns that are there where runs with full participation are.
_SHARES = (
    Column("gap closed, %", "gap_share", ".0f", "gap_closed_percent"),
    Column("95 % from", "gap_low", ".0f", "gap_closed_low_percent"),
    Column("to", "gap_high", ".0f", "gap_closed_high_percent"),
)
#: Columns that are there where runs recorded them.
_COSTS = (
    Column("by samples, %", "weighted", ".2f", "weighted_percent"),
    Column("samples, M", "samples", ".2f", "samples_millions"),
    Column("at equal samples, %", "at_equal_samples", ".2f", "at_equal_samples_percent"),
    Column("MB more than FedAvg", "extra_megabytes", ".1f"),
    Column("server, ms a round", "server_ms", ".1f"),
)


@functools.cache
def words() -> dict[str, dict[str, str]]:
    """Return the labels and captions of the page by section and name."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def caption(name: str, **values: Any) -> str:
    """Return the caption of a table or figure, filled in."""
    return words()["captions"][name].format(**values)


def file_stem(results: Results, kind: str, row: str | None = None) -> str:
    """Return the name of a file of an experiment, or of one of its rows; quick ones say so."""
    words = [results.name, *["quick"] * results.quick]
    if row is not None:
        names = list(results.rows)
        place = names.index(row)
        words.append(row)
        if slug(row) in map(slug, names[:place]):  # rows that differ in signs only
            words.append(str(place + 1))
    return slug(*words, kind)


def target_of(results: Results, cells: list[CellResults]) -> tuple[float | None, str]:
    """Return the target of a row and where it comes from."""
    own = {cell.target for cell in cells if cell.target is not None}
    if len(own) == 1:
        return own.pop(), "set by the experiment"
    runs = [run.history for cell in cells for run in cell.runs]
    named = {run.config.target for run in runs}
    for target in (results.target, named.pop() if len(named) == 1 else None):
        # One experiment may hold data sets of which only some can come near its target.
        if target is not None and any(run.rounds_to(target) for run in runs):
            return target, "set by the experiment"
    level = default_target(baseline_of(results, cells).by_seed.values(), results.metric)
    level = default_target(runs, results.metric) if level is None else level
    return level, "a level that the reference reached"


def page_rows(results: Results) -> list[Row]:
    """Return the rows of `measure`, with the words and sums that only a page shows."""
    targets = {name: target_of(results, cells)[0] for name, cells in results.rows.items()}
    rows = measure(results, targets)
    for row in rows:
        done, planned, low = row["seeds"], row["planned"], row["low"]
        row["done"] = done if done == planned else f"{done} of {planned}"
        if row["last_five"] is not None and row["paper"] is not None:
            row["gap"] = row["last_five"] - row["paper"]
        if row["reached"] is not None:
            row["level"] = results.form[1] * row["target"]
            row["met"] = f"{row['reached']} of {done}"
        if row["difference"] is not None:  # what the interval says, in words
            decided = low is not None and low * row["high"] > 0
            sign = "higher" if row["difference"] > 0 else "lower"
            row["verdict"] = "no interval" if low is None else sign if decided else "open"
    return rows


def page_tables(results: Results, rows: Sequence[Row]) -> list[Table]:
    """Return the tables of an experiment: results, differences, progress, Theorem 1."""
    alive = {row["row"] for row in rows if row["seeds"]}  # only the first table has the others
    begun = [row for row in rows if row["row"] in alive]
    others = [row for row in begun if row["column"] != row["reference"]]
    origins = (target_of(results, results.rows[name])[1] for name in results.rows if name in alive)
    what = (
        "Accuracy, the mean over clients on their own test samples"
        if results.accuracy
        else "Test MSE, the mean over clients; lower is better"
    )
    text = {"what": what, "origin": " or ".join(dict.fromkeys(origins))}
    tables = [
        make_table(results, "results", "Results", _results(results), rows, **text),
        make_table(
            results, "differences", "Paired differences", _differences(results, others), others
        ),
        make_table(
            results, "progress", "Progress and cost", _progress(results, begun), begun, **text
        ),
        _theory(results),
    ]
    return [table for table in tables if table and table.rows]


def make_table(
    results: Results, kind: str, title: str, columns: Sequence[Column], rows: Sequence[Row],
    **text: object,
) -> Table:  # fmt: skip
    """Return a table of an experiment with its caption and the name of its files."""
    title, name = f"{results.title}: {title}", file_stem(results, kind)
    return Table(columns, rows, title, caption(kind, **text), name, results.quick)


def _places(results: Results) -> list[Column]:
    """Return the first two columns, which name the row and the method of a cell."""
    named = any(slug(cell.column).startswith(slug(cell.method)) for cell in results.cells)
    row = "data" if results.accuracy else "setting"
    return [Column(row, "row"), Column("method" if named else "variant", "column")]


def _results(results: Results) -> list[Column]:
    """Return the columns of every cell's value beside the paper's."""
    end, (unit, _, digits) = "_percent" * results.accuracy, results.form
    form = f".{digits}f"
    columns = [
        *_places(results),
        Column(f"last five, {unit}", "last_five", form, f"last_five{end}", True, NOT_RUN),
        Column("± 2 std", "last_five_2std", form, f"last_five_2std{end}"),
        Column(f"paper, {unit}", "paper", form, f"paper{end}"),
        Column("± 2 std", "paper_2std", form, f"paper_2std{end}"),
        Column("last five − paper", "gap", f"+{form}", f"gap{end}"),
        Column(f"final, {unit}", "final", form, f"final{end}", absent=NOT_RUN),
        Column("± 2 std", "final_2std", form, f"final_2std{end}"),
        Column("seeds", "done", ".0f", "seeds"),
    ]
    with_paper = any(cell.paper[0] is not None for cell in results.cells)
    return columns if with_paper else [*columns[:4], *columns[7:]]


def _differences(results: Results, rows: Sequence[Row]) -> list[Column]:
    """Return the columns of each method against the reference of its row, paired by seed."""
    end, (unit, _, digits) = "_points" * results.accuracy, results.form
    form, points = f"+.{digits}f", "points" if results.accuracy else unit
    return [
        *_places(results),
        Column("against", "reference"),
        Column("pairs", "pairs", ".0f"),
        Column(f"last five, {points}", "difference", form, f"last_five{end}", True, NOT_RUN),
        Column("95 % from", "low", form, f"last_five_low{end}"),
        Column("to", "high", form, f"last_five_high{end}"),
        Column(f"final, {points}", "final_difference", form, f"final{end}", absent=NOT_RUN),
        Column("95 % from", "final_low", form, f"final_low{end}"),
        Column("to", "final_high", form, f"final_high{end}"),
        Column("verdict", "verdict", absent=NOT_RUN),
        *present(_SHARES, rows),
    ]


def _progress(results: Results, rows: Sequence[Row]) -> list[Column]:
    """Return the columns of a method's course: best, worst tenth, cost of a target."""
    end, (unit, _, digits) = "_percent" * results.accuracy, results.form
    form, level = f".{digits}f", ".0f" if results.accuracy else f".{digits}f"
    fine = ".1f" if any((row["megabytes"] or 0.0) >= 10 for row in rows) else ".3f"
    return [
        *_places(results),
        Column(f"best, {unit}", "best", form, f"best{end}", absent=NOT_RUN),
        Column(f"worst tenth, {unit}", "final_worst_decile", form, f"worst_decile{end}"),
        Column("target", "level", level, f"target{end}"),
        Column("reached", "met", name="reached"),
        Column("rounds to it", "rounds_to_target", ".1f"),
        Column("MB to it", "megabytes_to_target", fine),
        Column("MB in all", "megabytes", fine),
        *simulated_columns(rows, "simulated s to it", "simulated s in all"),
        *present(_COSTS, rows),
    ]


def _theory(results: Results) -> Table | None:
    """Return the measured side of Theorem 1 beside its bound, if the folder holds it."""
    path = results.folder and results.folder / "theory.json"
    if not path or not path.is_file():
        return None
    try:
        found = read_json(path)
        text = {name: found["asked"][name] for name in ("rounds", "seeds")}
        rows = [dict(verdict) for verdict in found["verdicts"]]
    except (StoreError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is damaged: {error!r}") from None
    return make_table(results, "bound", "Measured and bound", THEORY, rows, **text)


# -- where the numbers come from --------------------------------------------------


def settings_table(results: Results) -> Table:
    """Return settings that all runs share, then those that tell methods apart."""
    per_cell: dict[str, Row] = {}
    for cell in results.cells:
        found = deciding(cell.found[0].history.config if cell.found else cell.settings)
        found.pop("target", None)
        if found:
            per_cell[f"{cell.row}: {cell.column}"] = found
    keys = dict.fromkeys(key for found in per_cell.values() for key in found)
    first = next(iter(per_cell.values()), {})
    same = {k for k in keys if all(f.get(k) == first.get(k) for f in per_cell.values())}
    rows = [
        {"scope": scope, "setting": key, "value": as_text(found.get(key))}
        for scope, found in {"all runs": first, **per_cell}.items()
        for key in keys
        if (key in same) == (scope == "all runs") and (key in found or key in same)
    ]
    columns = [Column("runs", "scope"), Column("setting", "setting"), Column("value", "value")]
    return make_table(results, "settings", "Settings", columns, rows)


def runs_table(results: Results) -> Table:
    """Return one line per run: its folder, seed, rounds and seconds."""
    rows: list[Row] = []
    for cell in results.cells:
        for run in cell.found:
            done, planned = len(run.history), run.history.config.rounds
            row: Row = {"cell": f"{cell.row}: {cell.column}", "run": run.label, "seed": run.seed}
            row["rounds"] = done if run.finished else f"{done} of {planned}"
            row["seconds"] = run.history.seconds("round")
            row["seconds_selecting"] = run.history.seconds("select")
            rows.append(row)
    columns = [
        Column("cell", "cell"),
        Column("folder", "run"),
        Column("seed", "seed", ".0f"),
        Column("rounds", "rounds", ".0f"),
        Column("seconds", "seconds", ".1f"),
        Column("selecting, s", "seconds_selecting", ".2f"),
    ]
    return make_table(results, "runs", "Runs", columns, rows)


def decisions(run: Run) -> list[tuple[str, str]]:
    """Return what was decided for a run where the paper is silent: name and value."""
    facts, record = run.history.facts, words()["record"]
    found = [
        (record.get(key, key.replace("_", " ").replace(".", ", ")), as_text(value))
        for key, value in flatten(facts.get("data") or {}).items()
    ]
    if "model" in facts:
        found.append(("Model", f"{facts['model']}, {facts.get('n_parameters', 0):,} parameters"))
    if facts.get("n_features"):
        found.append(("Coordinates watched by the selection", as_text(facts["n_features"])))
    flat = flatten(run.history.config.to_dict())
    choices = words()["choices"].items()
    found += [(label, as_text(flat[key])) for key, label in choices if flat.get(key) is not None]
    return list(dict.fromkeys(found))


def versions() -> list[tuple[str, str]]:
    """Return the versions that made the page."""
    import matplotlib

    pairs = [line.partition(" ") for line in cvrcore.show_config().splitlines()]
    found = [(name, value) for name, space, value in pairs if space]
    return [*found, ("matplotlib", matplotlib.__version__)]


def as_text(value: Any, most: int = 12) -> str:
    """Return a setting as text; lists of more than `most` entries are cut."""
    if value is None or value == [] or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(map(str, value[:most]))
        return shown if len(value) <= most else f"{shown}, … ({len(value)} in all)"
    return value if isinstance(value, str) else json.dumps(value)
