"""Tags and quotas: eligible clients and places per tag in, one draw of the policy per tag out."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..runtime.journal import Atomic, atomic
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_count

if TYPE_CHECKING:
    from .base import Probe


class Grouped(Atomic):
    """The part of `Selector` that draws other numbers of clients than `n_select`."""

    #: Whether a round may have any number of places. A policy whose state depends on
    #: `n_select` says False: it draws `n_select` clients, of which a random part is kept.
    any_size: ClassVar[bool] = True

    n_clients: int
    n_select: int
    _rng: np.random.Generator
    _tags: Ids | None = None  # position in _tag_names; -1: no tag
    _tag_names: tuple[str, ...] = ()

    @atomic
    def set_tags(self, tags: Sequence[str | None] | None) -> None:
        """Give every client one tag, such as its site or region; None: no tag.

        ``select(quotas={"site-a": 3, "site-b": 2})`` then picks that many clients of each
        tag. Clients that join later have no tag until tags are set again.

        Parameters
        ----------
        tags : sequence of str or None, length n_clients
        """
        if tags is None:
            self._tags, self._tag_names = None, ()
            return
        given = list(tags)
        if isinstance(tags, str) or len(given) != self.n_clients:
            raise ValueError(
                f"tags must name the tag of {self.n_clients} clients, got {tags!r:.60}"
            )
        for tag in given:
            if not isinstance(tag, str | None):
                raise TypeError(f"tags must be strings or None, got {tag!r}")
        names = tuple(dict.fromkeys(tag for tag in given if tag is not None))
        codes = {name: i for i, name in enumerate(names)}
        self._tag_names = names
        self._tags = np.array([codes.get(tag, -1) if tag else -1 for tag in given], dtype=np.int64)

    @property
    def tags(self) -> list[str | None] | None:
        """Return the tag of each client, or None if no tags were set."""
        if self._tags is None:
            return None
        return [self._tag_names[code] if code >= 0 else None for code in self._tags]

    def _check_quotas(self, quotas: Mapping[str, int]) -> dict[str, int]:
        if self._tags is None:
            raise ValueError("quotas need tags: call set_tags() first, or make_selector(tags=...)")
        if not isinstance(quotas, Mapping) or not quotas:
            raise TypeError(f"quotas must map at least one tag to a number, got {quotas!r}")
        for tag in quotas:
            if tag not in self._tag_names:
                known = ", ".join(map(repr, self._tag_names[:8]))
                raise ValueError(f"quotas must be of tags that clients have ({known}), got {tag!r}")
        return {tag: check_count(n, f"quotas[{tag!r}]", 0) for tag, n in quotas.items()}

    def _draw_sized(
        self, eligible: Mask, probe: Probe | None, n: int | None, quotas: Mapping[str, int] | None
    ) -> Selection:
        """Return the policy's choice, of `n` clients or of each quota if given."""
        if quotas is None:
            return self._draw_n(eligible, probe, self.n_select if n is None else n)
        if n is not None:
            raise ValueError("n and quotas must not both be given: the places are the quotas' sum")
        assert self._tags is not None
        parts = []
        for tag, places in self._check_quotas(quotas).items():
            group = eligible & (self._tags == self._tag_names.index(tag))
            if places and group.any():
                parts.append((group, self._draw_n(group, probe, places)))
        if not parts:
            raise ValueError(f"quotas must leave a client to pick, got nobody for {dict(quotas)!r}")
        return _joined(parts, self.n_clients)

    def _draw_n(self, eligible: Mask, probe: Probe | None, n: int) -> Selection:
        n = check_count(n, "n", maximum=self.n_clients)
        if n == self.n_select:
            return self._choose(self._admitted(eligible), probe)
        if self.any_size:
            with self._sized(n):
                return self._choose(self._admitted(eligible), probe)
        drawn = self._choose(self._admitted(eligible), probe)
        wanted = min(n, int(np.count_nonzero(eligible)))
        if wanted > len(drawn):
            raise ValueError(
                f"n must be at most n_select, {self.n_select}, with {type(self).__name__}, got {n}"
            )
        return _thinned(drawn, wanted, self._rng)

    @contextlib.contextmanager
    def _sized(self, n: int) -> Iterator[None]:
        before, self.n_select = self.n_select, n
        try:
            yield
        finally:
            self.n_select = before

    @abc.abstractmethod
    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        """Return the round's Selection; see `Selector`."""

    @abc.abstractmethod
    def _admitted(self, eligible: Mask) -> Mask:
        """Return the eligible clients that the guards let in; see `Selector`."""

    def _grow_tags(self, n_added: int) -> None:
        if self._tags is not None:
            self._tags = np.concatenate([self._tags, np.full(n_added, -1, dtype=np.int64)])


def _thinned(drawn: Selection, n: int, rng: np.random.Generator) -> Selection:
    """Return a random part of a selection; its inclusion is that share of the whole's."""
    kept = np.sort(rng.permutation(len(drawn))[:n])
    share = n / len(drawn)
    whole = drawn

    def inclusion() -> Float:
        assert whole.inclusion is not None
        return np.asarray(whole.inclusion * share)

    stated = vars(drawn)["inclusion"]  # a function is not called
    lazy = stated if stated is None else inclusion
    return drawn.changed(
        clients=drawn.clients[kept],
        inclusion=lazy if callable(stated) or stated is None else inclusion(),
    )


def _joined(parts: list[tuple[Mask, Selection]], n_clients: int) -> Selection:
    """Return the independent selections of several groups as one."""
    drawn = [selection for _, selection in parts]
    total = sum(len(each) for each in drawn)
    stated = [vars(each)["inclusion"] for each in drawn]

    def inclusion() -> Float:
        values = [each.inclusion for each in drawn]
        return np.sum([value for value in values if value is not None], axis=0)

    joined: Any = None
    if all(each is not None for each in stated):
        joined = inclusion if any(map(callable, stated)) else inclusion()
    counts = expected = probabilities = scores = None
    if any(each.counts is not None for each in drawn):
        counts = np.concatenate([each.times_drawn for each in drawn])
        expected = np.sum([each.expected for each in drawn if each.expected is not None], axis=0)
    laws = [each.probabilities for each in drawn]
    coalitions = drawn[-1].coalitions
    if coalitions is None and total and all(law is not None for law in laws):
        shares = [len(each) / total for each in drawn]
        probabilities = np.sum(
            [law * share for law, share in zip(laws, shares, strict=True) if law is not None],
            axis=0,
        )
    if all(each.scores is not None for each in drawn):
        scores = np.full(n_clients, np.nan)
        for group, each in parts:
            assert each.scores is not None
            scores[group] = each.scores[group]
    return Selection(
        clients=np.concatenate([each.clients for each in drawn]),
        coalitions=coalitions,
        scores=scores,
        probabilities=probabilities,
        inclusion=joined,
        round=drawn[0].round,
        warmup=any(each.warmup for each in drawn),
        counts=counts,
        expected=expected,
    )
