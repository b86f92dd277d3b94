"""Mistakes of the user and of the machine in one line each, with an exit code.

A list in a message, such as that of addresses that failed, keeps one line for each item.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from cvrcore.integrations.extras import install_line

#: Extras that hold the optional packages; what is not named here is in ``fl``.
EXTRAS = {"matplotlib": "report", "starlette": "watch", "uvicorn": "watch"}
#: Errors of `fl` whose message is meant for the user.
CLEAR = ("ConfigError", "TraceError", "StoreError", "DataError", "EngineError")


def exit_code(app: Any, arguments: Sequence[str] | None = None) -> int:
    """Run an app and return its exit code; bad usage is one line on standard error."""
    try:
        code = app(arguments, prog_name="cvrcore", standalone_mode=False)
    except Exception as error:
        # Typer brings its own copy of click or takes the installed one: no class to name.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            return 0  # the help is on the screen
        typer.echo(f"error: {_one_line(error.format_message())}", err=True)
        return int(getattr(error, "exit_code", 2))
    return int(code or 0)


@contextlib.contextmanager
def clear_errors(
    out: Path | None = None,
    resume: str = "add --resume to continue the run",
    verbose: bool = False,
) -> Iterator[None]:
    """Say in one line what the user can put right; exit codes 2 and 130.

    Parameters
    ----------
    out : path, optional
        Folder that keeps what is done; without one an interruption cannot be resumed.
    resume : str
        How to resume.
    verbose : bool
        Show the log of rounds too, not its warnings alone.
    """
    try:
        with shown_log(logging.INFO if verbose else logging.WARNING):
            yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {resume}" if out else "interrupted", err=True)
        raise typer.Exit(130) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("fl", "cvrcore"):
            raise
        wanted = EXTRAS.get(str(error.name).partition(".")[0], "fl")
        _fail(f"{error.name} is missing: {install_line(wanted)}")
    except ImportError as error:
        if "pip install" not in str(error):  # `extras.require` says how to install
            raise
        _fail(str(error))
    except OSError as error:
        _fail(str(error))
    except TypeError as error:
        _fail(f"a setting is of the wrong type: {error}")
    except (ValueError, RuntimeError) as error:
        if type(error).__name__ not in CLEAR and not isinstance(error, ValueError):
            raise
        _fail(str(error))


class _Lines(logging.Handler):
    """Writes each warning once, and every line below a warning, to standard error."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            if text in self._warned:  # every seed of a comparison would repeat it
                return
            self._warned.add(text)
            text = f"{record.levelname.lower()}: {text}"
        typer.echo(text, err=True)


@contextlib.contextmanager
def shown_log(level: int) -> Iterator[None]:
    """Show the log of `cvrcore` and `fl` from `level` on, while a command runs."""
    handler = _Lines(level)
    loggers = [logging.getLogger(name) for name in ("cvrcore", "fl")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, old in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(old)


def _fail(message: str) -> None:
    typer.echo(f"error: {_one_line(message)}", err=True)
    sys.stderr.flush()
    raise typer.Exit(2) from None


def _one_line(text: str) -> str:
    """Return a text in one line; lines that are indented are items, and keep their line."""
    shown: list[str] = []
    for line in text.splitlines():
        words = " ".join(line.split())
        if line.startswith("  ") and shown:
            shown.append(f"  {words}")
        elif shown and not shown[-1].startswith("  "):
            shown[-1] += f" {words}"
        elif words:
            shown.append(words)
    return "\n".join(shown)
