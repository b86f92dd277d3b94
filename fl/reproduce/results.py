"""What the runs of an experiment say: means, spreads, paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..config import RunConfig
from ..history import History
from ..store import StoreError, read_history, read_json
from .footprint import selector_megabytes
from .manifest import NAME, essence

Row = dict[str, Any]


def read_experiment(folder: Path) -> dict[str, Any]:
    """Return ``experiment.json`` of a folder.

    Raises
    ------
    StoreError
        If the folder holds no experiment.
    """
    if not (folder / NAME).exists():
        raise StoreError(f"{folder} holds no experiment: {NAME} is missing")
    found: dict[str, Any] = read_json(folder / NAME)
    return found


def scale_of(experiment: Mapping[str, Any]) -> float:
    """Return what a metric is multiplied by: accuracies are told in percent."""
    return 100.0 if experiment["metric"] == "accuracy" else 1.0


def histories(folder: Path, cell: Mapping[str, Any]) -> dict[int, History]:
    """Return the complete runs of a cell by seed."""
    runs = [read_history(folder / run) for run in cell["runs"]]
    return {history.config.seed: history for history in runs}


def measure(folder: Path) -> list[Row]:
    """Return one row per cell of an experiment, as plain values.

    Accuracies are in percent. ``last_five`` is the mean over seeds of the mean of the last
    five evaluations, ``final`` that of the last one, both beside two standard deviations.
    ``difference`` is the mean paired difference of ``last_five`` to the baseline of the
    row, ``low`` and ``high`` its 95 % confidence interval (Student's t). ``rounds_to_target``
    is the mean over the ``reached`` seeds that got there. ``swing`` is the standard deviation
    of the last fifty evaluations of one run, averaged over seeds, ``spread`` that of the last
    ten. ``worst_decile`` is the mean of the tenth of clients that fare worst, over the last
    five evaluations. What a part costs the server is ``selector_megabytes`` that the policy
    holds and ``memory_megabytes`` that the aggregator remembers, both at most, ``select_ms``
    and ``merge_ms``, per round. A cell without runs holds None.
    """
    experiment = read_experiment(folder)
    scale = scale_of(experiment)
    loaded = [(cell, histories(folder, cell)) for cell in experiment["cells"]]
    bases = {cell["row"]: runs for cell, runs in loaded if cell["column"] == experiment["baseline"]}
    rows = []
    for cell, runs in loaded:
        paper = cell["paper"] or [None, None]
        row: Row = {
            "row": cell["row"],
            "column": cell["column"],
            "method": cell["method"],
            "paper": paper[0],
            "paper_2std": paper[1],
            "seeds": len(runs),
            **_spread("last_five", [scale * _value(h.last_five()) for h in runs.values()]),
            **_spread("final", [scale * _value(h.final()) for h in runs.values()]),
            **_paired(runs, bases.get(cell["row"], {}), scale),
            **_cost(list(runs.values()), cell.get("target"), scale),
            "selector_megabytes": selector_megabytes(
                zip((folder / run for run in cell["runs"]), runs.values(), strict=True)
            ),
            "command": cell.get("command", experiment["command"]),
        }
        rows.append(row)
    return rows


def _value(number: float | None) -> float:
    return math.nan if number is None else number


def _spread(name: str, values: Sequence[float]) -> Row:
    mean = float(np.mean(values)) if values else None
    spread = 2 * float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {name: mean, f"{name}_2std": spread}


def _paired(runs: Mapping[int, History], base: Mapping[int, History], scale: float) -> Row:
    """Return the paired difference to `base` with its interval; None where there is none."""
    empty: Row = {"difference": None, "low": None, "high": None}
    common = same_protocol(runs, base)
    if not common or runs == base:
        return empty
    gaps = scale * np.array(
        [_value(runs[s].last_five()) - _value(base[s].last_five()) for s in common]
    )
    low, high = interval(gaps)
    return {"difference": float(gaps.mean()), "low": low, "high": high}


def same_protocol(runs: Mapping[int, History], others: Mapping[int, History]) -> list[int]:
    """Return the seeds that two cells share, with runs that may be compared."""
    shared = sorted(runs.keys() & others.keys())
    return [s for s in shared if _protocol(runs[s].config) == _protocol(others[s].config)]


def _protocol(config: RunConfig) -> Row:
    """Return the settings that two runs must share to be compared."""
    values = essence(config)
    for own in ("method", "algorithm", "aggregator", "aggregator_options"):
        del values[own]
    return {**values, "selection": None}


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float | None, float | None]:
    """Return the confidence interval of a mean by Student's t; None for a single value.

    Examples
    --------
    >>> low, high = interval(np.array([1.0, 2.0, 3.0]))
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + level) / 2)) * error
    mean = float(np.mean(values))
    return mean - reach, mean + reach


def _cost(runs: Sequence[History], target: float | None, scale: float) -> Row:
    """Return rounds to the target, traffic, and what only some methods have."""
    rounds = [] if target is None else [h.rounds_to(target) for h in runs]
    reached = [number for number in rounds if number is not None]
    shared = [h.last_five("consensus_accuracy") for h in runs]
    drift = [h.summary()["tv_mean"] for h in runs]
    return {
        "target": target,
        "rounds_to_target": _mean(reached),
        "reached": len(reached) if target is not None and runs else None,
        "swing": _mean([deviation(h, 50, scale) for h in runs]),
        "spread": _mean([deviation(h, 10, scale) for h in runs]),
        "worst_decile": _mean([scale * _value(h.last_five("worst_decile")) for h in runs]),
        "consensus": _mean([scale * value for value in shared if value is not None]),
        "tv_mean": _mean([value for value in drift if value is not None]),
        "megabytes": _mean([(h.total("uplink") + h.total("downlink")) / 1e6 for h in runs]),
        "megabytes_to_target": _mean([megabytes(h, h.rounds_to(target)) for h in runs if target]),
        "seconds": _mean([h.seconds("round") for h in runs]),
        "memory_megabytes": _mean([_memory(h) for h in runs]),
        "select_ms": _mean([1e3 * h.seconds("select") / len(h) for h in runs]),
        # Runs older than that clock do not know it.
        "merge_ms": _mean([1e3 * h.seconds("merge") / len(h) for h in runs if h.seconds("merge")]),
    }


def deviation(history: History, count: int, scale: float) -> float | None:
    """Return the standard deviation of the last `count` evaluations; None for a single one."""
    tail = history.column(history.metric)[1][-count:]
    return scale * float(np.std(tail, ddof=1)) if len(tail) > 1 else None


def megabytes(history: History, rounds: int | None) -> float | None:
    """Return the traffic of the first `rounds` rounds; None if the target was not reached."""
    if rounds is None:
        return None
    first = history.rounds[:rounds]
    return sum(r.get("uplink", 0) + r.get("downlink", 0) for r in first) / 1e6


def _memory(history: History) -> float:
    """Return what the aggregator remembered at most."""
    return max((r.get("memory_bytes", 0) for r in history.rounds), default=0) / 1e6


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
