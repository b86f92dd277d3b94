"""The command ``cvrcore``: its entry point; the commands are in `fl.commands`."""

from __future__ import annotations

import sys
from typing import Any


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Parameters
    ----------
    arguments : list of str, optional
        Default: those of the process.
    """
    try:
        from .commands import app, exit_code
    except ModuleNotFoundError as error:  # typer or rich: no torch is imported here
        from cvrcore.integrations.extras import install_line

        print(f"error: {error.name} is missing: {install_line('fl')}", file=sys.stderr)
        sys.exit(2)
    sys.exit(exit_code(app, arguments))


def __getattr__(name: str) -> Any:
    if name == "app":
        from .commands import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    main()
