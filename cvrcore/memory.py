"""How much memory there is, how much is held, and how to say so."""

from __future__ import annotations

import os
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

import numpy as np

UNLIMITED: Final = 1 << 62


def free_memory() -> int:
    """Return the bytes that this process may still take, or a very large number if unknown."""
    found = [UNLIMITED]
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.startswith("MemAvailable"))
        found.append(1024 * int(line.split()[1]))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        if "SC_AVPHYS_PAGES" in names:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:  # a container's own limit
        allowed = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        found.append(max(int(allowed) - int(used), 0))
    except (OSError, ValueError):
        pass
    return min(found)


def show_bytes(count: float) -> str:
    """Return a size for people: three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def held_bytes(thing: object) -> int:
    """Return the bytes of all arrays that an object holds, in whatever depth.

    Attributes, and what lists, tuples and dicts contain. Memory that several arrays share
    counts once, and whole, as long as one of them is there.

    Examples
    --------
    >>> numbers = np.zeros(100)
    >>> held_bytes({"all": numbers, "some": [numbers[:10]]})
    800
    """
    owned: dict[int, int] = {}
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            while isinstance(one.base, np.ndarray):
                one = one.base
            owned[id(one)] = one.nbytes
        elif isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif not isinstance(one, (type, FunctionType, ModuleType)):
            waiting.extend(getattr(one, "__dict__", {}).values())
    return sum(owned.values())
