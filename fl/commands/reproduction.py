"""``cvrcore reproduce`` and ``cvrcore report``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from .errors import clear_errors
from .settings import DataDir, Json, Preset, Quiet, Workers, option, read_file


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="Of the paper: classification, kernels, regression, participation, ablations, "
            "theory, overview; all: these seven. Ours: scripts, ceiling, policies, devices, map, "
            "beyond, holdout, balanced-choice, balanced, variance, step-error, leakage."
        ),
    ],
    preset: Preset = None,
    dataset: Annotated[
        str | None,
        option("mnist, cifar10, cifar100, or another.", "--dataset", default="mnist"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        option("Only these, as fedavg,oort; may be repeated.", "--methods", default="all"),
    ] = None,
    rows: Annotated[
        list[str] | None,
        option(
            'Only rows that fit this pattern, as "K=1000*"; may be repeated.',
            "--rows",
            default="all",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        option("Only columns that fit; may be repeated.", "--columns", default="all"),
    ] = None,
    seeds: Annotated[
        int | None,
        option(
            "Number of paired seeds.",
            "--seeds",
            default="the experiment's own; most 3 or 5, regression 20",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        option("Rounds.", "--rounds", default="the experiment's own; most: MNIST 200, others 100"),
    ] = None,
    quick: Annotated[
        bool | None,
        typer.Option("--quick", help="30 rounds, 10 of warm-up, 2 seeds: minutes."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all experiments.")] = Path("runs"),
    data_dir: DataDir = None,
    workers: Workers = None,
    config: Annotated[
        Path | None,
        option("TOML file of these options; arguments win.", "--config", default="none"),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce a table or figure, the paper's or ours; finished runs are not run again."""
    options = locals()
    with clear_errors(out, "the same command continues where it stopped"):
        from ..experiments import Request
        from ..experiments import reproduce as run_experiment
        from ..experiments.results import read_results
        from ..experiments.text_tables import print_experiment

        names = tuple(name for text in methods or () for name in text.split(",")) or None
        asked = {field.name: options[field.name] for field in dataclasses.fields(Request)}
        asked["methods"] = names
        asked |= {name: tuple(options[name] or ()) or None for name in ("rows", "columns")}
        given = {name: value for name, value in asked.items() if value is not None}
        request = Request.of(read_file(config), given)
        outcomes = run_experiment(
            experiment,
            request,
            out,
            progress=not quiet,
            tell=lambda text: typer.echo(text, err=True),
        )
        if as_json:
            found = [
                {"experiment": o.name, "quick": request.quick, "path": str(o.path), "rows": o.rows}
                for o in outcomes
            ]
            typer.echo(json.dumps(found))
            return
        for outcome in outcomes:
            print_experiment(read_results(outcome.path.parent), outcome.rows)
            for path in [*outcome.figures, outcome.path]:
                typer.echo(f"wrote {path}")


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of experiments, comparisons or runs.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about runs."""
    with clear_errors():
        from ..experiments import build

        path = build(list(runs), out)
        typer.echo(json.dumps({"path": str(path)}) if as_json else f"wrote {path}")
