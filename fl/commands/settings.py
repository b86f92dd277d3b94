"""Options that several commands share, and how they become settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import ConfigError

MAX_SIZE = 1 << 16  # of a file of settings, in bytes; parsers take long over nonsense


def option(text: str, *names: str, default: str) -> Any:
    """Return an option whose default is said in words: its real one is "not given"."""
    return typer.Option(*names, help=text, show_default=default)


DATASETS = (
    "digits, mnist, fashion-mnist, cifar10, cifar100, synthetic, regression, shakespeare or adult"
)
METHODS = (
    "fedavg; a policy (fedcvr-bolt, oort, pivotal, ...); a training algorithm (fedprox, scaffold, "
    "ifca, ...); a server step (fedavg-averaged, fedadam, ...); remembered updates (fedavg-memory, "
    "balanced-memory, cvr-steady, ...); a variant with one part changed (fedcvr-bolt-mass, ...). "
    "`cvrcore methods` lists all"
)
Dataset = Annotated[
    str | None,
    option(
        f"Data set: {DATASETS}; one of an installed package; or package.module:federation.",
        "--dataset",
        default="digits",
    ),
]
Model = Annotated[
    str | None,
    option(
        "Model: mlp, cnn, logistic or linear; one of an installed package; or "
        "package.module:factory.",
        "--model",
        default="the data set's",
    ),
]
Device = Annotated[str | None, option("cpu, cuda, cuda:1, mps or auto.", "--device", default="cpu")]
Preset = Annotated[
    str | None,
    option(
        "Settings of the paper's text (paper) or of its authors' scripts (scripts).",
        "--preset",
        default="paper",
    ),
]
Rounds = Annotated[
    int | None,
    option("Rounds.", "--rounds", default="MNIST 200, others 100; preset scripts 200"),
]
Clients = Annotated[int | None, option("Clients in all, K.", "--clients", default="100; digits 50")]
Select = Annotated[int | None, option("Clients picked each round, P.", "--select", default="10")]
DataDir = Annotated[
    str | None, option("Folder of data files.", "--data-dir", default="$CVRCORE_DATA, then cache")
]
Engine = Annotated[
    str | None, option("auto, serial, processes, ray or flower.", "--engine", default="auto")
]
RayAddress = Annotated[
    str | None,
    option(
        "Ray cluster of --engine ray: auto or HOST:PORT.",
        "--ray-address",
        default="$RAY_ADDRESS, then one of its own",
    ),
]
Workers = Annotated[int | None, option("Worker processes.", "--workers", default="one per core")]
EvalEvery = Annotated[int | None, option("Evaluate every n rounds.", "--eval-every", default="1")]
ServerLr = Annotated[
    float | None,
    option(
        "Server learning rate (server step): the factor on the aggregated update.",
        "--server-lr",
        default="1; fedadam, fedyogi 0.01; at most 3 if adaptive, 8 if averaged",
    ),
]
Target = Annotated[
    float | None, option("Report the first round with this accuracy.", "--target", default="none")
]
File = Annotated[
    Path | None,
    option("TOML (or JSON) file of settings; arguments win.", "--config", default="none"),
]
Change = Annotated[
    list[str] | None,
    option("Any setting, as training.lr=0.1; may be repeated.", "--set", default="none"),
]
Track = Annotated[
    list[str] | None,
    option(
        "Log rounds by tensorboard, mlflow, wandb, csv or details (for cvrcore watch); may be "
        "repeated.",
        "--track",
        default="none",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="A line per round, who was picked and by what; no bar.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


#: The setting of each option that is not called like its setting.
_SETTING_OF = {
    "dataset": "data__dataset",
    "clients": "data__n_clients",
    "select": "selection__n_select",
    "data_dir": "data__data_dir",
    "engine": "engine__name",
    "workers": "engine__workers",
    "ray_address": "engine__address",
    "availability": "availability__probability",
    "trace": "availability__trace",
    "dropout": "availability__dropout",
    "server_lr": "server__lr",
    "device": "training__device",
}
_SAME_NAME = ("method", "model", "preset", "rounds", "seed", "eval_every", "target")


def changes(texts: list[str] | None, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings that were given, in the form of `fl.RunConfig.replace`.

    `texts` are the values of ``--set``. Options of the command that are no settings
    are left out.
    """
    names = {**_SETTING_OF, **{name: name for name in _SAME_NAME}}
    known = {names[name]: value for name, value in (options or {}).items() if name in names}
    given = {name: value for name, value in known.items() if value is not None}
    for text in texts or []:
        path, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set must look like training.lr=0.1, got {text!r}")
        try:
            given[path.strip().replace(".", "__")] = json.loads(value)
        except json.JSONDecodeError:
            given[path.strip().replace(".", "__")] = value.strip()  # a bare word
    return given


def brought(options: dict[str, Any]) -> dict[str, Any]:
    """Return ``federation`` and ``model`` of import paths on the command line.

    They are taken out of `options`: settings name no code.
    """
    from ..plugins import OWN, import_path

    found = {}
    for name, argument in (("dataset", "federation"), ("model", "model")):
        text = options.get(name)
        if text is not None and ":" in text:
            found[argument] = import_path(text, f"--{name}")
            options[name] = OWN if name == "dataset" else None
    return found


def read_file(path: Path | None) -> dict[str, Any]:
    """Return the settings of a TOML file, or of a run's ``config.json``."""
    if path is None:
        return {}
    try:
        if path.stat().st_size > MAX_SIZE:
            raise ValueError(f"it must be at most {MAX_SIZE} bytes")
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold a table of settings")
    return found
