"""From experiments to chapters: every table and figure, written and ready for the page."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from .collect import Cell, Experiment, Run
from .drawing import Picture
from .figures import against_paper, curves, stability, uniformity
from .grouping import without_seed
from .maps import Holdings, coalition_sizes, first_run, holdings, partition_map, selection_map
from .markup import tag
from .page import Chapter, render
from .provenance import decisions, runs_table, settings_table, versions
from .results import differences_table, file_stem, progress_table, results_table
from .theory import theory_table

#: What one sees in the figures that experiments draw themselves.
_SEEN = {
    "overview": "The clients of a live state, near each other where their models are alike: the "
    "colour is the coalition, the size the score, a ring marks who would be picked next; right, "
    "the weights of the picked.",
    "participation": "The last five evaluations against the share of clients picked each round; "
    "bars are two standard deviations over seeds.",
    "theory": "The running mean of squared gradient norms by round, a colour per step length; "
    "dashed in the same colour: the bound it should end below.",
}


class Drawn:
    """What the page has already, so that experiments that share runs do not repeat it."""

    def __init__(self) -> None:
        self._holdings: dict[str, Holdings] = {}
        self._rows: list[tuple[set[Path], str]] = []

    def holdings(self, run: Run) -> Holdings:
        """Return the federation of a run, drawn once for all runs that share it."""
        data = run.history.config.to_dict()["data"]
        key = json.dumps([without_seed({"data": data}), run.seed], sort_keys=True)
        if key not in self._holdings:
            self._holdings[key] = holdings(run)
        return self._holdings[key]

    def row(self, cells: Sequence[Cell], title: str) -> str:
        """Note a row; return the title of an earlier one that has all of its runs, or ""."""
        runs = {run.folder for cell in cells for run in cell.runs}
        before = next((name for others, name in self._rows if runs <= others), "")
        self._rows.append((runs, title))
        return before


def with_own_names(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Give experiments of the same name a number: their files must not collide."""
    seen: dict[str, int] = {}
    named = []
    for experiment in experiments:
        stem = file_stem(experiment, "")
        seen[stem] = seen.get(stem, 0) + 1
        count = seen[stem]
        name = experiment.name if count == 1 else f"{experiment.name} {count}"
        named.append(dataclasses.replace(experiment, name=name))
    return named


def compose(experiments: Sequence[Experiment], folder: Path, beside: str = "") -> str:
    """Write tables and figures of all experiments below `folder`; return the page."""
    drawn = Drawn()
    chapters = [_chapter(experiment, folder, drawn) for experiment in experiments]
    return render(chapters, versions(), beside)


def _chapter(experiment: Experiment, folder: Path, drawn: Drawn) -> Chapter:
    makers = (results_table, differences_table, progress_table)
    tables = [table for table in (make(experiment) for make in makers) if table.rows]
    theory = theory_table(experiment, experiment.folder) if experiment.folder else None
    tables += [theory] if theory else []
    details = [settings_table(experiment), runs_table(experiment)]
    details = [table for table in details if table.rows]
    for table in (*tables, *details):
        table.write(folder / "tables")

    figures, asides, decided = folder / "figures", [], []
    pictures = [against_paper(experiment, figures)]
    for row, cells in experiment.rows.items():
        run = first_run(cells)
        if run is None:
            continue
        held = drawn.holdings(run)
        before = drawn.row(cells, experiment.title)
        if before:
            asides.append(f"The runs of {row} are drawn under {before}.")
        else:
            pictures += _row_pictures(experiment, row, run, held, figures)
            if held.federation is None:
                asides.append(f"No partition map of {row}: {held.reason}.")
        decided.append((row, decisions(_teller(cells, run))))
    own, missing = _own_figures(experiment, figures, {p.name for p in pictures if p})
    pictures[1:1] = own
    asides += missing
    return Chapter(
        experiment=experiment,
        anchor=file_stem(experiment, "section"),
        tables=tables,
        pictures=[picture for picture in pictures if picture is not None],
        asides=asides,
        details=details,
        decisions=decided,
    )


def _row_pictures(
    experiment: Experiment, row: str, run: Run, held: Holdings, folder: Path
) -> list[Picture | None]:
    return [
        curves(experiment, row, folder),
        selection_map(experiment, row, run.seed, held.order, folder),
        uniformity(experiment, row, folder),
        stability(experiment, row, folder),
        coalition_sizes(experiment, row, run.seed, folder),
        partition_map(experiment, row, run, held, folder),
    ]


def _teller(cells: Sequence[Cell], first: Run) -> Run:
    """Return the run with most choices to tell: one that watches models, if there is."""
    runs = (run for cell in cells for run in cell.runs)
    return next((run for run in runs if run.history.facts.get("n_features")), first)


def _own_figures(
    experiment: Experiment, folder: Path, taken: set[str]
) -> tuple[list[Picture], list[str]]:
    """Copy figures that came with the experiment, those aside that the report draws itself."""
    pictures, missing = [], []
    for path in experiment.figures:
        if not path.is_file():
            missing.append(f"Figure {path.name} is not there: it has not been drawn yet.")
            continue
        name = file_stem(experiment, path.stem)
        if name in taken:
            continue
        files = []
        for suffix in (".png", ".svg"):
            source = path.with_suffix(suffix)
            if source.is_file():
                shutil.copyfile(source, folder / f"{name}{suffix}")
                files.append(f"{name}{suffix}")
        data = base64.b64encode(path.read_bytes()).decode()
        kind = "svg+xml" if path.suffix == ".svg" else path.suffix.lstrip(".")
        title = path.stem.replace("-", " ").replace("_", " ").capitalize()
        caption = _SEEN.get(experiment.name, "Drawn by the experiment itself.")
        markup = tag("img", alt=title, src=f"data:image/{kind};base64,{data}")
        pictures.append(Picture(name, title, caption, markup, files, experiment.quick))
    return pictures, missing
