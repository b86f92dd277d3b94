"""The commands of ``cvrcore``, one file per subject; none imports torch by itself."""

from __future__ import annotations

import typer

from . import data, federation, methods, policies, reproduction, system, watch
from .errors import exit_code

__all__ = ["app", "exit_code"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train federations, compare how their clients are selected, reproduce the paper.",
)
app.command("run")(federation.run)
app.command("resume")(federation.resume)
app.command("compare")(federation.compare)
app.command("watch")(watch.watch)
app.command("reproduce")(reproduction.reproduce)
app.command("report")(reproduction.report)
app.add_typer(data.app, name="data")
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    system.bench
)
app.command("methods")(methods.methods)
app.command("policies")(policies.policies)
app.add_typer(system.config_app, name="config")
