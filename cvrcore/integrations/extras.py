"""Optional frameworks: found in the wanted version, or an error that says what to run."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from types import ModuleType


def require(module: str, minimum: str, extra: str, distribution: str | None = None) -> ModuleType:
    """Import a framework, or say how to get it.

    Parameters
    ----------
    module : str
        What to import.
    minimum : str
        The oldest version that will do, such as ``"2.5"``.
    extra : str
        The extra of cvrcore that brings it.
    distribution : str, optional
        Its name for pip, where that differs from `module`.

    Raises
    ------
    ImportError
        If it is missing or older than `minimum`; the message holds the pip line.
    """
    line = f"pip install 'cvrcore[{extra}]'"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the framework is there, something that it needs is not
        raise ImportError(f"{module} is missing: {line}", name=module) from None
    version = importlib.metadata.version(distribution or module.partition(".")[0])
    if _numbers(version) < _numbers(minimum):
        raise ImportError(
            f"{module} must be at least {minimum}, got {version}: {line} --upgrade", name=module
        )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``(1, 41, 0)`` of ``"1.41.0rc1"``."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
