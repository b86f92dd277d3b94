"""An experiment: cells of a table, each with settings, seeds and the paper's number."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig, nearest
from ..paper import Value
from ..presets import METHODS, make_config
from ..settings import unknown

#: Settings of ``--quick``: enough rounds to see every step, too few to compare.
QUICK_ROUNDS, QUICK_WARMUP, QUICK_SEEDS = 30, 10, 2
#: Accuracy whose first round is reported, by data set.
TARGETS = {"mnist": 0.85}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the user asked for; None leaves the choice to the experiment.

    `workers` counts the processes that train clients. `methods` narrows the methods that
    are run, not those that the table shows.
    """

    preset: str = "paper"
    seeds: int | None = None
    rounds: int | None = None
    quick: bool = False
    dataset: str | None = None
    methods: tuple[str, ...] = ()
    data_dir: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name in ("seeds", "rounds", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for method in self.methods:
            if method not in METHODS:
                hint = nearest(method, METHODS)
                raise ConfigError(
                    f"method must be one of {', '.join(METHODS)}; got {method!r}{hint}"
                )

    @classmethod
    def of(cls, file: Mapping[str, Any], given: Mapping[str, Any]) -> Plan:
        """Return the plan of a file, changed by what was given beside it."""
        if isinstance(file.get("methods"), list):
            file = {**file, "methods": tuple(file["methods"])}
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        for name, value in file.items():
            if name not in kinds:
                raise ConfigError(unknown(name, kinds, ""))
            if type(value).__name__ not in str(kinds[name]):
                raise ConfigError(f"{name} must be of type {kinds[name]}, got {value!r}")
        return cls(**{**file, **given})

    def n_seeds(self, usual: int, quick: int = QUICK_SEEDS) -> int:
        """Return the number of seeds, counted from 0."""
        return self.seeds or (quick if self.quick else usual)

    def config(self, dataset: str, method: str, **changes: Any) -> RunConfig:
        """Return the paper's settings of one method, as this plan changes them."""
        config = make_config(dataset, method, self.preset, **changes)
        rounds = self.rounds or (min(QUICK_ROUNDS, config.rounds) if self.quick else config.rounds)
        config = config.replace(rounds=rounds, data__data_dir=self.data_dir)
        if self.workers:
            config = config.replace(engine__workers=self.workers)
        if self.quick and config.selection.policy == "fedcvr-bolt":
            warmup = min(QUICK_WARMUP, rounds // 3)
            config = config.replace(selection__options__warmup=warmup)
        return config

    def command(self, name: str) -> str:
        """Return the command line that asks for this plan; folders and workers left out."""
        words = ["cvrcore", "reproduce", name]
        if self.quick:
            words.append("--quick")
        words += ["--preset", self.preset]
        for option in ("dataset", "seeds", "rounds"):
            if (value := getattr(self, option)) is not None:
                words += [f"--{option}", str(value)]
        if self.methods:
            words += ["--methods", ",".join(self.methods)]
        return shlex.join(words)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number of a table.

    Parameters
    ----------
    row, column : str
        Its place, in words.
    config : RunConfig
        Its settings; the seed is replaced.
    paper : (mean, two standard deviations), optional
        What the paper prints there: percent, or mean squared error.
    home : str
        ``experiment/row/column`` of another experiment whose runs these are; empty: own.
    wanted : bool
        Whether to run it now; the table shows it in any case.
    aim : float, optional
        The metric whose first round is reported. Default: the data set's, if it has one.
    """

    row: str
    column: str
    config: RunConfig
    paper: Value | None = None
    home: str = ""
    wanted: bool = True
    aim: float | None = None

    @property
    def target(self) -> float | None:
        """Return the metric whose first round is reported, if there is one."""
        return TARGETS.get(self.config.data.dataset) if self.aim is None else self.aim

    def place(self, experiment: str, suffix: str) -> Path:
        """Return the folder of its runs, relative to the folder of all experiments."""
        names = self.home.split("/") if self.home else [experiment, self.row, self.column]
        return Path(names[0] + suffix, *map(slug, names[1:]))


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table: its cells, how often each is run, and to which column it is compared.

    Parameters
    ----------
    name, title : str
    cells : tuple of Cell
    seeds : int
        Seeds of every cell that is wanted.
    baseline : str
        Column that the others of its row are paired with.
    metric : {"accuracy", "mse"}
    first_seed : int
        Where seeds are counted from.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    seeds: int
    baseline: str = ""
    metric: str = "accuracy"
    first_seed: int = 0


def slug(text: str) -> str:
    """Return `text` as a folder name.

    Examples
    --------
    >>> slug("D=1, non-IID")
    'd-1-non-iid'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def chosen(plan: Plan, names: Mapping[str, Any] | tuple[str, ...], what: str) -> set[str]:
    """Return which of an experiment's methods to run: all, or those that the plan names."""
    strangers = [name for name in plan.methods if name not in names]
    if strangers:
        raise ConfigError(f"{what} has the methods {', '.join(names)}; got {strangers[0]!r}")
    return set(plan.methods) or set(names)
