"""Run folders and ``experiment.json`` in, `Results` out: the runs behind each cell of a table."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..history import History
from ..records import read_json, read_regular
from ..store import StoreError, read_history
from .definitions import ORDER
from .manifest import MANIFEST


class ReportError(ValueError):
    """Runs that cannot be reported; the message names the folder and says why.

    Examples
    --------
    >>> import tempfile
    >>> from fl.experiments import ReportError, build
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     try:
    ...         build([empty], empty)
    ...     except ReportError:
    ...         print("no runs there")
    no runs there
    """


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder, the name that the page shows for it, and its history."""

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
class CellResults:
    """The runs behind one number of a table.

    `paper` is a mean and two standard deviations as the paper prints them: accuracies in
    percent. `found` are the runs that exist, of `planned` that the manifest names.
    `settings` are those of the definition, nested.
    """

    row: str
    column: str
    method: str
    found: tuple[Run, ...]
    planned: int
    paper: tuple[float | None, float | None] = (None, None)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target: float | None = None
    command: str = ""

    @property
    def runs(self) -> list[Run]:
        """The finished runs."""
        return [run for run in self.found if run.finished]

    @property
    def by_seed(self) -> dict[int, History]:
        """The histories of the finished runs, by seed."""
        return {run.seed: run.history for run in self.runs}


@dataclasses.dataclass(frozen=True)
class Results:
    """A table with its runs, and how it was made.

    `baseline` names the column that others are compared with; empty: FedAvg, or the first.
    """

    name: str
    title: str
    metric: str
    cells: tuple[CellResults, ...]
    command: str
    preset: str = ""
    quick: bool = False
    figures: tuple[Path, ...] = ()
    baseline: str = ""
    target: float | None = None
    folder: Path | None = None

    @property
    def heading(self) -> str:
        """The title, with a label where runs were shortened."""
        return self.title + " (quick)" * self.quick

    @property
    def rows(self) -> dict[str, list[CellResults]]:
        """Cells by row, both in the order of the manifest."""
        names = dict.fromkeys(cell.row for cell in self.cells)
        return {name: [cell for cell in self.cells if cell.row == name] for name in names}

    @property
    def accuracy(self) -> bool:
        """Whether the metric is an accuracy, not an error."""
        return self.metric == "accuracy"

    @property
    def form(self) -> tuple[str, float, int]:
        """Unit of the metric in tables and figures, the factor to it, and its decimals."""
        return ("%", 100.0, 2) if self.accuracy else ("MSE", 1.0, 4)


def collect(places: Sequence[Path]) -> tuple[list[Results], list[Run]]:
    """Return the experiments at or below `places`, and the runs that belong to none.

    Raises
    ------
    ReportError
        If a place holds neither, or a damaged file.
    """
    manifests: dict[Path, Path] = {}
    runs: dict[Path, str] = {}
    for place in places:
        if not place.is_dir():
            raise ReportError(f"{place} is not a folder")
        folders = list(_walk(place))
        for folder in folders:
            if (folder / MANIFEST).is_file():
                manifests.setdefault(folder.resolve(), folder)
            if _is_run(folder):
                inner = folder.relative_to(place).as_posix()
                runs.setdefault(folder.resolve(), folder.resolve().name if inner == "." else inner)
        if not folders:
            raise ReportError(f"{place} holds no runs: no folder with rounds.jsonl, no {MANIFEST}")
    experiments = sorted(map(read_results, manifests.values()), key=_order)
    claimed = {run.folder for results in experiments for c in results.cells for run in c.found}
    loose = [read_run(folder, label) for folder, label in runs.items() if folder not in claimed]
    # An unfinished run below an experiment's folder is still in progress: not a result.
    return experiments, [
        run for run in loose if run.finished or not manifests.keys() & {*run.folder.parents}
    ]


def read_run(folder: Path, label: str) -> Run:
    """Read one run folder; ReportError names the folder if it is damaged."""
    try:
        return Run(folder, label, read_history(folder))
    except StoreError as error:
        raise ReportError(str(error)) from None


