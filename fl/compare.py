"""Several methods over paired seeds: one table, one figure."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import RunConfig
from .history import History, Record
from .loop import run
from .store import write_json

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Histories of several methods, aligned by seed.

    Attributes
    ----------
    histories : dict
        For each method the histories of all seeds, in the same order.
    """

    histories: Mapping[str, Sequence[History]]

    def table(self) -> list[Row]:
        """Return one row per method, as plain values.

        ``final``, ``last_five`` and ``best`` are means over seeds, beside two standard
        deviations (``_2std``, None for a single seed). ``gain`` is the mean paired
        difference of ``last_five`` to the first method, ``gain_2se`` two standard errors
        of it. ``rounds_to_target`` is the mean over the ``reached`` seeds that got there.
        """
        baseline = next(iter(self.histories.values()))
        rows = []
        for method, histories in self.histories.items():
            summaries = [history.summary() for history in histories]
            row: Row = {"method": method, "metric": histories[0].metric, "seeds": len(histories)}
            for name in ("final", "last_five", "best", "worst_decile"):
                row |= _spread(name, [summary[name] for summary in summaries])
            pairs = zip(histories, baseline, strict=True)
            differences = [_difference(a.last_five(), b.last_five()) for a, b in pairs]
            row["gain"], spread = _mean(differences), _deviation(differences)
            row["gain_2se"] = None if spread is None else 2 * spread / math.sqrt(len(histories))
            reached = [s["rounds_to_target"] for s in summaries if s["rounds_to_target"]]
            row["reached"], row["rounds_to_target"] = len(reached), _mean(reached)
            row["megabytes"] = _mean([(s["uplink"] + s["downlink"]) / 1e6 for s in summaries])
            row["tv_mean"] = _mean([s["tv_mean"] for s in summaries if s["tv_mean"] is not None])
            row["seconds"] = _mean([s["seconds"] for s in summaries])
            rows.append(row)
        return rows

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the metric by round, mean and a band of two standard deviations."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        # No pyplot: a library leaves the caller's figures and backend alone.
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for method, histories in self.histories.items():
            rounds, values = _curves(histories)
            mean = values.mean(axis=0)
            spread = 2 * values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
            (line,) = axes.plot(rounds, mean, label=method, linewidth=1.5)
            ceiling = np.inf if histories[0].metric == "mse" else 1.0
            low, high = np.maximum(mean - spread, 0.0), np.minimum(mean + spread, ceiling)
            axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.15, lw=0)
        first = next(iter(self.histories.values()))[0]
        n_seeds = len(next(iter(self.histories.values())))
        axes.set_xlabel("round")
        axes.set_ylabel("test MSE" if first.metric == "mse" else "mean accuracy of clients")
        axes.set_title(f"{first.config.data.dataset}, {n_seeds} seeds, band of 2 std", fontsize=10)
        if first.metric == "accuracy":
            axes.set_ylim(top=1.0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, dpi=150)

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``table.csv``, ``table.json`` and ``curves.png``; return their paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        rows = self.table()
        with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        write_json(folder / "table.json", rows)
        self.figure(folder / "curves.png")
        return [folder / name for name in ("table.csv", "table.json", "curves.png")]


def compare(
    configs: Mapping[str, RunConfig],
    seeds: Sequence[int],
    folder: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[Record], None] = False,
) -> Comparison:
    """Run each config with each seed.

    Parameters
    ----------
    configs : dict
        Settings by the name that tables show; their seed is replaced.
    seeds : sequence of int
        Each gives all methods the same data, first model and batch orders.
    folder : path, optional
        One sub-folder per run. Runs found there are continued, or read if finished.
    progress : bool or callable
        As in `fl.run`.
    """
    if not configs or not seeds:
        raise ValueError("configs and seeds must not be empty")
    histories: dict[str, list[History]] = {name: [] for name in configs}
    for seed in seeds:
        for name, config in configs.items():
            place = None if folder is None else Path(folder) / f"{name}-seed{seed}"
            histories[name].append(
                run(config.replace(seed=seed), place, resume=True, progress=progress)
            )
    return Comparison(histories)


def _curves(histories: Sequence[History]) -> tuple[NDArray[Any], NDArray[Any]]:
    columns = [history.column(history.metric) for history in histories]
    rounds = columns[0][0]
    for other, _ in columns[1:]:  # a model that diverged has gaps
        rounds = np.intersect1d(rounds, other)
    return rounds, np.stack([values[np.isin(at, rounds)] for at, values in columns])


def _spread(name: str, values: Sequence[float | None]) -> Row:
    spread = _deviation(values)
    return {name: _mean(values), f"{name}_2std": None if spread is None else 2 * spread}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second
