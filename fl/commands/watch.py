"""``cvrcore watch``: a run in the browser while it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from .errors import clear_errors


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of the run (--out of cvrcore run).")],
    port: Annotated[
        int, typer.Option(help="Port of 127.0.0.1; 0 takes a free one.", min=0, max=65535)
    ] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page.")] = False,
) -> None:
    """Show a run live on a page of this machine, until Ctrl-C."""
    with clear_errors():
        from cvrcore.watch import Board, WatchServer

        from ..watching import RunFollower

        board = Board()
        follower = RunFollower(folder, board)
        follower.poll()
        try:
            with WatchServer(board, port) as server:
                typer.echo(f"watch {folder}: {server.url}")
                typer.echo("Ctrl-C stops the page, not the run.", err=True)
                if open_browser:
                    import webbrowser

                    webbrowser.open(server.url)
                while True:
                    time.sleep(follower.wait)
                    follower.poll()
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
