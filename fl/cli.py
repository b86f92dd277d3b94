"""The command line: arguments to settings to `run`; no logic of its own."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from .settings import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train federations and compare how their clients are selected.",
)

FROM_PRESET = "from preset"


def _option(text: str, *names: str, default: str = FROM_PRESET) -> Any:
    return typer.Option(*names, help=text, show_default=default)


Dataset = Annotated[str | None, _option("Data set.", "--dataset", default="digits")]
Preset = Annotated[str | None, _option("paper or scripts.", "--preset", default="paper")]
Rounds = Annotated[int | None, _option("Rounds.", "--rounds")]
Clients = Annotated[int | None, _option("Clients in all, K.", "--clients")]
Select = Annotated[int | None, _option("Clients picked each round, P.", "--select", default="10")]
DataDir = Annotated[str | None, _option("Folder of data files.", "--data-dir", default="cache")]
Engine = Annotated[str | None, _option("auto, serial or processes.", "--engine", default="auto")]
Workers = Annotated[int | None, _option("Worker processes.", "--workers", default="cores")]
EvalEvery = Annotated[int | None, _option("Evaluate every n rounds.", "--eval-every", default="1")]
Target = Annotated[float | None, _option("Accuracy to time.", "--target", default="none")]
File = Annotated[
    Path | None, _option("TOML file of settings; arguments win.", "--config", default="none")
]
Change = Annotated[
    list[str] | None,
    _option("Any setting, as training.lr=0.1; may be repeated.", "--set", default="none"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


@app.command()
def run(
    dataset: Dataset = None,
    method: Annotated[str | None, _option("Method.", "--method", default="fedavg")] = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, _option("Seed of everything.", "--seed", default="0")] = None,
    clients: Clients = None,
    select: Select = None,
    data_dir: DataDir = None,
    engine: Engine = None,
    workers: Workers = None,
    eval_every: EvalEvery = None,
    target: Target = None,
    availability: Annotated[
        float | None, _option("Chance to be reachable.", "--availability", default="1")
    ] = None,
    trace: Annotated[
        str | None, _option("Trace file of availability.", "--trace", default="none")
    ] = None,
    dropout: Annotated[
        float | None, _option("Chance to drop out in mid-round.", "--dropout", default="0")
    ] = None,
    config: File = None,
    change: Change = None,
    out: Annotated[Path | None, _option("Folder of the run.", "--out", default="none")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one federation."""
    with _clear_errors(out):
        from rich.console import Console

        from .loop import run as run_federation
        from .presets import resolve
        from .tables import run_table

        settings = _changes(
            change,
            data__dataset=dataset,
            method=method,
            preset=preset,
            rounds=rounds,
            seed=seed,
            data__n_clients=clients,
            selection__n_select=select,
            data__data_dir=data_dir,
            engine__name=engine,
            engine__workers=workers,
            eval_every=eval_every,
            target=target,
            availability__probability=availability,
            availability__trace=trace,
            availability__dropout=dropout,
        )
        history = run_federation(
            resolve(_read(config), settings), out, resume=resume, progress=not quiet
        )
        if as_json:
            typer.echo(json.dumps(history.summary()))
        else:
            Console().print(run_table(history))


@app.command()
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Methods.", show_default="fedavg fedcvr-bolt"),
    ] = None,
    dataset: Dataset = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(help="Number of paired seeds, from 0.", min=1)] = 3,
    clients: Clients = None,
    select: Select = None,
    data_dir: DataDir = None,
    engine: Engine = None,
    workers: Workers = None,
    eval_every: EvalEvery = None,
    target: Target = None,
    config: File = None,
    change: Change = None,
    out: Annotated[
        Path | None, _option("Folder of runs, table and figure.", "--out", default="none")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over paired seeds: a table and a figure."""
    with _clear_errors(out, "the same command continues where it stopped"):
        from rich.console import Console

        from .compare import compare as compare_methods
        from .presets import resolve
        from .tables import comparison_table

        settings = _changes(
            change,
            data__dataset=dataset,
            preset=preset,
            rounds=rounds,
            data__n_clients=clients,
            selection__n_select=select,
            data__data_dir=data_dir,
            engine__name=engine,
            engine__workers=workers,
            eval_every=eval_every,
            target=target,
        )
        file = _read(config)
        configs = {
            method: resolve(file, {**settings, "method": method})
            for method in methods or ["fedavg", "fedcvr-bolt"]
        }
        comparison = compare_methods(configs, range(seeds), out, progress=not quiet)
        rows = comparison.table()
        written = comparison.write(out) if out else []
        if as_json:
            typer.echo(json.dumps(rows))
            return
        first = next(iter(configs.values()))
        title = f"{first.data.dataset}, {first.rounds} rounds, {seeds} seeds; ± 2 std, gain ± 2 se"
        Console().print(comparison_table(rows, title))
        for path in written:
            typer.echo(f"wrote {path}")


def _changes(texts: list[str] | None, **arguments: Any) -> dict[str, Any]:
    """Return the settings that were given, in the form of `RunConfig.replace`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    for text in texts or []:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set must look like training.lr=0.1, got {text!r}")
        try:
            given[path.strip().replace(".", "__")] = json.loads(value)
        except json.JSONDecodeError:
            given[path.strip().replace(".", "__")] = value.strip()  # a bare word
    return given


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


@contextlib.contextmanager
def _clear_errors(
    out: Path | None, resume: str = "add --resume to continue the run"
) -> Iterator[None]:
    """Say in one line what the user can put right; exit codes 2 and 130."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {resume}" if out else "interrupted", err=True)
        raise typer.Exit(130) from None
    except ModuleNotFoundError as error:
        wanted = {"matplotlib": "report"}.get(str(error.name), "fl")
        typer.echo(f"{error.name} is missing: pip install 'cvrcore[{wanted}]'", err=True)
        raise typer.Exit(2) from None
    except (ValueError, RuntimeError) as error:
        known = ("ConfigError", "TraceError", "StoreError", "DataError", "EngineError")
        if type(error).__name__ not in known and not isinstance(error, ValueError):
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    app()
