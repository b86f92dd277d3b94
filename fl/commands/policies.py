"""``cvrcore policies``."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import clear_errors
from .settings import Json

if TYPE_CHECKING:
    from cvrcore import Selector


Cite = Annotated[
    str | None, typer.Option("--cite", metavar="NAME", help="Print BibTeX of a policy's sources.")
]


def policies(as_json: Json = False, cite: Cite = None) -> None:
    """List the policies there are, what each needs, and registered ones that cannot serve."""
    with clear_errors():
        if cite is not None:
            from cvrcore.selectors.citations import bibtex

            typer.echo(bibtex(cite))
            return
        rows = _rows()
        if as_json:
            typer.echo(json.dumps(rows))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table("policy", "from", "what it does", "needs", "size of a round")
        for row in rows:
            what = row["error"] or row["summary"]
            table.add_row(row["name"], row["from"], what, row["needs"], row["size"])
        Console().print(table)
        typer.echo("A page each: docs/policies/NAME.md. BibTeX: cvrcore policies --cite NAME.")
        if any(row["error"] for row in rows):
            raise typer.Exit(1)


def _rows() -> list[dict[str, str | None]]:
    from cvrcore.selectors import BUILT_IN, PolicyError, policy_class
    from cvrcore.selectors.registry import load_plugin, plugins

    rows: list[dict[str, str | None]] = [
        {"name": name, "from": "cvrcore", "error": None, **_described(policy_class(name))}
        for name in BUILT_IN
    ]
    for name, group in itertools.groupby(plugins(), key=lambda plugin: plugin.name):
        named = list(group)
        origin = ", ".join(plugin.distribution for plugin in named)
        row: dict[str, str | None] = {"name": name, "from": origin, "error": None}
        row |= dict.fromkeys(("summary", "needs", "size"))
        try:
            row |= _described(load_plugin(named))
        except PolicyError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


def _described(cls: type[Selector]) -> dict[str, str | None]:
    """Return what a policy does and what it declares, of its default options."""
    needs = ", ".join(sorted(cls.needs)).replace("_", " ")
    return {"summary": _summary(cls), "needs": needs or "nothing", "size": cls.size_rule}


def _summary(cls: type) -> str:
    line = (inspect.getdoc(cls) or "").partition("\n")[0]
    return re.sub(r" \[\d+\]_|:math:", "", line)  # a table has no place for references
