"""Run folders in, one self-contained page out, with every table and figure beside it."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from .drawing import Picture
from .figures import Album, against_paper, curves, stability, uniformity
from .grouping import group
from .html import Chapter, render, tag
from .maps import coalition_sizes, federation_of, partition_map, selection_map
from .page_tables import (
    decisions,
    file_stem,
    page_rows,
    page_tables,
    runs_table,
    settings_table,
    versions,
    words,
)
from .results import ReportError, Results, Run, collect, read_figure

PAGE_NAME = "report.html"
#: Folders of the runs that are drawn already, with the title of their chapter.
Drawn = list[tuple[set[Path], str]]


def build(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Make a report of runs.

    Parameters
    ----------
    runs : sequence of paths
        Run folders, or folders with runs below them. Where an ``experiment.json`` lies, it
        decides the tables; other runs are grouped by data set and method.
    out : path
        Folder of the page ``report.html``, its ``figures`` and its ``tables``, made if
        missing. Or the page itself, ending in ``.html``: ``page.html`` has its figures and
        tables in ``page-files``.

    Returns
    -------
    page : Path
        One HTML file that needs no network and no other file.

    Raises
    ------
    ReportError
        A ValueError: a folder without runs, a damaged one, or `out` cannot be written.

    Examples
    --------
    >>> import os, tempfile
    >>> import fl
    >>> config = fl.make_config("digits", rounds=1, n_clients=10, n_select=2, epochs=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = fl.run(config, os.path.join(folder, "run"))
    ...     build([folder], os.path.join(folder, "report")).name
    'report.html'
    """
    if not runs:
        raise ReportError("runs must name at least one folder")
    planned, loose = collect([Path(run) for run in runs])
    experiments = _with_own_names([*planned, *group(loose)])
    page, folder, beside = Path(out) / PAGE_NAME, Path(out), ""
    if folder.suffix.lower() in (".html", ".htm"):
        page, folder = folder, folder.with_name(f"{folder.stem}-files")
        beside = f"{folder.name}/"
    part = page.with_name(page.name + ".part")
    drawn: Drawn = []
    try:
        for name in ("figures", "tables"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        chapters = [_chapter(results, folder, drawn) for results in experiments]
        try:
            part.write_text(render(chapters, versions(), beside), encoding="utf-8")
            os.replace(part, page)  # no reader ever finds half a page
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{out} cannot be written: {error}") from error
    return page


def _with_own_names(experiments: Sequence[Results]) -> list[Results]:
    """Give experiments of the same name a number: their files must not collide."""
    stems = [file_stem(results, "") for results in experiments]
    counts = [stems[: i + 1].count(stem) for i, stem in enumerate(stems)]
    return [
        results if n == 1 else dataclasses.replace(results, name=f"{results.name} {n}")
        for results, n in zip(experiments, counts, strict=True)
    ]


def _chapter(results: Results, folder: Path, drawn: Drawn) -> Chapter:
    """Write tables and figures of one experiment; return its part of the page."""
    rows = page_rows(results)
    tables = page_tables(results, rows)
    details = [table for table in (settings_table(results), runs_table(results)) if table.rows]
    for table in (*tables, *details):
        table.write(folder / "tables")
    album = Album(results, rows, folder / "figures")
    pictures: list[Picture] = []
    asides: list[str] = []
    decided = []
    for row, cells in results.rows.items():
        runs = [run for cell in cells for run in cell.runs]
        if runs:
            pictures += _row_figures(album, row, runs, drawn, asides)
            # The run with most choices to list: one whose policy watches models.
            watching = (run for run in runs if run.history.facts.get("n_features"))
            decided.append((row, decisions(next(watching, runs[0]))))
    first, taken = against_paper(album), {picture.name for picture in pictures}
    own = _own_figures(results, album.folder, taken, asides)
    pictures = [*([first] if first else []), *own, *pictures]
    return Chapter(results, rows, tables, pictures, asides, details, decided)


def _row_figures(
    album: Album, row: str, runs: list[Run], drawn: Drawn, asides: list[str]
) -> list[Picture]:
    """Draw the runs of a row, unless an earlier chapter has drawn all of them."""
    folders = {run.folder for run in runs}
    before = next((title for others, title in drawn if folders <= others), "")
    drawn.append((folders, album.results.title))
    if before:
        asides.append(f"The runs of {row} are drawn under {before}.")
        return []
    seed, (federation, reason) = runs[0].seed, federation_of(runs[0])
    if reason:
        asides.append(f"No partition map of {row}: {reason}.")
    pictures = [
        curves(album, row),
        selection_map(album, row, seed, federation),
        uniformity(album, row),
        stability(album, row),
        coalition_sizes(album, row, seed),
        partition_map(album, row, seed, federation),
    ]
    return [picture for picture in pictures if picture is not None]


def _own_figures(
    results: Results, folder: Path, taken: set[str], asides: list[str]
) -> list[Picture]:
    """Copy figures that came with the experiment, except those that the page draws itself."""
    pictures = []
    for path in results.figures:
        name = file_stem(results, path.stem)
        if not path.is_file():
            asides.append(f"Figure {path.name} is not there: it has not been drawn yet.")
        elif name not in taken:
            sources = [path.with_suffix(suffix) for suffix in (".png", ".svg")]
            files = {f"{name}{source.suffix}": source for source in sources if source.is_file()}
            for file, source in files.items():
                (folder / file).write_bytes(read_figure(source))
            data = base64.b64encode(read_figure(path)).decode()
            kind = "svg+xml" if path.suffix == ".svg" else path.suffix.lstrip(".")
            title = path.stem.replace("-", " ").replace("_", " ").capitalize()
            text = words()["figures"].get(results.name, "Drawn by the experiment itself.")
            image = tag("img", alt=title, src=f"data:image/{kind};base64,{data}")
            pictures.append(Picture(name, title, text, image, list(files), results.quick))
    return pictures
