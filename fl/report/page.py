"""Parts of the page: tables, figures, sections, and all of them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from string import Template

from .collect import Experiment
from .drawing import Picture
from .markup import Markup, join, tag
from .results import NOT_RUN
from .style import CSS, PAGE
from .summary import findings, overview
from .tables import ABSENT, Column, Table

TITLE = "Federated runs: report"


@dataclasses.dataclass(frozen=True)
class Chapter:
    """What the page says of one experiment.

    Attributes
    ----------
    experiment : Experiment
    anchor : str
    tables : sequence of Table
        Shown open: results, differences, progress.
    pictures : sequence of Picture
    asides : sequence of str
        Why something is not there.
    details : sequence of Table
        Shown closed: settings, runs.
    decisions : sequence of (str, sequence of (str, str))
        Per row, what was decided where the paper is silent.
    """

    experiment: Experiment
    anchor: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    asides: Sequence[str]
    details: Sequence[Table]
    decisions: Sequence[tuple[str, Sequence[tuple[str, str]]]]


def render(
    chapters: Sequence[Chapter], versions: Sequence[tuple[str, str]], beside: str = ""
) -> str:
    """Return the whole page.

    Parameters
    ----------
    chapters : sequence of Chapter
    versions : sequence of (str, str)
    beside : str
        Where ``figures/`` and ``tables/`` lie, seen from the page; empty or ending in "/".
    """
    return Template(PAGE).substitute(
        title=join(TITLE),
        css=CSS,
        lead=join(overview([chapter.experiment for chapter in chapters])),
        summary=join(_summary(chapter) for chapter in chapters),
        contents=_contents(chapters),
        sections=join(_section(chapter, beside) for chapter in chapters),
        versions=_pairs(versions),
        footer=join(
            "Made by cvrcore from run folders alone. Files lie beside this page, in ",
            f"{beside}tables and {beside}figures.",
        ),
    )


def quick_badge(quick: bool) -> Markup:
    """Return the label of shortened runs, or nothing."""
    return tag("span", "quick", cls="quick") if quick else Markup("")


def table_markup(table: Table, beside: str) -> Markup:
    """Return a table with its heading, note and files."""
    return join(
        tag("h3", table.title.rpartition(": ")[2], quick_badge(table.quick), id=table.name),
        _grid(table),
        tag(
            "p",
            table.caption,
            " ",
            _files(f"{beside}tables", table.name, ("csv", "tex")),
            cls="note",
        ),
    )


def picture_markup(picture: Picture, beside: str) -> Markup:
    """Return a figure with its caption and files."""
    endings = [name.rpartition(".")[2] for name in picture.files]
    caption = tag(
        "figcaption",
        tag("b", f"{picture.title}."),
        quick_badge(picture.quick),
        " ",
        picture.caption,
        " ",
        _files(f"{beside}figures", picture.name, endings),
    )
    plot = tag("div", Markup(picture.markup), cls="plot scroll")
    return tag("figure", plot, caption, id=picture.name)


def _summary(chapter: Chapter) -> Markup:
    experiment = chapter.experiment
    title = tag("a", experiment.title, href=f"#{chapter.anchor}")
    lines = [tag("li", sentence) for sentence in findings(experiment)]
    return join(tag("p", title, quick_badge(experiment.quick)), tag("ul", lines))


def _contents(chapters: Sequence[Chapter]) -> Markup:
    items = []
    for chapter in chapters:
        title = tag("a", chapter.experiment.title, href=f"#{chapter.anchor}")
        inner = [
            tag("li", tag("a", table.title.rpartition(": ")[2], href=f"#{table.name}"))
            for table in (*chapter.tables, *chapter.details)
        ]
        inner += [
            tag("li", tag("a", picture.title, href=f"#{picture.name}"))
            for picture in chapter.pictures
        ]
        items.append(tag("li", title, quick_badge(chapter.experiment.quick), tag("ul", inner)))
    items.append(tag("li", tag("a", "Versions", href="#versions")))
    return tag("ol", items)


def _section(chapter: Chapter, beside: str) -> Markup:
    experiment = chapter.experiment
    done = sum(bool(cell.runs) for cell in experiment.cells)
    total = len(experiment.cells)
    facts = f"{done} of {total} cells run" if total else "no runs kept"
    if experiment.preset:
        facts += f" · preset {experiment.preset}"
    if experiment.quick:
        facts += " · quick: shortened runs, not comparable with the paper"
    return tag(
        "section",
        tag("h2", experiment.title, quick_badge(experiment.quick)),
        tag("p", facts, cls="facts"),
        _command(experiment),
        [table_markup(table, beside) for table in chapter.tables],
        [picture_markup(picture, beside) for picture in chapter.pictures],
        [tag("p", aside, cls="note") for aside in chapter.asides],
        [_closed(table, beside) for table in chapter.details],
        [_decisions(row, pairs, experiment.quick) for row, pairs in chapter.decisions],
        id=chapter.anchor,
    )


def _command(experiment: Experiment) -> Markup:
    if not experiment.command:
        return Markup("")
    label = tag("p", "The command that makes these tables:", cls="facts")
    return join(label, tag("pre", tag("code", experiment.command)))


def _closed(table: Table, beside: str) -> Markup:
    title = table.title.rpartition(": ")[2]
    note = tag(
        "p", table.caption, " ", _files(f"{beside}tables", table.name, ("csv", "tex")), cls="note"
    )
    head = tag("summary", title, quick_badge(table.quick))
    return tag("details", head, note, _grid(table), id=table.name)


def _decisions(row: str, pairs: Sequence[tuple[str, str]], quick: bool) -> Markup:
    head = tag("summary", f"Decided where the paper is silent: {row}", quick_badge(quick))
    return tag("details", head, _pairs(pairs))


def _pairs(pairs: Sequence[tuple[str, str]]) -> Markup:
    lines = [tag("tr", tag("td", name), tag("td", value, cls="value")) for name, value in pairs]
    return tag("div", tag("table", tag("tbody", lines)), cls="scroll")


def _grid(table: Table) -> Markup:
    columns = table.columns[1:]
    heads = [
        tag("th", column.heading, scope="col", cls="n" if column.numeric else None)
        for column in columns
    ]
    bodies = []
    for text, rows in table.groups():
        group = tag("tr", tag("th", text, colspan=len(columns), scope="rowgroup"))
        lines = [
            tag("tr", [_cell(column, row.get(column.name)) for column in columns]) for row in rows
        ]
        bodies.append(tag("tbody", group, lines))
    return tag("div", tag("table", tag("thead", tag("tr", heads)), bodies), cls="scroll")


def _cell(column: Column, value: object) -> Markup:
    text = column.text(value)
    classes = ["n" if column.numeric else "value" if column.name == "value" else "name"]
    if column.strong:
        classes.append("strong")
    if text in (ABSENT, NOT_RUN) or (column.numeric and isinstance(value, str)):
        classes.append("absent")
    return tag("td", text, cls=" ".join(classes))


def _files(folder: str, name: str, endings: Sequence[str]) -> Markup:
    words = {"tex": "LaTeX"}
    links = [
        tag("a", words.get(end, end.upper()), href=f"{folder}/{name}.{end}") for end in endings
    ]
    return tag("span", links, cls="files")