def read_results(folder: Path, complete: bool = False) -> Results:
    """Read ``experiment.json`` and its runs; if `complete`, refuse one that is missing."""
    path = folder / MANIFEST
    if not path.exists():
        raise ReportError(f"{folder} holds no experiment: {MANIFEST} is missing")
    try:
        values = read_json(path)
        metric, cells = values["metric"], values.get("cells")
        if metric not in ("accuracy", "mse"):
            raise ReportError(f"{path}: metric must be accuracy or mse, got {metric!r}")
        commands = dict.fromkeys(c["command"] for c in cells or () if c["runs"] and "command" in c)
        return Results(
            name=str(values["experiment"]),
            title=str(values["title"]).removesuffix(" (quick)"),  # tables add their own label
            quick=bool(values["quick"]),
            preset=str(values.get("preset", "")),
            command="\n".join(commands) or str(values.get("command", "")),
            metric=metric,
            cells=tuple(_read_cell(cell, values, folder, complete) for cell in values["cells"]),
            figures=tuple(_figure(folder, name) for name in values.get("figures", ())),
            baseline=str(values.get("baseline") or ""),
            target=_number(values.get("target")),
            folder=folder,
        )
    except ReportError:
        raise
    except StoreError as error:
        raise ReportError(str(error)) from None
    except KeyError as error:
        raise ReportError(f"{path} is damaged: {error} is missing") from None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, LookupError) as error:
        raise ReportError(f"{path} is damaged: {error}") from None


def _read_cell(
    cell: Mapping[str, Any], values: Mapping[str, Any], folder: Path, complete: bool
) -> CellResults:
    if not isinstance(cell, Mapping) or not isinstance(cell["runs"], list):
        raise ReportError(f"{folder / MANIFEST}: cells must be tables with a list of runs")
    places = [(_run_folder(folder, name), str(name)) for name in cell["runs"]]
    mean, two_std = map(_number, cell.get("paper") or (None, None))
    if values["metric"] == "accuracy" and mean is not None and mean <= 1:  # a share
        mean, two_std = 100 * mean, None if two_std is None else 100 * two_std
    return CellResults(
        row=str(cell["row"]),
        column=str(cell["column"]),
        method=str(cell["method"]),
        found=tuple(read_run(place, name) for place, name in places if complete or _is_run(place)),
        planned=len(places),
        paper=(mean, two_std),
        settings=_table(cell.get("config") or {}, folder),
        target=_number(cell.get("target")),
        command=str(cell.get("command") or values.get("command", "")),
    )


def _number(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise ReportError(f"{MANIFEST}: target and paper must be numbers, got {value!r:.40}")
    return None if value is None else float(value)


def _table(value: Any, folder: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ReportError(f"{folder / MANIFEST}: config must be a table, got {value!r:.40}")
    return value


def _run_folder(folder: Path, name: Any) -> Path:
    """Return the folder of a run: below the folder of all experiments, beside this one."""
    place = (folder / str(name)).resolve()
    if not isinstance(name, str) or not place.is_relative_to(folder.resolve().parent):
        raise ReportError(f"{folder / MANIFEST}: runs must lie in {folder.parent}, got {name!r}")
    return place


#: Endings of figures that a page may embed.
FIGURES = (".png", ".svg")
_ACTIVE = re.compile(
    rb"<\s*(script|foreignobject|iframe|embed|object|handler|!entity|!doctype[^>]*\[)"
    rb"|\son[a-z]+\s*=|javascript:|(href|src)\s*=\s*[\"']?\s*(https?:|file:|data:text|//)"
    rb"|@import|url\s*\(\s*[\"']?(https?:|file:|//)",
    re.IGNORECASE,
)


def _figure(folder: Path, name: Any) -> Path:
    """Return the path of a figure: a name in the folder of the experiment."""
    path = folder / str(name)
    inside = isinstance(name, str) and path.resolve().is_relative_to(folder.resolve())
    if not inside or path.is_symlink() or path.suffix not in FIGURES:
        raise ReportError(
            f"{folder / MANIFEST}: figures must be {' or '.join(FIGURES)} files in its folder, "
            f"got {name!r:.80}"
        )
    return path


def read_figure(path: Path) -> bytes:
    """Return a figure; ReportError if it is no regular file, no picture, or can run a script."""
    try:
        data = read_regular(path)
    except (StoreError, OSError) as error:
        raise ReportError(str(error)) from None
    if path.suffix == ".png" and not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ReportError(f"{path} must be a PNG picture")
    if path.suffix == ".svg" and (b"<svg" not in data or b"\0" in data or _ACTIVE.search(data)):
        raise ReportError(f"{path} must be an SVG picture without scripts and outside references")
    return data


def _walk(place: Path) -> Iterator[Path]:
    """Yield folders that are runs or hold a manifest; folders below a run are not searched."""
    for folder, below, files in os.walk(place):
        below.sort()
        path = Path(folder)
        if _is_run(path):
            below.clear()
            yield path
        elif MANIFEST in files:
            yield path


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run; other folders may hold a ``config.json`` too."""
    names = ("rounds.jsonl", "facts.json")
    return (folder / "config.json").is_file() and any((folder / n).is_file() for n in names)


def _order(results: Results) -> tuple[bool, int]:
    """Sort as the paper does, shortened experiments last."""
    known = results.name in ORDER
    return results.quick, ORDER.index(results.name) if known else len(ORDER)
