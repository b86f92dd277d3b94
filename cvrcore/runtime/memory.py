"""Memory: a process or an object in, bytes free or held out, as a number or as text."""

from __future__ import annotations

import os
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

import numpy as np

UNLIMITED: Final = 1 << 62


def free_memory() -> int:
    """Return the bytes that this process may still allocate; UNLIMITED if unknown."""
    found = [UNLIMITED]
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.startswith("MemAvailable"))
        found.append(1024 * int(line.split()[1]))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        if "SC_AVPHYS_PAGES" in names:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:  # the limit of a container
        allowed = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        found.append(max(int(allowed) - int(used), 0))
    except (OSError, ValueError):
        pass
    return min(found)


def show_bytes(count: float) -> str:
    """Return a size as text: three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def held_bytes(thing: object) -> int:
    """Return the bytes of all arrays that an object holds, at any depth.

    The search follows attributes, lists, tuples and dicts. Memory shared by several arrays
    counts once; a view counts as the whole array behind it.

    Examples
    --------
    >>> numbers = np.zeros(100)
    >>> held_bytes({"all": numbers, "some": [numbers[:10]]})
    800
    """
    owned: dict[int, int] = {}
    seen: set[int] = set()
    stack = [thing]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, np.ndarray):
            while isinstance(item.base, np.ndarray):
                item = item.base
            owned[id(item)] = item.nbytes
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        elif not isinstance(item, (type, FunctionType, ModuleType)):
            stack.extend(getattr(item, "__dict__", {}).values())
    return sum(owned.values())
