"""``cvrcore run`` and ``cvrcore compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .errors import clear_errors
from .settings import (
    METHODS,
    Change,
    Clients,
    DataDir,
    Dataset,
    Device,
    Engine,
    EvalEvery,
    File,
    Json,
    Model,
    Preset,
    Quiet,
    RayAddress,
    Rounds,
    Select,
    ServerLr,
    Target,
    Track,
    Verbose,
    Workers,
    brought,
    changes,
    option,
    read_file,
)

if TYPE_CHECKING:
    from ..history import History


def run(
    dataset: Dataset = None,
    model: Model = None,
    method: Annotated[
        str | None,
        option(f"Method: {METHODS}. Or METHOD+POLICY.", "--method", default="fedavg"),
    ] = None,
    policy: Annotated[
        str | None,
        option("Policy that picks, if not the method's own.", "--policy", default="the method's"),
    ] = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, option("Seed of everything.", "--seed", default="0")] = None,
    clients: Clients = None,
    select: Select = None,
    data_dir: DataDir = None,
    device: Device = None,
    engine: Engine = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    server_lr: ServerLr = None,
    eval_every: EvalEvery = None,
    target: Target = None,
    availability: Annotated[
        float | None, option("Chance to be reachable.", "--availability", default="1")
    ] = None,
    trace: Annotated[
        str | None, option("Trace file of availability.", "--trace", default="none")
    ] = None,
    dropout: Annotated[
        float | None, option("Chance to drop out in mid-round.", "--dropout", default="0")
    ] = None,
    config: File = None,
    change: Change = None,
    out: Annotated[Path | None, option("Folder of the run.", "--out", default="none")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    track: Track = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings as TOML; run nothing.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train one federation; without arguments, the embedded digits."""
    options = locals()
    with clear_errors(out, verbose=verbose):
        if resume and out is None:
            raise ValueError("--resume must go with --out, the folder of the run")
        from ..presets import resolve

        if policy is not None:
            method = f"{method or 'fedavg'}+{policy}"
        own = brought(options)
        resolved = resolve(read_file(config), changes(change, {**options, "method": method}))
        if print_config:
            from ..config_text import config_toml

            text = json.dumps(resolved.to_dict()) if as_json else config_toml(resolved).rstrip()
            typer.echo(text)
            return
        from ..loop import run as run_federation

        history = run_federation(
            resolved,
            out,
            resume=resume,
            progress=not (quiet or verbose),
            track=track or (),
            **own,
        )
        _show(history, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    rounds: Annotated[
        int | None, option("Rounds in all, the ones done included.", "--rounds", default="as begun")
    ] = None,
    dataset: Annotated[
        str | None,
        option("package.module:federation, if the run had one.", "--dataset", default="none"),
    ] = None,
    model: Annotated[
        str | None, option("package.module:factory, if the run had one.", "--model", default="none")
    ] = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue the run in a folder, by the settings that the folder holds."""
    options = {"dataset": dataset, "model": model}
    with clear_errors(folder, "the same command continues the run", verbose=verbose):
        from ..resuming import resume as resume_run

        own = brought(options)
        for name, text in options.items():
            if text is not None and ":" not in text and text != "own":
                raise ValueError(f"--{name} must look like package.module:name, got {text!r}")
        shown = not (quiet or verbose)
        done = resume_run(folder, rounds, progress=shown, track=track or (), **own)
        _show(done, as_json)


def _show(history: History, as_json: bool) -> None:
    from rich.console import Console

    from ..experiments.text_tables import run_table

    if as_json:
        typer.echo(json.dumps(history.summary()))
        return
    Console().print(run_table(history))
    if note := history.warmup_note():
        typer.echo(note)


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Methods: {METHODS}. Or METHOD+POLICY.", show_default="fedavg fedcvr-bolt"
        ),
    ] = None,
    dataset: Dataset = None,
    model: Model = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(help="Number of paired seeds, from 0.", min=1)] = 3,
    clients: Clients = None,
    select: Select = None,
    data_dir: DataDir = None,
    device: Device = None,
    engine: Engine = None,
    workers: Workers = None,
    ray_address: RayAddress = None,
    server_lr: ServerLr = None,
    eval_every: EvalEvery = None,
    target: Target = None,
    config: File = None,
    change: Change = None,
    out: Annotated[
        Path | None, option("Folder of runs, table and figure.", "--out", default="none")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over paired seeds: a table and a figure."""
    options = locals()
    with clear_errors(out, "the same command continues where it stopped"):
        from rich.console import Console

        from ..experiments.compare import compare as compare_methods
        from ..experiments.statistics import seeds_text
        from ..experiments.text_tables import comparison_table
        from ..presets import resolve

        own = brought(options)
        settings = changes(change, options)
        file = read_file(config)
        configs = {
            method: resolve(file, {**settings, "method": method})
            for method in methods or ["fedavg", "fedcvr-bolt"]
        }
        comparison = compare_methods(configs, range(seeds), out, progress=not quiet, **own)
        rows = comparison.table()
        written = comparison.write(out) if out else []
        if as_json:
            typer.echo(json.dumps(rows))
            return
        first = next(iter(configs.values()))
        title = f"{first.data.dataset}, {first.rounds} rounds, {seeds_text(seeds)}; ± 2 std"
        Console().print(comparison_table(rows, title))
        for line in comparison.notes():
            typer.echo(line)
        for path in written:
            typer.echo(f"wrote {path}")
