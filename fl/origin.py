"""Where a run is made: commit, kind of machine, versions; no name and no path of the machine."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

import cvrcore

#: The checkout that holds this package, if it lies in one.
_ROOT = Path(__file__).resolve().parents[1]


@functools.cache
def origin() -> dict[str, str]:
    """Return commit (or version, outside a checkout), processor and Python of this process.

    A commit that ends in ``+`` had files that were changed and not committed.
    """
    return {
        "commit": _commit(_ROOT) or f"cvrcore {cvrcore.__version__}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def _commit(root: Path) -> str:
    if not (root / ".git").exists():  # not the commit of a project that installed the package
        return ""
    head = _git(root, "rev-parse", "--short=10", "HEAD")
    return head and head + "+" * bool(_git(root, "status", "--porcelain", "-uno"))


def _git(root: Path, *words: str) -> str:
    try:
        found = subprocess.run(
            ["git", "-C", str(root), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
