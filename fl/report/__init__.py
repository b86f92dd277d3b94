"""Run folders to one self-contained page, with every table and figure beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .collect import ReportError, collect

__all__ = ["ReportError", "build"]

PAGE_NAME = "report.html"


def build(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Path:
    """Make a report of runs.

    Parameters
    ----------
    runs : sequence of paths
        Run folders, or folders with runs below them. Where an ``experiment.json`` lies, its
        plan decides the tables; other runs are grouped by data set and method.
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
    >>> build(["results/mnist"], "report")  # doctest: +SKIP
    PosixPath('report/report.html')
    """
    places = [Path(run) for run in runs]
    if not places:
        raise ReportError("runs must name at least one folder")
    from .compose import compose, with_own_names
    from .grouping import group

    planned, loose = collect(places)
    experiments = with_own_names([*planned, *group(loose)])
    page, folder = Path(out), Path(out)
    if page.suffix.lower() in (".html", ".htm"):
        folder = page.with_name(f"{page.stem}-files")
        beside = f"{folder.name}/"
    else:
        page, beside = folder / PAGE_NAME, ""
    part = page.with_name(page.name + ".part")
    try:
        for name in ("figures", "tables"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        text = compose(experiments, folder, beside)
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, page)  # a page is whole or not there
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ReportError(f"{out} cannot be written: {error}") from error
    return page
