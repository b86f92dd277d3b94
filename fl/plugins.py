"""Names of models and data sets in, what installed packages registered under them out.

A package registers a model in the entry-point group ``cvrcore.models`` (a function that returns
an ``nn.Module``, see `fl.own.Own`) and a data set in ``cvrcore.datasets`` (a function that
returns a `Federation`). An import path, ``package.module:name``, is code of the caller's own:
it counts on the command line only, never in a file of settings or of a run.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .data import DATASETS, Federation
from .settings import ConfigError, nearest

#: Name of the data set of settings for samples that the caller brings.
OWN = "own"
MODELS_GROUP, DATASETS_GROUP = "cvrcore.models", "cvrcore.datasets"
#: Names of `fl.models.MODELS`, known without torch.
BUILT_IN_MODELS = ("mlp", "cnn", "logistic", "linear", "gru")


def registered(group: str) -> dict[str, Any]:
    """Return the entry points of a group by name."""
    import importlib.metadata

    return {entry.name: entry for entry in importlib.metadata.entry_points(group=group)}


def load(group: str, name: str, known: tuple[str, ...]) -> Any:
    """Return what is registered as `name`; ConfigError lists `known` names and these."""
    entries = registered(group)
    what = "model" if group == MODELS_GROUP else "data.dataset"
    if name not in entries:
        names = (*known, *entries)
        raise ConfigError(
            f"{what} must be one of {', '.join(names)}; got {name!r}{nearest(name, names)}"
        )
    entry = entries[name]
    try:
        return entry.load()
    except Exception as error:  # importing a package may raise anything
        raise ConfigError(
            f"{what} {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def import_path(text: str, what: str) -> Any:
    """Return what ``package.module:name`` of the command line names.

    Modules of the working directory are found too, as by ``python -m``.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise ConfigError(f"{what} must look like package.module:name, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing a module may raise anything
        raise ConfigError(
            f"{what} {text!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return found


def make_federation(source: Federation | Callable[..., Any], seed: int, **facts: Any) -> Federation:
    """Return a federation, or what a function of one returns.

    The function is called with those of ``seed``, ``n_clients`` and the options of the data
    settings that its signature names.
    """
    if isinstance(source, Federation):
        return source
    if not callable(source):
        raise ConfigError(
            f"federation must be a Federation or a function that returns one, got "
            f"{type(source).__name__}"
        )
    names = inspect.signature(source).parameters
    known = {"seed": seed, **facts}
    try:
        found = source(**{name: value for name, value in known.items() if name in names})
    except (TypeError, ValueError, ConfigError, RuntimeError, OSError) as error:
        raise ConfigError(f"federation: {type(error).__name__}: {error}") from error
    if not isinstance(found, Federation):
        raise ConfigError(
            f"federation: the function must return a fl.data.Federation, got {type(found).__name__}"
        )
    return found


def is_built_in(dataset: str) -> bool:
    """Return whether `dataset` is one of cvrcore's own, which no package can replace."""
    return dataset in DATASETS
