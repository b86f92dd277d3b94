"""A table of values, and its three forms: text for a page, CSV, LaTeX."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ABSENT = "–"
MINUS = "−"

_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "α": r"$\alpha$",
    "₀": r"$_0$",
    "₁": r"$_1$",
    "…": r"\dots{}",
    MINUS: "$-$",
    ABSENT: "--",
}


@dataclasses.dataclass(frozen=True)
class Column:
    """How one column is named and printed.

    Attributes
    ----------
    name : str
        Heading of the CSV file.
    heading : str
        Heading on the page.
    digits : int or None
        Decimals of numbers; None for text.
    scale : float
        Factor of numbers: 100 turns shares into percent.
    sign : bool
        Print a plus where there is no minus.
    strong : bool
        The column one came for.
    """

    name: str
    heading: str
    digits: int | None = None
    scale: float = 1.0
    sign: bool = False
    strong: bool = False

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers."""
        return self.digits is not None

    def text(self, value: Any) -> str:
        """Return `value` as printed; words pass, None is a dash."""
        if value is None:
            return ABSENT
        if self.digits is None or isinstance(value, str):
            return str(value)
        number = f"{self.scale * value:{'+' if self.sign else ''}.{self.digits}f}"
        return number.replace("-", MINUS)

    def raw(self, value: Any) -> Any:
        """Return `value` for a CSV file: all digits, in the printed unit."""
        if value is None or isinstance(value, str) or self.scale == 1.0:
            return value
        return float(f"{self.scale * value:.15g}")  # 52.67, not 52.67000000000001


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of values under columns.

    Attributes
    ----------
    name : str
        Of its files.
    title, caption : str
    columns : sequence of Column
        The first groups the rows: neighbours that share it belong together.
    rows : sequence of dict
        By the names of the columns; a name left out is None.
    quick : bool
        Whether the numbers come from shortened runs; every form says so.
    """

    name: str
    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    quick: bool = False

    def groups(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Return neighbouring rows that share the first column, with its text."""
        first = self.columns[0]
        found: list[tuple[str, list[dict[str, Any]]]] = []
        for row in self.rows:
            text = first.text(row.get(first.name))
            if not found or found[-1][0] != text:
                found.append((text, []))
            found[-1][1].append(row)
        return found

    def write(self, folder: Path) -> list[Path]:
        """Write ``<name>.csv`` and ``<name>.tex`` into `folder`; return their paths."""
        paths = [folder / f"{self.name}.csv", folder / f"{self.name}.tex"]
        with paths[0].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([column.name for column in self.columns] + ["quick"] * self.quick)
            for row in self.rows:
                values = [column.raw(row.get(column.name)) for column in self.columns]
                writer.writerow(values + ["quick"] * self.quick)
        paths[1].write_text(self.latex(), encoding="utf-8")
        return paths

    def latex(self) -> str:
        r"""Return a ``table`` environment; it needs ``\usepackage{booktabs}``."""
        spec = "".join("r" if column.numeric else "l" for column in self.columns)
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
                rest = [column.text(row.get(column.name)) for column in self.columns[1:]]
                cells = [text if i == 0 else "", *rest]
                lines.append(" & ".join(map(escape_latex, cells)) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        return "\n".join(lines)


def escape_latex(text: str) -> str:
    """Return `text` with every character that LaTeX would read as a command escaped."""
    return "".join(_TEX.get(character, character) for character in text)
