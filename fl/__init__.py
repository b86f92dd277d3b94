"""Federations in PyTorch: data, local training, algorithms, and the loop around them."""

from __future__ import annotations

import importlib
from typing import Any

#: Public names and where they live; imported when asked for, so that ``import fl`` is light.
_PUBLIC = {
    "run": "loop",
    "resume": "resuming",
    "Metric": "objectives",
    "History": "history",
    "RunConfig": "config",
    "make_config": "presets",
    "METHODS": "presets",
    "load_federation": "data",
    "Federation": "data",
}

__all__ = [
    "METHODS",
    "Federation",
    "History",
    "Metric",
    "RunConfig",
    "load_federation",
    "make_config",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    if name == "data":
        return importlib.import_module(f"{__name__}.data")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
