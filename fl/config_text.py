"""Settings in, TOML out: as they are, or as a commented file to start from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .changes import paths_of
from .config import RunConfig
from .meanings import TABLES, meaning

_MARK = "\x7f"  # the one character that JSON writes and TOML refuses


def toml_value(value: Any) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {toml_value(item)}" for name, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(_MARK, "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"value must be a string, number, boolean, list or table, got {value!r}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def config_toml(config: RunConfig) -> str:
    """Return every setting as TOML, which ``--config`` reads again; None is left out.

    Examples
    --------
    >>> print(config_toml(RunConfig()).splitlines()[0])
    method = "fedavg"
    """
    return "\n".join(_lines(config, commented=False)) + "\n"


def commented_toml(config: RunConfig) -> str:
    """Return a file to start from: every setting with its meaning and its value.

    The method and the data set are set. Every other line is a comment that holds the value
    that counts without it, ``?`` where it is not set: remove the ``#`` and change the value.
    """
    head = [
        "# Settings of a run: cvrcore run --config FILE",
        "# A line that starts with '#' shows what holds without it; remove the '#' to change it.",
        "# '?' stands for a setting that is not set.",
        "",
    ]
    return "\n".join([*head, *_lines(config, commented=True)]) + "\n"


def _lines(config: RunConfig, commented: bool) -> Iterator[str]:
    values, table = config.to_dict(), ""
    for path in paths_of(RunConfig):
        owner = ".".join(path[:-1])
        if owner != table:
            table = owner
            yield ""
            if commented:
                yield f"# {TABLES.get(table, table)}"
            yield f"[{table}]"
        value: Any = values
        for name in path:
            value = value[name]
        yield from _setting(path, value, commented)


def _setting(path: tuple[str, ...], value: Any, commented: bool) -> Iterator[str]:
    name, chosen = path[-1], path in (("method",), ("data", "dataset"))
    if not commented:
        if value is not None and value != {}:
            yield f"{name} = {toml_value(value)}"
        return
    text = meaning(RunConfig, path)
    if value is None:
        yield f"# {name} = ?  # {text}"
    else:
        yield f"{'' if chosen else '# '}{name} = {toml_value(value)}  # {text}"
