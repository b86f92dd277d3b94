"""Optional packages: name and oldest version in, the module or an error with the pip line out."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shlex
from pathlib import Path
from types import ModuleType


def install_line(extra: str) -> str:
    """Return the pip line that installs the packages of an extra of cvrcore.

    It names the packages themselves, so that it needs no index that has cvrcore, and builds
    nothing again. In a checkout it adds the versions that are tested together.
    """
    try:
        declared = importlib.metadata.requires("cvrcore") or []
    except importlib.metadata.PackageNotFoundError:  # run from the source tree
        declared = []
    pattern = re.compile(rf"""(.*?)\s*;\s*extra\s*==\s*['"]{re.escape(extra)}['"]$""")
    wanted = [found[1] for line in declared if (found := pattern.match(line))]
    if not wanted:
        return f"pip install -c constraints.txt '.[{extra}]' in a checkout of cvrcore"
    constraints = Path(__file__).parents[2] / "constraints.txt"
    tested = ["-c", str(constraints)] if constraints.is_file() else []
    line = shlex.join(["pip", "install", *tested, *wanted])
    return f"{line} (the extra {extra!r} of cvrcore)"


def require(module: str, minimum: str, extra: str, distribution: str | None = None) -> ModuleType:
    """Import a framework, or say how to install it.

    Parameters
    ----------
    module : str
        The module to import.
    minimum : str
        The oldest supported version, such as ``"2.5"``.
    extra : str
        The extra of cvrcore that installs the framework.
    distribution : str, optional
        The name of the framework for pip, where it differs from `module`.

    Raises
    ------
    ImportError
        If the framework is missing or older than `minimum`; the message holds the pip line.
    """
    line = install_line(extra)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the framework is installed, one of its own dependencies is not
        raise ImportError(f"{module} is missing: {line}", name=module) from None
    version = importlib.metadata.version(distribution or module.partition(".")[0])
    if _numbers(version) < _numbers(minimum):
        raise ImportError(
            f"{module} must be at least {minimum}, got {version}: {line}", name=module
        )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``(1, 41, 0)`` of ``"1.41.0rc1"``."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
