"""Results of an experiment in, rows of plain values out: one for each cell, or each pair."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from cvrcore.selectors import policy_class
from cvrcore.state import load_state

from ..store import read_json
from .results import CellResults, Results, Run, read_results
from .shares import costs, full_runs, plain_runs
from .statistics import comparable, difference, readers, spread, spreads
from .table import Row

#: Columns of the CSV files in documents.
CSV = (
    "row", "column", "method", "paper", "paper_2std", "seeds", "last_five", "last_five_2std",
    "final", "final_2std", "difference", "low", "high", "target", "rounds_to_target", "reached",
    "swing", "spread", "worst_decile", "consensus", "tv_mean", "megabytes", "megabytes_to_target",
    "seconds", "memory_megabytes", "select_ms", "merge_ms", "selector_megabytes", "weighted",
    "sent",
    "gap_share", "gap_low", "gap_high", "gap_pairs", "samples", "at_equal_samples",
    "extra_megabytes", "server_ms", "simulated_seconds_to_target", "simulated_seconds", "pairs",
    "last_five_first", "commit", "machine", "command",
)  # fmt: skip
#: Numbers that `versus` compares.
_COMPARED = ("last_five", "spread", "worst_decile", "rounds_to_target", "megabytes_to_target")
#: Files of experiments that keep no runs, and where their rows are.
_MEASURED = {
    "theory.json": "verdicts",
    "variance.json": "outcomes",
    "step-error.json": "outcomes",
    "leakage.json": "outcomes",
}


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of the experiment in `folder`, measured from its runs or read."""
    for name, key in _MEASURED.items():
        if (folder / name).exists():
            rows: list[Row] = read_json(folder / name)[key]
            return rows
    results = read_results(folder, complete=True)
    rows = measure(results)
    for row, cell in zip(rows, results.cells, strict=True):
        row["selector_megabytes"] = selector_megabytes(cell.runs)
    return [{name: row[name] for name in CSV} for row in rows]


def measure(results: Results, targets: Mapping[str, float | None] | None = None) -> list[Row]:
    """Return one row per cell, as plain values; a cell without runs holds None.

    Every number of `statistics.readers` is there as its mean over seeds and, under the name
    with ``_2std``, two standard deviations; accuracies are in percent. ``difference`` is the
    mean paired difference of ``last_five`` to the baseline of the row, ``low`` and ``high``
    its interval, ``pairs`` their number; ``final_difference`` and so on that of ``final``.
    ``last_five_first`` is that of the first seed alone.
    ``reached`` counts the seeds that met the target: the cell's own, or that of its row in
    `targets`. ``gap_share`` and what `shares.costs` returns with it compare the cell with FedAvg
    and with full participation; ``commit`` and ``machine`` say where its runs were made.
    """
    bases = {name: baseline_of(results, cells) for name, cells in results.rows.items()}
    plain = {n: plain_runs(cells, results.baseline) for n, cells in results.rows.items()}
    full = {name: full_runs(cells, results.folder) for name, cells in results.rows.items()}
    read, rows = readers(results.form[1]), []
    for cell in results.cells:
        base, target = bases[cell.row], (targets or {}).get(cell.row, cell.target)
        found = spreads(cell.by_seed.values(), results.form[1], target)
        row: Row = {"row": cell.row, "column": cell.column, "method": cell.method}
        row |= {"paper": cell.paper[0], "paper_2std": cell.paper[1], "target": target}
        row |= {"seeds": len(cell.runs), "planned": cell.planned, "command": cell.command}
        count = found["rounds_to_target"].n
        row["reached"] = count if target is not None and cell.runs else None
        row["reference"] = base.column
        for name, over_seeds in found.items():
            row |= {name: over_seeds.mean, f"{name}_2std": over_seeds.two_std}
        runs = cell.by_seed
        row["last_five_first"] = read["last_five"](runs[min(runs)]) if runs else None
        row |= costs(cell.by_seed, plain[cell.row], full[cell.row], results.form[1])
        row |= origins(cell.runs)
        for name, prefix in {"last_five": "", "final": "final_"}.items():
            gap = difference(cell.by_seed, {} if cell is base else base.by_seed, read[name])
            row |= {f"{prefix}difference": gap.mean, f"{prefix}pairs": gap.n}
            row |= {f"{prefix}low": gap.low, f"{prefix}high": gap.high}
        rows.append(row)
    return rows


def origins(runs: Sequence[Run]) -> Row:
    """Return the commits and kinds of machine of runs, each once; None where none is recorded."""
    found = [run.history.facts.get("origin") or {} for run in runs]
    names = ("commit", "machine")
    each = {name: dict.fromkeys(o[name] for o in found if name in o) for name in names}
    return {name: "; ".join(values) or None for name, values in each.items()}


def baseline_of(results: Results, cells: list[CellResults]) -> CellResults:
    """Return the cell that others of a row are compared with: named, FedAvg, or the first."""
    named = [cell for cell in cells if cell.column == results.baseline]
    return [*named, *(cell for cell in cells if cell.method == "fedavg"), *cells][0]


def versus(results: Results, method: str) -> list[Row]:
    """Return the differences of column `method` to each other column of its row.

    A row holds the ``seeds`` in common and, for each compared number, its mean difference,
    ``_low`` and ``_high``, over the ``_pairs`` of runs that both have it: a run that never
    reached the target has no rounds to it.
    """
    rows: list[Row] = []
    for own in (cell for cell in results.cells if cell.column == method):
        read = readers(results.form[1], own.target)
        for other in (cell for cell in results.rows[own.row] if cell is not own):
            seeds = len(comparable(own.by_seed, other.by_seed))
            row: Row = {"row": own.row, "method": method, "against": other.column, "seeds": seeds}
            for key in _COMPARED:
                gap = difference(own.by_seed, other.by_seed, read[key])
                row |= {key: gap.mean, f"{key}_low": gap.low, f"{key}_high": gap.high}
                row[f"{key}_pairs"] = gap.n
            rows += [row] if seeds else []
    return rows


def selector_megabytes(runs: Sequence[Run]) -> float | None:
    """Return the largest size of a policy, as the mean over runs that differ in their seed.

    Where no run recorded it (older runs did not), the policy in the last checkpoint of the
    first run is restored and measured: its size at the end, which is the largest unless its
    covariance has changed form. None without either.
    """
    recorded = spread(run.history.most("selector_bytes") or None for run in runs).mean
    for run in runs[:1] if recorded is None else ():
        path = run.folder / "checkpoint.npz"
        recorded = _restored(path, path.stat().st_mtime_ns) if path.exists() else None
    return None if recorded is None else recorded / 1e6


@functools.lru_cache
def _restored(path: Path, changed: int) -> int | None:
    """Return the bytes of a checkpoint's policy; the time `changed` is part of the cache key."""
    try:
        states = [state for state in load_state(path)["policy"].values() if state is not None]
        return sum(policy_class(s["policy"]).from_state_dict(s).nbytes for s in states)
    except (KeyError, MemoryError, OSError, ValueError):  # damaged, or of a policy not installed
        return None
