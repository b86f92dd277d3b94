"""``cvrcore bench`` and ``cvrcore config``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .errors import clear_errors
from .settings import METHODS, Dataset, Json, Preset, option


def bench(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Every part: peers, roofline, growth, quality.")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="Show what moved since this saved record.")
    ] = None,
    load: Annotated[
        list[Path] | None,
        typer.Option(help="Run nothing: take this saved record; several are joined."),
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
        given = [("--compare", compare), *(("--load", path) for path in load or ())]
        for option, path in given:
            if path is not None and not path.is_file():
                raise ValueError(f"{option} must be a saved record, got {path}: no such file")
        command = [sys.executable, "-m", "bench", *context.args]
        command += ["--full"] * full + ["--docs"] * docs
        for option, path in [*given, ("--json", json_path)]:
            if path is not None:  # relative to where the caller stands, not to the checkout
                command += [option, str(path.resolve())]
        raise typer.Exit(subprocess.run(command, cwd=root, check=False).returncode)


config_app = typer.Typer(help="Versions of this installation; settings to start from.")


@config_app.callback(invoke_without_command=True)
def config(context: typer.Context, as_json: Json = False) -> None:
    """Show versions, backend, threads and BLAS, for a bug report; `init` writes settings."""
    if context.invoked_subcommand is not None:
        return
    import json

    import cvrcore

    text = cvrcore.show_config()
    if as_json:
        pairs = [line.partition(" ") for line in text.splitlines()]
        typer.echo(json.dumps({name: value for name, _, value in pairs}))
    else:
        typer.echo(text)


@config_app.command("init")
def init(
    dataset: Dataset = None,
    method: Annotated[
        str | None, option(f"Method: {METHODS}.", "--method", default="fedavg")
    ] = None,
    preset: Preset = None,
    out: Annotated[
        Path | None, option("File to write, if there is none yet.", "--out", default="the screen")
    ] = None,
) -> None:
    """Write a commented TOML file of every setting, for `cvrcore run --config`."""
    with clear_errors():
        from ..config_text import commented_toml
        from ..presets import make_config

        text = commented_toml(make_config(dataset, method or "fedavg", preset))
        if out is None:
            typer.echo(text, nl=False)
            return
        with out.open("x", encoding="utf-8") as file:  # never over settings that are there
            file.write(text)
        typer.echo(f"wrote {out}; cvrcore run --config {out}")
