"""Nested settings and changes to them in, changed settings out: merging, short names, advice."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from .settings import ConfigError, hints_of, nearest

#: How the name of a table of options ends: any key may be set in it, others say which exist.
OPEN = "options"
#: Options that belong to the value of another setting, and do not outlive it.
OWNER = {
    ("selection", "options"): ("selection", "policy"),
    ("algorithm", "options"): ("algorithm", "name"),
    ("aggregator_options",): ("aggregator",),
    ("data", "options"): ("data", "dataset"),
    ("training", "schedule_options"): ("training", "schedule"),
}
#: Names that other libraries use, and what they are called here.
SYNONYMS = {
    "learning_rate": "training.lr",
    "client_lr": "training.lr",
    "local_lr": "training.lr",
    "local_epochs": "training.epochs",
    "n_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "batch": "training.batch_size",
    "server_lr": "server.lr",
    "global_lr": "server.lr",
    "server_optimizer": "server.optimiser",
    "optimizer": "server.optimiser",
    "data_set": "data.dataset",
    "clients": "data.n_clients",
    "num_clients": "data.n_clients",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "clients_per_round": "selection.n_select",
    "select": "selection.n_select",
    "selector": "selection.policy",
    "strategy": "method",
    "random_state": "seed",
}

Path = tuple[str, ...]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], where: Path = ()) -> dict[str, Any]:
    """Return `base` with nested `changes`: tables merge, other values are replaced.

    Options go with what they belong to: those of a policy are dropped where the changes name
    another policy.
    """
    kept = dict(base)
    for path, owner in OWNER.items():
        name = owner[-1]
        if path[:-1] == where and changes.get(name, base.get(name)) != base.get(name):
            kept[path[-1]] = {}
    for key, value in changes.items():
        both = isinstance(kept.get(key), Mapping) and isinstance(value, Mapping)
        kept[key] = merged(kept[key], value, (*where, key)) if both else value
    return kept


def nested(cls: type[Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes such as ``{"training__lr": 0.1, "n_clients": 20}`` as nested tables.

    Parameters
    ----------
    cls : dataclass
        The settings, with those inside it.
    changes : mapping
        Settings by path, dots or ``__`` between names; tables of settings; and settings inside
        a table by their name alone, if no other table has one of that name.

    Raises
    ------
    ConfigError
        For a setting that does not exist, with the one that was probably meant.
    """
    result: dict[str, Any] = {}
    for text, value in changes.items():
        path = _full_path(cls, tuple(text.replace("__", ".").split(".")))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        table = result
        for name in path[:-1]:
            if not isinstance(table.setdefault(name, {}), dict):
                raise ConfigError(f"{name} must be a table of settings, got {table[name]!r}")
            table = table[name]
        both = isinstance(table.get(path[-1]), Mapping) and isinstance(value, Mapping)
        table[path[-1]] = {**table[path[-1]], **value} if both else value
    return result


def paths_of(cls: type[Any], where: Path = ()) -> Iterator[Path]:
    """Yield the path of every setting of a dataclass and of those inside it, in order."""
    hints = hints_of(cls)
    for field in dataclasses.fields(cls):
        path = (*where, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from paths_of(typing.cast(type[Any], hints[field.name]), path)
        else:
            yield path


def _full_path(cls: type[Any], path: Path) -> Path:
    """Return the path of a setting, found by its last name alone if that is unambiguous."""
    known = list(paths_of(cls))
    tables = {one[:length] for one in known for length in range(1, len(one))}
    for at in range(len(path)):
        if path[at].endswith(OPEN) and path[: at + 1] in known:
            return path
    if path in known or path in tables:
        return path
    if len(path) == 1:
        same = [one for one in known if one[-1] == path[0] and not path[0].endswith(OPEN)]
        if len(same) == 1:
            return same[0]
        if same:
            places = " or ".join(".".join(one) for one in same)
            raise ConfigError(f"{path[0]} is in more than one table: write {places}")
    raise ConfigError(advice(cls, path))


def advice(cls: type[Any], path: Path) -> str:
    """Return the message for a setting that does not exist, with one that does."""
    text = ".".join(path)
    known = list(paths_of(cls))
    if path[-1] in SYNONYMS:
        return f"{text} is not a setting; did you mean {SYNONYMS[path[-1]]!r}?"
    same = [".".join(one) for one in known if one[-1] == path[-1]]
    if same:
        hint = nearest(text, same) or f"; did you mean {' or '.join(map(repr, same))}?"
        return f"{text} is not a setting{hint}"
    if path[-1] in _policy_options():
        return f"{text} is not a setting; did you mean 'selection.options.{path[-1]}'?"
    siblings = {one[len(path) - 1] for one in known if one[: len(path) - 1] == path[:-1]}
    hint = nearest(path[-1], siblings)
    if hint and len(path) > 1:  # the whole path, as it has to be written
        word = hint.split("'")[1]
        hint = f"; did you mean {'.'.join((*path[:-1], word))!r}?"
    hint = hint or nearest(text, [".".join(one) for one in known])
    return f"{text} is not a setting{hint or '; `cvrcore config init` lists them all'}"


def _policy_options() -> set[str]:
    from cvrcore.selectors import BUILT_IN, policy_class

    return {name for policy in BUILT_IN for name in policy_class(policy).option_names() or ()}
