"""``cvrcore bench`` and ``cvrcore config``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .errors import clear_errors
from .settings import Json


def bench(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Every part: peers, roofline, growth, quality.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="Show what moved since this saved record.")
    ] = None,
    load: Annotated[
        Path | None, typer.Option(help="Run nothing: show, or compare, this saved record.")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Save the numbers here. Default: bench/results/.")
    ] = None,
    docs: Annotated[
        bool, typer.Option("--docs", help="Draw figures and fill docs/performance.md.")
    ] = False,
) -> None:
    """Run the benchmarks, or compare two runs of them; needs a checkout."""
    with clear_errors():
        root = Path(__file__).parents[2]
        if not (root / "bench" / "__main__.py").exists():
            raise ValueError("bench needs a checkout: clone the repository and run it there")
        for name, path in (("compare", compare), ("load", load)):
            if path is not None and not path.is_file():
                raise ValueError(f"{name} must be a saved record, got {path}: no such file")
        paths = {"--compare": compare, "--load": load, "--json": json_path}
        command = [sys.executable, "-m", "bench", *context.args]
        command += ["--full"] * full + ["--docs"] * docs
        for option, path in paths.items():
            if path is not None:  # relative to where the caller stands, not to the checkout
                command += [option, str(path.resolve())]
        raise typer.Exit(subprocess.run(command, cwd=root, check=False).returncode)


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
