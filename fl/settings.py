"""Settings from nested plain values: types are checked, mistakes are named."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal


class ConfigError(ValueError):
    """A setting that does not exist, or a value that it cannot take."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def look_up(name: str, table: Mapping[str, Any], what: str, listed: str = "") -> Any:
    """Return ``table[name]``; ConfigError names the nearest key, and the known ones.

    Where the keys are many, `listed` is the command that lists them.
    """
    if name not in table:
        if listed:
            hint = nearest(name, table) or ";"
            raise ConfigError(
                f"{what} must be a known one, got {name!r}{hint} `{listed}` lists all"
            )
        known = ", ".join(table)
        raise ConfigError(f"{what} must be one of {known}; got {name!r}{nearest(name, table)}")
    return table[name]


def unknown(name: str, known: Iterable[str], where: str) -> str:
    """Return the message for a setting that does not exist."""
    prefix = f"{where}." if where else ""
    return f"{prefix}{name} is not a setting{nearest(name, known)}"


_HINTS: dict[type[Any], Mapping[str, Any]] = {}


def hints_of(cls: type[Any]) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass; resolving them anew takes milliseconds."""
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def build(
    cls: type[Any],
    values: Any,
    where: str = "",
    advise: Callable[[tuple[str, ...]], str] | None = None,
) -> Any:
    """Build a dataclass, and those inside it, from nested plain values.

    `advise` returns the message for the path of a key that does not exist.

    Raises
    ------
    ConfigError
        For a key that does not exist and for a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where or 'config'} must be a table of settings, got {values!r}")
    hints = hints_of(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(
                unknown(str(name), fields, where)
                if advise is None
                else advise((*filter(None, where.split(".")), str(name)))
            )
        path = f"{where}.{name}" if where else name
        if dataclasses.is_dataclass(hints[name]):
            arguments[name] = build(typing.cast(type[Any], hints[name]), value, path, advise)
        else:
            arguments[name] = _typed(value, hints[name], path)
    return cls(**arguments)


def _typed(value: Any, hint: Any, path: str) -> Any:
    """Return `value` if it has the type of `hint`; whole numbers pass as floats."""
    origin = typing.get_origin(hint)
    kinds = typing.get_args(hint) if origin is types.UnionType else (hint,)
    if origin is Literal:
        return one_of(value, path, typing.get_args(hint))
    if type(None) in kinds and value is None:
        return None
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path} must be a list, got {value!r}")
        return tuple(_typed(entry, typing.get_args(hint)[0], path) for entry in value)
    if typing.get_origin(kinds[0]) is not None:  # Options
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path} must be a table of options, got {value!r}")
        return dict(value)
    kind = kinds[0]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        names = {int: "an integer", float: "a finite number", str: "a string", bool: "a boolean"}
        raise ConfigError(f"{path} must be {names[kind]}, got {value!r}")
    return value


def at_least(value: int, name: str, minimum: int) -> None:
    """Refuse a value below `minimum`."""
    if value < minimum:
        raise ConfigError(f"{name} must be at least {minimum}, got {value}")


def above(value: float, name: str, bound: float) -> None:
    """Refuse a value that is not above `bound`."""
    if not value > bound:
        raise ConfigError(f"{name} must be above {bound:g}, got {value:g}")


def share(value: float, name: str) -> None:
    """Refuse a value outside [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} must lie in [0, 1], got {value:g}")


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> Any:
    """Return `value` if it is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"{name} must be one of {allowed}, got {value!r}")
    return value


def ray_address(value: str, name: str) -> None:
    """Refuse what is neither ``auto`` nor HOST:PORT."""
    host, colon, port = value.rpartition(":")
    right = colon and host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536
    if value != "auto" and not right:
        raise ConfigError(f"{name} must be 'auto' or HOST:PORT, got {value!r}")
