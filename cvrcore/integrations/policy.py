"""The policy of an adapter: its name and options in, a selector for the first clients out."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..guards import Guards, as_guards
from ..selectors import make_selector, policy_class
from ..selectors.base import Selector
from .options import check_keywords

#: Settings of `Guards`, which are also accepted one by one among the options of a policy.
GUARD_SETTINGS = tuple(field.name for field in dataclasses.fields(Guards))


class Policy:
    """A selection policy, by name with its options or as a ready selector.

    Parameters
    ----------
    selector : str or Selector
    n_select : int, optional
        Clients per round; required with a name.
    seed : int, SeedSequence or None
    options : mapping, optional
        Further arguments of the policy, and settings of `Guards`.
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients.
    keywords : iterable of str
        Keywords of the adapter itself, to suggest for a mistyped option.

    Attributes
    ----------
    ready : Selector or None
        The selector, where the caller built it.
    kind : subclass of Selector
    options : dict
    guards : Guards or None
    """

    def __init__(
        self,
        selector: str | Selector,
        n_select: int | None = None,
        seed: int | np.random.SeedSequence | None = None,
        options: Mapping[str, Any] | None = None,
        guards: Guards | str | None = None,
        keywords: Iterable[str] = (),
    ) -> None:
        self.ready = selector if isinstance(selector, Selector) else None
        self.kind: type[Selector]
        if isinstance(selector, Selector):
            self.kind = type(selector)
        elif isinstance(selector, str):
            self.kind = policy_class(selector)
        else:
            raise TypeError(f"selector must be a name or a Selector, got {selector!r}")
        self._name, self._n_select, self._seed = selector, n_select, seed
        self._known = self.kind.option_names()
        self.options = dict(options or {})
        self._check_options(keywords)
        if self.ready is not None:
            if n_select is not None or seed is not None or self.options or guards is not None:
                raise ValueError(
                    "n_select, seed, guards and options must go with a policy's name: a ready "
                    "selector has its own"
                )
        elif n_select is None:
            raise ValueError(f"n_select must be given with a policy's name, {selector!r}")
        self.guards = self._take_guards(guards)

    @property
    def n_select(self) -> int | None:
        """Clients per round as the caller wants it; None for a ready selector."""
        return self._n_select

    def wants(self, parameter: str) -> bool:
        """Return whether the policy has a constructor parameter of that name."""
        return parameter in (self._known or inspect.signature(self.kind).parameters)

    def build(self, weights: list[float], **defaults: Any) -> Selector:
        """Return the selector for clients with these numbers of samples.

        With fewer clients than ``n_select`` it selects all of them in every round.

        Parameters
        ----------
        weights : list of float
        **defaults
            Arguments of the policy that its options do not set.
        """
        assert isinstance(self._name, str)
        assert self._n_select is not None
        options = {**defaults, **self.options}
        selector = make_selector(
            self._name,
            n_clients=len(weights),
            n_select=min(self._n_select, len(weights)),
            weights=weights,
            seed=self._seed,
            **options,
        )
        apply_guards(selector, self.guards)
        return selector

    def _check_options(self, keywords: Iterable[str]) -> None:
        """Refuse an unknown option now, and not when the first clients have connected."""
        if self._known is not None:
            known = [*self._known, *GUARD_SETTINGS]
            check_keywords(self.options, known, self.kind.name, keywords)

    def _take_guards(self, guards: Guards | str | None) -> Guards | None:
        """Return the guards, built from single settings where those were given."""
        if isinstance(guards, str):
            guards = as_guards(guards)
        if not isinstance(guards, Guards | None):
            raise TypeError(f"guards must be a Guards object or None, got {guards!r}")
        given = [name for name in GUARD_SETTINGS if name in self.options]
        if not given:
            return guards
        if guards is not None:
            raise TypeError(
                f"guards and {given[0]} must not both be given: use guards=Guards({given[0]}=...)"
            )
        return Guards(**{name: self.options.pop(name) for name in given})


def apply_guards(selector: Selector, guards: Guards | None) -> None:
    """Let a selector use `guards` from its next round on; None leaves it as it is."""
    if guards is not None:
        selector.guard(**dataclasses.asdict(guards))
