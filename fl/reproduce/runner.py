"""From the name of an experiment to its runs, its table and its figures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import ConfigError, nearest
from .experiment import Plan
from .manifest import Manifest
from .results import Row, measure

#: Experiments in the order in which ``all`` runs them.
TABLES = ("classification", "kernels", "regression", "ablations", "participation")
DRAWINGS = ("overview", "theory")
#: What goes beyond the paper; ``all`` leaves it out.
BEYOND = ("beyond", "holdout", "variance")
NAMES = (*TABLES, *DRAWINGS, *BEYOND, "all")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one experiment gave: its record on disk, and its rows where it has a table."""

    name: str
    path: Path
    rows: Sequence[Row]
    figures: Sequence[Path]


def reproduce(
    name: str,
    plan: Plan,
    out: str | os.PathLike[str],
    progress: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Run an experiment of the paper, or what is left of it.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    plan : Plan
    out : path
        Folder of all experiments; complete runs found there are not run again.
    progress : bool
        Show the progress of each run.
    tell : callable
        Called with a line before each run.

    Returns
    -------
    outcomes : list of Outcome
        One, or one per experiment for ``"all"``.
    """
    if name not in NAMES:
        raise ConfigError(
            f"experiment must be one of {', '.join(NAMES)}; got {name!r}{nearest(name, NAMES)}"
        )
    if name == "all":
        if plan.methods:
            raise ConfigError("methods must be left out of all: experiments differ in theirs")
        names: Sequence[str] = (*TABLES, *DRAWINGS)
    else:
        names = (name,)
    return [_one(each, plan, Path(out), progress, tell) for each in names]


def _one(name: str, plan: Plan, out: Path, progress: bool, tell: Callable[[str], None]) -> Outcome:
    from ..loop import run  # needs torch; the names above do not

    module: Any = importlib.import_module(f"{__package__}.{name}")
    if name in ("regression", "theory", "variance") and plan.dataset not in (None, name):
        plan = dataclasses.replace(plan, dataset=None)  # `all` with a data set of images
    experiment = module.make(plan)
    wanted = [cell for cell in experiment.cells if cell.wanted]
    if experiment.metric == "accuracy" and plan.dataset == "regression":
        raise ConfigError(f"{name} compares accuracies, and regression has none")
    manifest = Manifest(experiment, plan, out)
    manifest.check()
    path = manifest.write()
    # Seeds outermost: pairs are complete early.
    for seed in range(experiment.first_seed, experiment.first_seed + experiment.seeds):
        for cell in wanted:
            if manifest.is_finished(cell, seed):
                continue
            label = " ".join([name, *["quick"] * plan.quick])
            tell(f"{label}: {cell.row}, {cell.column}, seed {seed}")
            run(
                cell.config.replace(seed=seed),
                manifest.place(cell, seed),
                resume=True,
                progress=progress,
            )
            manifest.write()
    manifest.figures = _draw(module, manifest, plan)
    manifest.write()
    rows = module.rows(manifest.folder) if hasattr(module, "rows") else measure(manifest.folder)
    return Outcome(name, path, rows, [manifest.folder / figure for figure in manifest.figures])


def _draw(module: Any, manifest: Manifest, plan: Plan) -> list[str]:
    """Let the experiment draw, or draw its curves; relative paths of the pictures."""
    if hasattr(module, "draw"):
        drawn: list[str] = module.draw(manifest.folder, plan)
        return drawn
    with contextlib.suppress(ModuleNotFoundError):  # a table needs no matplotlib
        from .drawing import draw_curves

        return draw_curves(manifest.folder)
    return []
