"""Rows of values in; CSV, LaTeX, Markdown and terminal tables out."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable

Row = dict[str, Any]

ABSENT = "–"
MINUS = "−"

_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "η": r"$\eta$",
    "θ": r"$\theta$", "α": r"$\alpha$", "₀": r"$_0$", "₁": r"$_1$", "…": r"\dots{}",
    MINUS: "$-$", ABSENT: "--",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Column:
    """How one column is found and printed.

    `key` finds its value in a row, `absent` stands for None; `form` is the format of numbers,
    empty for text; `show` makes the text of cells that join several values; `name` heads the
    column in CSV files, by default the key; a `strong` column is the main one of its table.
    """

    heading: str
    key: str = ""
    form: str = ""
    name: str = ""
    strong: bool = False
    absent: str | None = None
    show: Callable[[Row], str] | None = None

    def value(self, row: Row) -> Any:
        """Return the value of the column in a row."""
        found = row.get(self.key)
        return self.absent if found is None else found

    def text(self, row: Row) -> str:
        """Return the cell in plain characters; None is a dash."""
        if self.show is not None:
            return self.show(row)
        value = self.value(row)
        if value is None:
            return "-"
        return value if isinstance(value, str) else f"{value:{self.form}}"

    def typeset(self, row: Row) -> str:
        """Return the cell for a page, with real dashes and minus signs."""
        if self.value(row) is None:
            return ABSENT
        return self.text(row).replace("-", MINUS) if self.form else self.text(row)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under columns; the first column groups neighbouring rows that share its value.

    `name` is that of its files; `quick` tells that the numbers come from shortened runs, and
    every file says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    caption: str = ""
    name: str = ""
    quick: bool = False

    def groups(self) -> list[tuple[str, list[Row]]]:
        """Return neighbouring rows that share the first column, with its text."""
        found: list[tuple[str, list[Row]]] = []
        for row in self.rows:
            text = self.columns[0].typeset(row)
            if not found or found[-1][0] != text:
                found.append((text, []))
            found[-1][1].append(row)
        return found

    def cells(self) -> list[list[str]]:
        """Return the text of every cell."""
        return [[column.text(row) for column in self.columns] for row in self.rows]

    def write(self, folder: Path) -> None:
        """Write ``<name>.csv`` and ``<name>.tex`` into `folder`."""
        label = {"quick": "quick"} if self.quick else {}
        rows = [
            {c.name or c.key: _rounded(c.value(row)) for c in self.columns} | label
            for row in self.rows
        ]
        write_csv(folder / f"{self.name}.csv", rows)
        (folder / f"{self.name}.tex").write_text(self.latex(), encoding="utf-8")

    def latex(self) -> str:
        r"""Return a ``table`` environment; it needs ``\usepackage{booktabs}``."""
        spec = "".join("r" if column.form else "l" for column in self.columns)
        caption = f"{self.title}{' (quick)' if self.quick else ''}. {self.caption}"
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(caption)}}}",
            rf"\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            " & ".join(escape_latex(column.heading) for column in self.columns) + r" \\",
        ]
        for text, rows in self.groups():
            lines.append(r"\midrule")
            for i, row in enumerate(rows):
                rest = [column.typeset(row) for column in self.columns[1:]]
                cells = [text if i == 0 else "", *rest]
                lines.append(" & ".join(map(escape_latex, cells)) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        return "\n".join(lines)

    def markdown(self, left: int = 2) -> str:
        """Return a Markdown table whose first `left` columns are aligned to the left."""
        rule = "|" + "---|" * left + "---:|" * (len(self.columns) - left)
        headings = [column.heading.replace("\n", " ") for column in self.columns]
        lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *self.cells())]
        return "\n".join([lines[0], rule, *lines[1:], ""])

    def terminal(
        self, left: int = 1, tight: bool = False, wrapped: Container[int] = ()
    ) -> TerminalTable:
        """Return the table for the terminal, with less space between columns if `tight`.

        The first `left` columns are aligned to the left; the columns numbered by `wrapped`
        may break their text into lines.
        """
        from rich import box
        from rich.table import Table as TerminalTable

        table = TerminalTable(
            title=self.title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1),
            collapse_padding=tight,
            pad_edge=not tight,
        )
        for i, column in enumerate(self.columns):
            side: Any = "left" if i < left else "right"
            # "fold" breaks a word that is too long, where rich would cut it.
            table.add_column(
                column.heading, justify=side, no_wrap=i not in wrapped, overflow="fold"
            )
        for cells in self.cells():
            table.add_row(*cells)
        return table


def escape_latex(text: str) -> str:
    """Return `text` with every character that LaTeX would read as a command escaped."""
    return "".join(_TEX.get(character, character) for character in text)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows with the columns of the first one; None becomes an empty field.

    Text that a spreadsheet would take for a formula gets a quote in front.
    """
    if not rows:
        raise ValueError(f"rows must not be empty: {path} would lose what it holds")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _inert(cell) for name, cell in row.items()} for row in rows)


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)  # a number as text is no formula
    except ValueError:
        return f"'{cell}"
    return cell


def _rounded(value: Any) -> Any:
    return float(f"{value:.15g}") if isinstance(value, float) else value  # 52.67, not 52.6700001
