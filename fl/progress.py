"""Records of rounds in, a progress bar in the terminal out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .config import RunConfig
from .history import Record


@contextlib.contextmanager
def live_progress(
    config: RunConfig, done: int = 0, console: Console | None = None
) -> Iterator[Callable[[Record], None]]:
    """Show a bar with the latest metrics; yield the function to call after each round.

    `done` counts the rounds of a continued run. The default `console` is standard error, so
    that standard output has nothing but results.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
    )
    label = f"{config.method} on {config.data.dataset}, seed {config.seed}"
    with Progress(*columns, console=console or Console(stderr=True)) as bar:
        task = bar.add_task(label, total=config.rounds, completed=done, metrics="")

        def update(record: Record) -> None:
            if metrics := _metrics(record):
                bar.update(task, metrics=metrics)
            bar.update(task, completed=record["round"])

        yield update


def _metrics(record: Record) -> str:
    """Return the latest metrics; an empty string if this round has none."""
    for name in ("accuracy", "mse"):
        if record.get(name) is not None:
            loss = record.get("loss")
            tail = "" if loss is None else f", loss {loss:.3f}"
            return f"{name} {record[name]:.4f}{tail}"
    return "no client available" if record.get("skipped") else ""
