"""The name of an experiment in; its runs, ``experiment.json``, rows and figures out."""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..settings import ConfigError, look_up
from ..store import FolderInUse
from .definition import Request
from .definitions import DRAWINGS, NAMES, TABLES, define
from .figures import draw_curves
from .manifest import Manifest
from .measures import rows_of
from .table import Row


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One reproduced experiment: `path` of its manifest, `rows` of its table, its `figures`."""

    name: str
    path: Path
    rows: Sequence[Row]
    figures: Sequence[Path]


def reproduce(
    name: str,
    request: Request,
    out: str | os.PathLike[str],
    progress: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """Run one of the experiments `NAMES`, or what is left of it; ``"all"`` gives several.

    Parameters
    ----------
    name : str
    request : Request
    out : path
        Folder of all experiments; complete runs found there are not run again. Several
        processes may work on it at once: a run that one of them is at is left to it.
    progress : bool
        Show the progress of each run.
    tell : callable
        Called with a line before each run.

    Examples
    --------
    >>> import tempfile
    >>> from fl.experiments import NAMES, Request, reproduce
    >>> "theory" in NAMES
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcomes = reproduce("theory", Request(quick=True, rounds=2, seeds=1), folder)
    >>> len(outcomes)
    1
    """
    look_up(name, {known: known for known in NAMES}, "experiment")
    if name == "all" and request.methods:
        raise ConfigError("methods must be left out of all: experiments differ in theirs")
    names = (*TABLES, *DRAWINGS) if name == "all" else (name,)
    return [_one(each, request, Path(out), progress, tell) for each in names]


def _one(
    name: str, request: Request, out: Path, progress: bool, tell: Callable[[str], None]
) -> Outcome:
    from ..loop import run  # needs torch; the names above do not

    if name in ("regression", "theory", "variance") and request.dataset not in (None, name):
        request = dataclasses.replace(request, dataset=None)  # `all` with a data set of images
    experiment = define(name, request)
    if experiment.metric == "accuracy" and request.dataset == "regression":
        raise ConfigError(f"{name} compares accuracies, and regression has none")
    manifest = Manifest(experiment, request, out)
    manifest.check()
    path = manifest.write()
    label = " ".join([name, *["quick"] * request.quick])
    # Seeds outermost: pairs are complete early.
    wanted = [cell for cell in experiment.cells if cell.wanted]
    for seed in sorted({seed for cell in wanted for seed in experiment.seeds_of(cell)}):
        for cell in (cell for cell in wanted if seed in experiment.seeds_of(cell)):
            if not manifest.is_finished(cell, seed):
                tell(f"{label}: {cell.row}, {cell.column}, seed {seed}")
                config = cell.config.replace(seed=seed)
                try:
                    run(
                        # Hundreds of runs: their models would take gigabytes.
                        config.replace(save_models=False),
                        manifest.place(cell, seed),
                        resume=True,
                        progress=progress,
                    )
                except FolderInUse:
                    tell("  left to another process, which runs it at this moment")
                # A run ends as a cycle of references around gigabytes: free them now.
                gc.collect()
                manifest.write()
    try:
        manifest.figures = (experiment.draw or draw_curves)(manifest.folder, request)
    except ModuleNotFoundError:
        if not experiment.baseline:  # only a figure; a table needs no matplotlib
            raise
    manifest.write()
    figures = [manifest.folder / figure for figure in manifest.figures]
    return Outcome(name, path, rows_of(manifest.folder), figures)
