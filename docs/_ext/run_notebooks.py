"""Run the notebooks of docs/notebooks: ``python docs/_ext/run_notebooks.py [--store] [NAME ...]``.

Each runs from top to bottom in a folder of its own; an error in a cell ends the run with 1. A
notebook whose metadata names packages that are not installed is skipped, with the reason. With
``--store`` the outputs are written back, without times and paths of this machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[1] / "notebooks"
#: Seconds for one cell; Ray can take minutes to start on a busy machine.
TIMEOUT = 600


def missing_packages(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the packages that a notebook needs and that are not installed."""
    needs = notebook.metadata.get("cvrcore", {}).get("needs", [])
    return [name for name in needs if importlib.util.find_spec(name) is None]


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells in an empty folder; the outputs are put into `notebook`."""
    root = str(FOLDER.parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}})
        client.execute()


def stored(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook as it goes into the repository: no times, no log lines."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Run the notebooks that are named, or all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="names without .ipynb; default: all")
    parser.add_argument("--store", action="store_true", help="write the outputs back")
    asked = parser.parse_args(arguments)
    failed = 0
    for name in asked.names or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        if missing := missing_packages(notebook):
            print(f"{path.name}: skipped, not installed: {', '.join(missing)}", flush=True)
            continue
        start = time.perf_counter()
        try:
            execute(notebook)
        except CellExecutionError as error:
            failed += 1
            print(f"{path.name}: FAILED\n{error}", flush=True)
            continue
        print(f"{path.name}: ran in {time.perf_counter() - start:.0f} s", flush=True)
        if asked.store:
            nbformat.write(stored(notebook), path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
