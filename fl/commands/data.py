"""``cvrcore data``: which data sets there are, and whether their files are here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .errors import clear_errors
from .settings import DATASETS, DataDir, Json

app = typer.Typer(no_args_is_help=True, help="Data sets: list, fetch, check.")

Name = Annotated[str, typer.Argument(help=f"Data set: {DATASETS}.")]


@app.command("list")
def show(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and whether their files are on this machine."""
    with clear_errors():
        from rich.console import Console
        from rich.table import Table

        from ..data import DATASETS, find_files

        rows = []
        for name, data_set in DATASETS.items():
            here = data_set.source is None or find_files(name, data_dir) is not None
            state = "embedded" if data_set.source is None else "here" if here else "missing"
            rows.append({"name": name, "title": data_set.title, "files": state})
        if as_json:
            typer.echo(json.dumps(rows))
            return
        table = Table("name", "files", "title", box=None)
        for row in rows:
            table.add_row(row["name"], row["files"], row["title"])
        Console().print(table)


@app.command()
def fetch(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Make sure that the files of a data set are on this machine."""
    with clear_errors():
        from ..data import fetch as fetch_files

        files = {key: str(path) for key, path in fetch_files(name, data_dir).items()}
        if as_json:
            typer.echo(json.dumps(files))
            return
        for path in files.values():
            typer.echo(path)
        if not files:
            typer.echo(f"{name} needs no file")


@app.command()
def check(name: Name, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Compare the files of a data set with their published md5; exit code 2 if they differ."""
    with clear_errors():
        from ..data import check_files

        checks = check_files(name, data_dir)
        if as_json:
            rows = [
                {
                    "name": c.name,
                    "path": None if c.path is None else str(c.path),
                    "status": c.status,
                    "detail": c.detail,
                }
                for c in checks
            ]
            typer.echo(json.dumps(rows))
        else:
            for c in checks:
                typer.echo(f"{c.status:8} {c.name} {c.detail}".rstrip())
            if not checks:
                typer.echo(f"{name} needs no file")
        if any(c.status != "ok" for c in checks):
            raise typer.Exit(2)
