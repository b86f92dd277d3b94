"""Live progress of a run in the terminal."""

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
    """Show a bar with the latest metrics; yields what to call after each round.

    Parameters
    ----------
    config : RunConfig
    done : int
        Rounds that were there already.
    console : Console, optional
        Default: standard error, so that standard output stays clean for results.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
    )
    label = f"{config.method} on {config.data.dataset}, seed {config.seed}"
    with Progress(*columns, console=console or Console(stderr=True)) as bar:
        task = bar.add_task(label, total=config.rounds, completed=done, news="")

        def tell(record: Record) -> None:
            news = _news(record)
            if news:
                bar.update(task, news=news)
            bar.update(task, completed=record["round"])

        yield tell


def _news(record: Record) -> str:
    """Return the latest metrics; an empty string if this round has none."""
    for name in ("accuracy", "mse"):
        if record.get(name) is not None:
            loss = record.get("loss")
            tail = "" if loss is None else f", loss {loss:.3f}"
            return f"{name} {record[name]:.4f}{tail}"
    return "nobody available" if record.get("skipped") else ""
