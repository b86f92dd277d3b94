"""``cvrcore policies``."""

from __future__ import annotations

import inspect
import itertools
import json
import re

import typer

from .errors import clear_errors
from .settings import Json


def policies(as_json: Json = False) -> None:
    """List the policies there are, and registered ones that cannot serve."""
    with clear_errors():
        rows = _rows()
        if as_json:
            typer.echo(json.dumps(rows))
            return
        from rich.console import Console
        from rich.table import Table

        table = Table("policy", "from", "what it does")
        for row in rows:
            table.add_row(row["name"], row["from"], row["error"] or row["summary"])
        Console().print(table)
        if any(row["error"] for row in rows):
            raise typer.Exit(1)


def _rows() -> list[dict[str, str | None]]:
    from cvrcore.selectors import BUILT_IN, PolicyError, policy_class
    from cvrcore.selectors.registry import load_plugin, plugins

    rows: list[dict[str, str | None]] = [
        {"name": name, "from": "cvrcore", "summary": _summary(policy_class(name)), "error": None}
        for name in BUILT_IN
    ]
    for name, group in itertools.groupby(plugins(), key=lambda plugin: plugin.name):
        named = list(group)
        origin = ", ".join(plugin.distribution for plugin in named)
        row: dict[str, str | None] = {"name": name, "from": origin, "summary": None, "error": None}
        try:
            row["summary"] = _summary(load_plugin(named))
        except PolicyError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


def _summary(cls: type) -> str:
    line = (inspect.getdoc(cls) or "").partition("\n")[0]
    return re.sub(r" \[\d+\]_|:math:", "", line)  # a table has no place for references
