"""``cvrcore bench`` and ``cvrcore config``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from .errors import clear_errors
from .settings import Json


def bench(context: typer.Context) -> None:
    """Run the benchmarks; needs a checkout. Arguments are passed on."""
    with clear_errors():
        root = Path(__file__).parents[2]
        if not (root / "bench" / "__main__.py").exists():
            raise ValueError("bench needs a checkout: clone the repository and run it there")
        done = subprocess.run([sys.executable, "-m", "bench", *context.args], cwd=root, check=False)
        raise typer.Exit(done.returncode)


def config(as_json: Json = False) -> None:
    """Show versions, backend, threads and BLAS, for a bug report."""
    import json

    import cvrcore

    text = cvrcore.show_config()
    if as_json:
        pairs = [line.partition(" ") for line in text.splitlines()]
        typer.echo(json.dumps({name: value for name, _, value in pairs}))
    else:
        typer.echo(text)
