"""From folders to experiments: what was planned, and the runs that are there."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..history import History
from ..store import StoreError, read_history

PLAN = "experiment.json"
#: Experiments in the order of the paper.
ORDER = (
    "classification", "overview", "participation", "kernels", "regression", "ablations", "theory",
    "beyond", "holdout", "variance",
)  # fmt: skip


class ReportError(ValueError):
    """Runs that cannot be reported; the message names the folder and says why."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder: where it is, as shown on the page, and what it holds."""

    folder: Path
    label: str
    history: History

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.history.config.seed

    @property
    def finished(self) -> bool:
        """Whether all planned rounds are there."""
        return len(self.history) >= self.history.config.rounds


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table: the runs behind it and the paper's value, if it has one.

    `paper` is a mean and two standard deviations in units of the metric (accuracies in
    0..1); `planned` counts the runs that the cell asks for, `started` those left unfinished.
    """

    row: str
    column: str
    method: str
    paper: tuple[float, float | None] | None
    runs: tuple[Run, ...]
    started: tuple[Run, ...] = ()
    planned: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target: float | None = None

    @property
    def histories(self) -> list[History]:
        """The histories of the finished runs."""
        return [run.history for run in self.runs]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table of the report: its cells, how it was made, figures made with it.

    `baseline` names the column that others are compared with; empty: FedAvg, or the first.
    """

    name: str
    title: str
    quick: bool
    preset: str
    command: str
    metric: str
    cells: tuple[Cell, ...]
    figures: tuple[Path, ...] = ()
    baseline: str = ""
    target: float | None = None
    folder: Path | None = None

    @property
    def rows(self) -> dict[str, list[Cell]]:
        """Cells by row, both in the order of the plan."""
        rows: dict[str, list[Cell]] = {}
        for cell in self.cells:
            rows.setdefault(cell.row, []).append(cell)
        return rows

    @property
    def runs(self) -> list[Run]:
        """All runs, unfinished ones included, each once."""
        found = (run for cell in self.cells for run in (*cell.runs, *cell.started))
        return list({run.folder: run for run in found}.values())


def collect(places: Sequence[Path]) -> tuple[list[Experiment], list[Run]]:
    """Return the experiments at or below `places`, and the runs that belong to none.

    Raises
    ------
    ReportError
        If a place holds neither, or something damaged.
    """
    plans: dict[Path, Path] = {}
    runs: dict[Path, str] = {}
    for place in places:
        if not place.is_dir():
            raise ReportError(f"{place} is not a folder")
        found = 0
        for folder in _walk(place):
            found += 1
            if (folder / PLAN).is_file():
                plans.setdefault(folder.resolve(), folder)
            if _is_run(folder):
                runs.setdefault(folder.resolve(), _label(folder, place))
        if not found:
            raise ReportError(f"{place} holds no runs: no folder with rounds.jsonl, no {PLAN}")
    experiments = sorted(map(_read_plan, plans.values()), key=_order)
    claimed = {run.folder for experiment in experiments for run in experiment.runs}
    loose = [read_run(folder, label) for folder, label in runs.items() if folder not in claimed]
    # A run that an experiment is still busy with is no result of its own.
    busy = [run for run in loose if not run.finished and plans.keys() & {*run.folder.parents}]
    return experiments, [run for run in loose if run not in busy]


def read_run(folder: Path, label: str) -> Run:
    """Read one run folder; ReportError names it if it is damaged."""
    try:
        history = read_history(folder)
    except StoreError as error:
        raise ReportError(str(error)) from None
    for i, record in enumerate(history.rounds):
        if not isinstance(record, dict) or record.get("round") != i + 1:
            raise ReportError(
                f"{folder} holds a damaged run: line {i + 1} of rounds.jsonl is not round {i + 1}"
            )
    return Run(folder, label, history)


def _walk(place: Path) -> Iterator[Path]:
    """Yield folders that are runs or hold a plan; nothing lies below a run."""
    for folder, below, files in os.walk(place):
        below.sort()
        path = Path(folder)
        if _is_run(path):
            below.clear()
            yield path
        elif PLAN in files:
            yield path


def _is_run(folder: Path) -> bool:
    """Tell a run folder from others, whose settings may be in a file of the same name."""
    names = ("rounds.jsonl", "facts.json")
    return (folder / "config.json").is_file() and any((folder / n).is_file() for n in names)


def _label(folder: Path, place: Path) -> str:
    inner = folder.relative_to(place).as_posix()
    return folder.resolve().name if inner == "." else inner


def _read_plan(folder: Path) -> Experiment:
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        metric = plan["metric"]
        if metric not in ("accuracy", "mse"):
            raise ReportError(f"{path}: metric must be accuracy or mse, got {metric!r}")
        return Experiment(
            name=str(plan["experiment"]),
            title=str(plan["title"]).removesuffix(" (quick)"),  # the page has its own label
            quick=bool(plan["quick"]),
            preset=str(plan.get("preset", "")),
            command="\n".join(_commands(plan)),
            metric=metric,
            cells=tuple(_read_cell(cell, folder, metric) for cell in plan["cells"]),
            figures=tuple(folder / name for name in plan.get("figures", ())),
            baseline=str(plan.get("baseline") or ""),
            target=None if plan.get("target") is None else float(plan["target"]),
            folder=folder,
        )
    except ReportError:
        raise
    except KeyError as error:
        raise ReportError(f"{path} is damaged: {error} is missing") from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is damaged: {error}") from None


def _order(experiment: Experiment) -> tuple[bool, int]:
    """Sort as the paper does, shortened experiments last."""
    known = experiment.name in ORDER
    return experiment.quick, ORDER.index(experiment.name) if known else len(ORDER)


def _commands(plan: Mapping[str, Any]) -> list[str]:
    """Return the commands behind the cells that were run; they may be several."""
    own = [cell.get("command") for cell in plan["cells"] if cell["runs"]]
    found = list(dict.fromkeys(command for command in own if command))
    return found or [str(plan.get("command", ""))]


def _read_cell(cell: Mapping[str, Any], folder: Path, metric: str) -> Cell:
    runs: list[Run] = []
    started: list[Run] = []
    for name in cell["runs"]:
        place = (folder / name).resolve()
        if _is_run(place):
            run = read_run(place, str(name))
            (runs if run.finished else started).append(run)
    return Cell(
        row=str(cell["row"]),
        column=str(cell["column"]),
        method=str(cell["method"]),
        paper=_paper(cell.get("paper"), metric),
        runs=tuple(runs),
        started=tuple(started),
        planned=len(cell["runs"]),
        settings=cell.get("config") or {},
        target=None if cell.get("target") is None else float(cell["target"]),
    )


def _paper(value: Any, metric: str) -> tuple[float, float | None] | None:
    """Take the paper's number as printed: its accuracies are in percent."""
    if value is None:
        return None
    mean, two_std = value
    # An accuracy above 1 can only be a percentage; one below is taken as a share.
    scale = 100.0 if metric == "accuracy" and mean > 1 else 1.0
    return float(mean) / scale, None if two_std is None else float(two_std) / scale
