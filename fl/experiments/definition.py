"""A request in, the cells of a table out: settings, seeds and the paper's numbers."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig
from ..presets import METHODS, make_config
from ..settings import at_least, build, look_up
from ..store import read_json
from .paper import PaperTable, Value

#: Settings of ``--quick``: enough rounds to see every step, too few to compare.
QUICK_ROUNDS, QUICK_WARMUP, QUICK_SEEDS = 30, 10, 2
#: Data set of a table when the request names none.
DATASET = "mnist"
#: Accuracy whose first round is reported, by data set.
TARGETS = {"mnist": 0.85}
#: The column of FedAvg with full participation, the ceiling of its row.
FULL = "full"


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asked for; None leaves the choice to the experiment.

    `workers` counts the processes that train clients. `methods` narrows the methods that
    are run, not the methods that the table shows; so do `rows` and `columns`, patterns such as
    ``"K=1000*"`` of the names that the table shows, or of these names as folders, ``"k-1000*"``.

    Examples
    --------
    >>> from fl.experiments import Request
    >>> Request(quick=True, seeds=3, dataset="digits").seeds
    3
    """

    preset: str = "paper"
    seeds: int | None = None
    rounds: int | None = None
    quick: bool = False
    dataset: str | None = None
    methods: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    data_dir: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds", "workers"):
            if (value := getattr(self, name)) is not None:
                at_least(value, name, 1)
        for method in self.methods:
            look_up(method, {**METHODS, FULL: None}, "method", "cvrcore methods")

    @classmethod
    def of(cls, file: Mapping[str, Any], given: Mapping[str, Any]) -> Request:
        """Return the request of a settings file; arguments that were given win."""
        built: Request = build(cls, {**file, **given})
        return built

    def n_seeds(self, usual: int, quick: int = QUICK_SEEDS) -> int:
        """Return the number of seeds of each cell."""
        return self.seeds or (quick if self.quick else usual)

    def config(self, dataset: str, method: str, **changes: Any) -> RunConfig:
        """Return the paper's settings of one method, as this request changes them."""
        config = make_config(dataset, method, self.preset, **changes)
        rounds = self.rounds or (min(QUICK_ROUNDS, config.rounds) if self.quick else config.rounds)
        config = config.replace(rounds=rounds, data__data_dir=self.data_dir)
        if self.workers:
            config = config.replace(engine__workers=self.workers)
        if self.quick and config.selection.policy == "fedcvr-bolt":
            warmup = min(QUICK_WARMUP, rounds // 3)
            config = config.replace(selection__options__warmup=warmup)
        return config

    def part(
        self,
        dataset: str,
        method: str,
        n_clients: int,
        n_select: int = 10,
        step: int = 1,
        rounds: int | None = None,
    ) -> RunConfig:
        """Return the settings of one method with so many clients, picked clients and server step.

        `rounds` are those of the experiment, where they are not the preset's.
        """
        made = self.config(dataset, method, data__n_clients=n_clients, selection__n_select=n_select)
        if rounds is not None and not (self.rounds or self.quick):
            made = made.replace(rounds=rounds)
        return made if step == 1 else made.replace(server__lr=float(step))

    def chosen(self, methods: Collection[str], experiment: str) -> set[str]:
        """Return which of an experiment's methods to run: all, or the requested ones."""
        unknown = [name for name in self.methods if name not in methods]
        if unknown:
            known = ", ".join(methods)
            raise ConfigError(f"{experiment} has the methods {known}; got {unknown[0]!r}")
        return set(self.methods) or set(methods)

    def command(self, name: str) -> str:
        """Return the command line of this request, without folders and workers."""
        words = ["cvrcore", "reproduce", name, *["--quick"] * self.quick, "--preset", self.preset]
        for option in ("dataset", "seeds", "rounds"):
            if (value := getattr(self, option)) is not None:
                words += [f"--{option}", str(value)]
        if self.methods:
            words += ["--methods", ",".join(self.methods)]
        for option in ("rows", "columns"):
            for pattern in getattr(self, option):
                words += [f"--{option}", pattern]
        return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The definition of one number of a table, at `row` and `column`.

    The seed of `config` is replaced. `paper` is the mean and two standard deviations that
    the paper prints there: percent, or mean squared error. `home` is the
    ``experiment/row/column`` whose runs the cell shares; empty: own runs. A cell that is not
    `wanted` is shown but not run. `aim` is the metric whose first round is reported, by
    default the data set's. `seeds` is the number of seeds if it is not the experiment's.
    """

    row: str
    column: str
    config: RunConfig
    paper: Value | None = None
    home: str = ""
    wanted: bool = True
    aim: float | None = None
    seeds: int | None = None

    @property
    def target(self) -> float | None:
        """Return the metric whose first round is reported, if there is one."""
        return TARGETS.get(self.config.data.dataset) if self.aim is None else self.aim

    def place(self, experiment: str, suffix: str) -> Path:
        """Return the folder of its runs, relative to the folder of all experiments."""
        names = self.home.split("/") if self.home else [experiment, self.row, self.column]
        return Path(names[0] + suffix, *map(slug, names[1:]))


#: Folder of an experiment and request in; figures are drawn, their file names come out.
DrawFigures = Callable[[Path, Request], list[str]]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The definition of a table.

    `seeds` counts the seeds of every wanted cell, from `first_seed` on; `baseline` is the
    column that other columns of a row are paired with; `draw` makes the figures, by default
    the metric by round. `preset` is the one that the table has whatever was requested.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: int
    baseline: str = ""
    metric: str = "accuracy"
    first_seed: int = 0
    draw: DrawFigures | None = None
    preset: str | None = None

    def seeds_of(self, cell: Cell) -> range:
        """Return the seeds of a wanted cell."""
        return range(self.first_seed, self.first_seed + (cell.seeds or self.seeds))

    def narrowed(self, request: Request) -> Experiment:
        """Return the experiment with cells outside the requested rows and columns not wanted.

        Raises
        ------
        ConfigError
            If a pattern fits no row (or no column) that could be run.
        """
        cells = self.cells
        for option in ("row", "column"):
            patterns = getattr(request, f"{option}s")
            names = list(dict.fromkeys(getattr(cell, option) for cell in cells if cell.wanted))
            kept = {name for name in names if any(_fits(name, p) for p in patterns)}
            for pattern in patterns:
                if not any(_fits(name, pattern) for name in names):
                    known = "; ".join(names)
                    raise ConfigError(f"{option}s must fit one of {known}; got {pattern!r}")
            if patterns:
                cells = tuple(
                    dataclasses.replace(c, wanted=c.wanted and getattr(c, option) in kept)
                    for c in cells
                )
        return dataclasses.replace(self, cells=cells)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a pattern fits a name, or the name as a folder."""
    return fnmatch.fnmatchcase(name.lower(), pattern.lower()) or fnmatch.fnmatchcase(
        slug(name), pattern.lower()
    )


def grid(
    request: Request,
    experiment: str,
    columns: Mapping[str, str],
    paper: PaperTable | None = None,
    shared: Collection[str] = (),
    aims: Mapping[str, float] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> tuple[Cell, ...]:
    """Return the cells of a table of data sets by methods.

    `columns` names the method of each column; data sets of the `paper` are rows too, shown
    but not run unless requested; runs of the columns `shared` are kept with the
    classification table; `aims` are accuracies whose first round is reported, and `seeds` the
    usual numbers of seeds, by data set, where they are not those of the experiment.
    """
    paper, dataset = paper or {}, request.dataset or DATASET
    wanted = request.chosen(list(columns.values()), experiment)
    rows = [dataset] if request.quick else list(dict.fromkeys([*paper, dataset]))
    return tuple(
        Cell(
            row,
            column,
            request.config(row, method),
            paper.get(row, {}).get(column),
            home=f"classification/{row}/{method}" if column in shared else "",
            wanted=row == dataset and method in wanted,
            aim=(aims or {}).get(row),
            seeds=request.n_seeds(seeds[row]) if seeds and row in seeds else None,
        )
        for row in rows
        for column, method in columns.items()
    )


def measured(folder: Path, name: str, asked: Mapping[str, Any]) -> bool:
    """Return whether a measurement with these arguments and its picture are in `folder`."""
    path = folder / f"{name}.json"
    done = path.exists() and path.with_suffix(".png").exists()
    return done and read_json(path).get("asked") == asked


def slug(*words: str) -> str:
    """Return words as a file name.

    Examples
    --------
    >>> slug("D=1, non-IID", "curves")
    'd-1-non-iid-curves'
    """
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-") or "untitled"
