"""Policies by name: ours, and those that installed packages register.

A package registers a policy in the entry-point group ``cvrcore.selectors``::

    [project.entry-points."cvrcore.selectors"]
    my-policy = "my_package.policies:MySelector"

Ours are found without a look at what is installed, so that no package, however broken, can
stand in their way. Others are looked up when asked for; one that cannot serve is an error
that names the distribution it comes from.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import logging
from collections.abc import Iterator, Mapping

from .base import Selector

GROUP = "cvrcore.selectors"

#: Name of each policy of our own and where its class lives; imported when asked for.
BUILT_IN = {
    "uniform": "cvrcore.selectors.uniform:UniformSelector",
    "power-of-choice": "cvrcore.selectors.power_of_choice:PowerOfChoiceSelector",
    "active": "cvrcore.selectors.active:ActiveSelector",
    "oort": "cvrcore.selectors.oort:OortSelector",
    "fedcbs": "cvrcore.selectors.class_balanced:ClassBalancedSelector",
    "fedcvr-bolt": "cvrcore.selectors.coalition:CoalitionSelector",
}

_log = logging.getLogger(__name__)


class PolicyError(ValueError):
    """A registered policy that cannot serve; the message names its distribution."""


@dataclasses.dataclass(frozen=True)
class Plugin:
    """One entry of the group: a name, where its class lives, and who registered it."""

    name: str
    target: str
    distribution: str

    def __str__(self) -> str:
        return f"policy {self.name!r} ({self.target}) of distribution {self.distribution}"


def plugins() -> list[Plugin]:
    """Return every policy that installed packages register, whether it can serve or not."""
    try:
        entries = list(importlib.metadata.entry_points(group=GROUP))
    except Exception as error:  # the metadata of any installed package may be damaged
        _log.warning("entry points %s cannot be read: %r", GROUP, error)
        return []
    found = {Plugin(entry.name, entry.value, _distribution(entry)) for entry in entries}
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution, plugin.target))


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    try:
        return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
    except Exception:  # no name or version in its metadata
        return "unknown"


class Policies(Mapping[str, str]):
    """Where the class of each policy lives, by name; ours first, then the registered.

    A name of ours stays ours whoever registers it. Whether a registered class can serve
    is found out by `policy_class`, one class at a time.
    """

    def __getitem__(self, name: str) -> str:
        if name in BUILT_IN:
            return BUILT_IN[name]
        for plugin in plugins():
            if plugin.name == name:
                return plugin.target
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from BUILT_IN
        names = {plugin.name: None for plugin in plugins()}
        yield from (name for name in names if name not in BUILT_IN)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Policies({', '.join(self)})"


#: Every policy there is, by name; see `Policies`.
POLICIES = Policies()


def policy_class(name: str) -> type[Selector]:
    """Return the class of the policy called `name`.

    Raises
    ------
    ValueError
        If no policy has that name.
    PolicyError
        If one is registered under that name but cannot serve.
    """
    if isinstance(name, str) and name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        ours: type[Selector] = getattr(importlib.import_module(module), attribute)
        return ours
    registered = plugins()
    named = [plugin for plugin in registered if plugin.name == name]
    if not named:
        known = ", ".join(repr(n) for n in sorted({*BUILT_IN, *(p.name for p in registered)}))
        raise ValueError(f"name must be one of {known}, got {name!r}")
    return load_plugin(named)


def load_plugin(named: list[Plugin]) -> type[Selector]:
    """Return the class that stands behind entries of one name, or say why none does."""
    plugin = named[0]
    if plugin.name in BUILT_IN:
        raise PolicyError(f"{plugin} takes the name of a policy of cvrcore, which keeps it")
    if len(named) > 1:
        rivals = " and ".join(f"{p.distribution} ({p.target})" for p in named)
        raise PolicyError(
            f"policy {plugin.name!r} is registered more than once, by {rivals}: "
            "uninstall all but one"
        )
    try:
        found = importlib.metadata.EntryPoint(plugin.name, plugin.target, GROUP).load()
    except Exception as error:  # whatever its module does when it is imported
        raise PolicyError(f"{plugin} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Selector)):
        raise PolicyError(f"{plugin} must be a subclass of cvrcore.Selector, got {found!r}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PolicyError(f"{plugin} must define {missing}")
    if getattr(found, "name", None) != plugin.name:
        # A saved state says the name: it must lead back to the class.
        raise PolicyError(
            f"{plugin} must have the class attribute name = {plugin.name!r}, "
            f"got {getattr(found, 'name', None)!r}"
        )
    return found
