"""Chapters in, one HTML page out: text is escaped, tables and figures become elements."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from .drawing import Picture
from .page_tables import NOT_RUN, file_stem
from .results import Results
from .summary import findings, overview
from .table import ABSENT, Column, Row, Table

Pairs = Sequence[tuple[str, str]]
#: Elements without an end tag.
_VOID = ("img", "br", "meta", "hr")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element of markup, text, iterables of both, or None for nothing.

    The attribute ``cls`` stands for ``class``; None leaves an attribute out.

    Examples
    --------
    >>> print(tag("p", "a < b", cls="note"))
    <p class="note">a &lt; b</p>
    """
    given = {key.replace("cls", "class"): v for key, v in attributes.items() if v is not None}
    words = [name, *(f'{key}="{html.escape(str(value))}"' for key, value in given.items())]
    opening = f"<{' '.join(words)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: Any) -> Markup:
    """Return children one after the other, text escaped."""

    def text(child: Any) -> str:
        if child is None or isinstance(child, Markup):
            return child or ""
        if isinstance(child, Iterable) and not isinstance(child, str):
            return join(*child)
        return html.escape(str(child), quote=False)

    return Markup("".join(map(text, children)))


@dataclasses.dataclass(frozen=True)
class Chapter:
    """What the page says of one experiment.

    `tables` are shown open, `details` closed; `asides` say why something is missing;
    `decisions` are, per row, what was decided where the paper is silent.
    """

    results: Results
    rows: Sequence[Row]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    asides: Sequence[str]
    details: Sequence[Table]
    decisions: Sequence[tuple[str, Pairs]]


def render(chapters: Sequence[Chapter], versions: Pairs, beside: str = "") -> str:
    """Return the whole page; its ``figures`` and ``tables`` lie in the folder `beside` it.

    `beside` is empty or ends in "/".
    """
    template = Path(__file__).with_name("page.template").read_text(encoding="utf-8")
    return Template(template).substitute(
        lead=join(overview([chapter.results for chapter in chapters])),
        summary=join(_summary(chapter) for chapter in chapters),
        contents=_contents(chapters),
        sections=join(_section(chapter, beside) for chapter in chapters),
        versions=_pairs(versions),
        folders=join(f"{beside}tables and {beside}figures"),
    )


def _badge(quick: bool) -> Markup | None:
    """Return the label of shortened runs, or nothing."""
    return tag("span", "quick", cls="quick") if quick else None


def _link(results: Results) -> Markup:
    anchor = file_stem(results, "section")
    return join(tag("a", results.title, href=f"#{anchor}"), _badge(results.quick))


def _name(table: Table) -> str:
    """Return the title of a table without that of its experiment."""
    return table.title.rpartition(": ")[2]


def _summary(chapter: Chapter) -> Markup:
    lines = [tag("li", sentence) for sentence in findings(chapter.results, chapter.rows)]
    return join(tag("p", _link(chapter.results)), tag("ul", lines))


def _contents(chapters: Sequence[Chapter]) -> Markup:
    items = []
    for chapter in chapters:
        names = {table.name: _name(table) for table in (*chapter.tables, *chapter.details)}
        names |= {picture.name: picture.title for picture in chapter.pictures}
        inner = [tag("li", tag("a", title, href=f"#{name}")) for name, title in names.items()]
        items.append(tag("li", _link(chapter.results), tag("ul", inner)))
    return tag("ol", items, tag("li", tag("a", "Versions", href="#versions")))


def _section(chapter: Chapter, beside: str) -> Markup:
    results = chapter.results
    done, total = sum(bool(cell.runs) for cell in results.cells), len(results.cells)
    facts = f"{done} of {total} cells run" if total else "no runs kept"
    facts += f" · preset {results.preset}" if results.preset else ""
    facts += " · quick: shortened runs, not comparable with the paper" * results.quick
    command = None
    if results.command:
        label = tag("p", "The command that makes these tables:", cls="facts")
        command = join(label, tag("pre", tag("code", results.command)))
    decided = [
        tag("details", tag("summary", f"Decided where the paper is silent: {row}",
            _badge(results.quick)), _pairs(pairs))
        for row, pairs in chapter.decisions
    ]  # fmt: skip
    return tag(
        "section",
        tag("h2", results.title, _badge(results.quick)),
        tag("p", facts, cls="facts"),
        command,
        [_table(table, beside) for table in chapter.tables],
        [_picture(picture, beside) for picture in chapter.pictures],
        [tag("p", aside, cls="note") for aside in chapter.asides],
        [_table(table, beside, closed=True) for table in chapter.details],
        decided,
        id=file_stem(results, "section"),
    )


def _table(table: Table, beside: str, closed: bool = False) -> Markup:
    heads = [
        tag("th", column.heading, scope="col", cls="n" if column.form else None)
        for column in table.columns[1:]
    ]
    bodies = []
    for text, rows in table.groups():
        group = tag("tr", tag("th", text, colspan=len(heads), scope="rowgroup"))
        lines = [tag("tr", [_cell(column, row) for column in table.columns[1:]]) for row in rows]
        bodies.append(tag("tbody", group, lines))
    grid = tag("div", tag("table", tag("thead", tag("tr", heads)), bodies), cls="scroll")
    files = _files(f"{beside}tables/{table.name}", {"csv": "CSV", "tex": "LaTeX"})
    note = tag("p", table.caption, " ", files, cls="note")
    if closed:
        head = tag("summary", _name(table), _badge(table.quick))
        return tag("details", head, note, grid, id=table.name)
    return join(tag("h3", _name(table), _badge(table.quick), id=table.name), grid, note)


def _cell(column: Column, row: Row) -> Markup:
    text, value = column.typeset(row), column.value(row)
    classes = ["n" if column.form else "value" if column.key == "value" else "name"]
    classes += ["strong"] * column.strong
    if text in (ABSENT, NOT_RUN) or (column.form and isinstance(value, str)):
        classes.append("absent")
    return tag("td", text, cls=" ".join(classes))


def _picture(picture: Picture, beside: str) -> Markup:
    endings = (name.rpartition(".")[2] for name in picture.files)
    files = _files(f"{beside}figures/{picture.name}", {end: end.upper() for end in endings})
    title = tag("b", f"{picture.title}.")
    text = tag("figcaption", title, _badge(picture.quick), " ", picture.caption, " ", files)
    plot = tag("div", Markup(picture.markup), cls="plot scroll")
    return tag("figure", plot, text, id=picture.name)


def _pairs(pairs: Pairs) -> Markup:
    lines = [tag("tr", tag("td", name), tag("td", value, cls="value")) for name, value in pairs]
    return tag("div", tag("table", tag("tbody", lines)), cls="scroll")


def _files(stem: str, endings: dict[str, str]) -> Markup:
    links = [tag("a", label, href=f"{stem}.{end}") for end, label in endings.items()]
    return tag("span", links, cls="files")
