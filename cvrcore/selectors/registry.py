"""Registry of policies: a name in, a class out, built in or registered by a package.

A package registers a policy in the entry-point group ``cvrcore.selectors``::

    [project.entry-points."cvrcore.selectors"]
    my-policy = "my_package.policies:MySelector"

Built-in policies are found without reading entry points, so a broken package cannot affect
them. Registered policies are loaded lazily; a registered policy that cannot be used raises an
error that names its distribution.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .base import Selector

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "cvrcore.selectors"

#: Name of each built-in policy, and module and name of its class; imported lazily.
BUILT_IN = {
    "uniform": "cvrcore.selectors.uniform:UniformSelector",
    "power-of-choice": "cvrcore.selectors.power_of_choice:PowerOfChoiceSelector",
    "active": "cvrcore.selectors.active:ActiveSelector",
    "oort": "cvrcore.selectors.oort:OortSelector",
    "fedcbs": "cvrcore.selectors.class_balanced:ClassBalancedSelector",
    "fedcvr-bolt": "cvrcore.selectors.coalition:CoalitionSelector",
    "pivotal": "cvrcore.selectors.pivotal:PivotalSelector",
    "divfl": "cvrcore.selectors.divfl:DivFLSelector",
    "hics": "cvrcore.selectors.hics:HiCSSelector",
    "fedcor": "cvrcore.selectors.fedcor:FedCorSelector",
    "shapley": "cvrcore.selectors.shapley:ShapleySelector",
    "learned": "cvrcore.selectors.learned:LearnedSelector",
    "drift": "cvrcore.selectors.drift:DriftSelector",
    "optimal": "cvrcore.selectors.optimal:OptimalSelector",
    "k-vib": "cvrcore.selectors.kvib:KVibSelector",
    "multinomial": "cvrcore.selectors.multinomial:MultinomialSelector",
    "clustered": "cvrcore.selectors.clustered:ClusteredSelector",
    "reshuffle": "cvrcore.selectors.reshuffle:ReshuffleSelector",
}


#: Methods of `fl` that are asked for as policies: the policy and the aggregator of each, and
#: whether its models are averaged.
METHODS = {
    "fedavg": ("uniform", "sizes", False),
    "fedavg-memory": ("uniform", "memory", False),
    "fedavg-averaged": ("uniform", "sizes", True),
    "balanced-memory": ("pivotal", "memory", True),
    "balanced-factor": ("pivotal", "factor-memory", True),
    "pivotal-memory": ("pivotal", "memory", False),
    "cvr-steady": ("fedcvr-bolt", "memory", False),
}


class PolicyError(ValueError):
    """A registered policy cannot be used; the message names its distribution.

    Examples
    --------
    >>> from cvrcore.selectors import PolicyError
    >>> issubclass(PolicyError, ImportError), issubclass(PolicyError, ValueError)
    (False, True)
    """


@dataclasses.dataclass(frozen=True)
class Plugin:
    """One entry point: the policy's name, its class, and the distribution that registers it."""

    name: str
    target: str
    distribution: str

    def __str__(self) -> str:
        return f"policy {self.name!r} ({self.target}) of distribution {self.distribution}"


def plugins() -> list[Plugin]:
    """Return every policy that installed packages register, usable or not."""
    # Imported here: the two modules take as long to import as the rest of this package.
    import importlib.metadata
    import logging

    try:
        entries = list(importlib.metadata.entry_points(group=GROUP))
    except Exception as error:  # the metadata of any installed package may be damaged
        logging.getLogger(__name__).warning("entry points %s cannot be read: %r", GROUP, error)
        return []
    found = {Plugin(entry.name, entry.value, _distribution(entry)) for entry in entries}
    return sorted(found, key=lambda plugin: (plugin.name, plugin.distribution, plugin.target))


def _distribution(entry: EntryPoint) -> str:
    try:
        return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
    except Exception:  # no name or version in its metadata
        return "unknown"


class Policies(Mapping[str, str]):
    """Map from a policy's name to its class as "module:name"; built-in policies first.

    A package cannot replace a built-in name. `policy_class` checks whether a registered
    class can be used.
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


#: Every policy by name; see `Policies`.
POLICIES = Policies()


def policy_class(name: str) -> type[Selector]:
    """Return the class of the policy called `name`.

    Raises
    ------
    ValueError
        If no policy has that name.
    PolicyError
        If a policy is registered under that name but cannot be used.

    Examples
    --------
    >>> from cvrcore.selectors import policy_class
    >>> policy_class("uniform").__name__
    'UniformSelector'
    """
    if isinstance(name, str) and name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        ours: type[Selector] = getattr(importlib.import_module(module), attribute)
        return ours
    registered = plugins()
    named = [plugin for plugin in registered if plugin.name == name]
    if not named:
        raise ValueError(_unknown(name, sorted({*BUILT_IN, *(p.name for p in registered)})))
    return load_plugin(named)


def _unknown(name: Any, names: list[str]) -> str:
    """Return the message for a name that is no policy's."""
    import difflib

    plain = str(name).lower().replace("_", "-").replace(" ", "-")
    if plain in METHODS:
        policy, aggregator, averaged = METHODS[plain]
        return (
            f"name must be a policy, got {name!r}, a method of fl: policy {policy!r} with "
            f"aggregator {aggregator!r}{' and averaged models' * averaged}; see "
            "docs/which-policy.md"
        )
    close = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"name must be one of {', '.join(map(repr, names))}, got {name!r}{hint}"


def load_plugin(named: list[Plugin]) -> type[Selector]:
    """Return the class of entry points of one name, or raise PolicyError with the reason."""
    import importlib.metadata
    import inspect

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
    except Exception as error:  # importing the module can raise anything
        raise PolicyError(f"{plugin} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, Selector)):
        raise PolicyError(f"{plugin} must be a subclass of cvrcore.Selector, got {found!r}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise PolicyError(f"{plugin} must define {missing}")
    if getattr(found, "name", None) != plugin.name:
        # A saved state holds the name, and loading it looks up the class by this name.
        raise PolicyError(
            f"{plugin} must have the class attribute name = {plugin.name!r}, "
            f"got {getattr(found, 'name', None)!r}"
        )
    return found


def refuse_unknown(policy: str, flat: dict[str, Any], known: list[str]) -> None:
    """Raise TypeError for the first unknown option, with the most similar known option."""
    import difflib

    for option in flat:
        close = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"{option} is not an option of {policy}{hint}")
