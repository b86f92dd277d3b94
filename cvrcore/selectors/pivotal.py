"""Balanced selection: watched coordinates in, a spread-out sample of exact inclusion out."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..draws.designs import design_inclusion, draw_by_design
from ..draws.pivotal import NEIGHBOURS
from ..draws.pps import capped_inclusion
from ..runtime.journal import atomic
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import (
    Float,
    Mask,
    check_choice,
    check_count,
    check_matrix,
    check_number,
    check_shape,
    check_stored,
    check_vector,
)
from .base import Probe, Report, Selector
from .guards import Guards

LAWS: Final = ("size", "even")


class PivotalSelector(Selector):
    r"""Clients spread evenly over features, with exact inclusion probabilities: pivotal method.

    Each client has a row of features: the watched coordinates that it last reported, or rows
    that are given. The local pivotal method [1]_ draws clients so that near rows seldom come
    together, each client with probability :math:`\pi_k`, capped at 1 and summing to
    `n_select`. The aggregators ``importance`` and ``memory`` are unbiased with it, and the
    variance of their step falls as far as rows tell updates apart; with the law "size",
    ``mean`` is unbiased wherever no probability is capped.

    A reported row counts half, the row before it the other half. A client never seen has the
    mean row of the others, weighted by ``alpha_k Q_k / (1 - Q_k)`` with Q_k its probability of
    not having been picked so far: an estimate of the population's mean row. Use rows of
    updates or of the head (``features="update"`` or ``"head"`` in the loop): models of
    different rounds are not comparable.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    n_features : int, optional
        Number of watched coordinates D; not with `features`.
    initial : array-like of shape (n_features,), optional
        Row of clients while nobody has reported. Default: zeros.
    features : array-like of shape (n_clients, n_features), optional
        Rows that are known, such as class shares or a place on the map; reports of models are
        then not needed. `set_features` replaces them.
    law : {"size", "even"} or array-like of shape (n_clients,), default="size"
        Inclusion in proportion to sample counts, even, or in proportion to given scores.
    blend : float in (0, 1], default=0.5
        Weight of a new report in a client's row.
    neighbours : {"auto", "exact", "approximate"}
        See `cvrcore.draws.pivotal.pivotal_sample`.

    References
    ----------
    .. [1] Grafstrom, Lundstrom and Schelin, "Spatially balanced sampling through the pivotal
       method", Biometrics, 2012.

    Examples
    --------
    >>> region = [[0.0], [0.1], [9.0], [9.1]]
    >>> selector = PivotalSelector(n_clients=4, n_select=2, features=region, law="even", seed=0)
    >>> picked = selector.select().clients
    >>> (picked < 2).sum(), (picked >= 2).sum()
    (np.int64(1), np.int64(1))
    """

    name: ClassVar[str] = "pivotal"
    needs = frozenset({"models"})
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_rows", "_initial", "_scores"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_features: int | None = None,
        initial: ArrayLike | None = None,
        features: ArrayLike | None = None,
        law: str | ArrayLike = "size",
        blend: float = 0.5,
        neighbours: str = "auto",
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.fixed = features is not None
        if features is not None:
            rows = check_matrix(features, "features", (self.n_clients, None), np.float64)
            if n_features not in (None, rows.shape[1]):
                raise ValueError(
                    f"n_features must be the columns of features, {rows.shape[1]}, got {n_features}"
                )
            n_features = rows.shape[1]
            self.needs -= {"models"}
        elif n_features is None:
            raise ValueError("n_features or features must be given to pivotal, got neither")
        self.n_features = check_count(n_features, "n_features")
        start = np.zeros(self.n_features) if initial is None else initial
        self._initial = check_vector(start, "initial", self.n_features).copy()
        self._rows = rows.copy() if self.fixed else np.zeros((self.n_clients, self.n_features))
        self._scores: Float | None = None
        self.law = "given"
        if isinstance(law, str):
            self.law = check_choice(law, "law", LAWS)
        else:
            self._scores = _check_scores(law, self.n_clients)
        self.blend = check_number(blend, "blend", above=0, maximum=1)
        self.neighbours = check_choice(neighbours, "neighbours", NEIGHBOURS)
        self._seen = np.zeros(self.n_clients, dtype=bool)
        self._missed = np.ones(self.n_clients)  # Q_k

    @property
    @serialised
    def rows(self) -> Float:
        """Return a copy of the features of all clients, as the next draw uses them."""
        return self._features().copy()

    @atomic
    def set_features(self, features: ArrayLike) -> None:
        """Replace the given rows of all clients, of the same width, from the next round on."""
        if not self.fixed:
            raise ValueError("features must be given at construction before they are replaced")
        self._rows = check_matrix(
            features, "features", (self.n_clients, self.n_features), np.float64
        ).copy()

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        inclusion = np.zeros(self.n_clients)
        inclusion[ids] = capped_inclusion(self._law()[ids], min(self.n_select, ids.size))
        return draw_by_design(
            "pivotal",
            inclusion,
            self._rng,
            round=self.round,
            features=self._features(),
            neighbours=self.neighbours,
        )

    def _law(self) -> Float:
        if self._scores is not None:
            return self._scores
        return self.weights if self.law == "size" else np.ones(self.n_clients)

    def _features(self) -> Float:
        """Return the rows of all clients, with a stand-in for those never seen."""
        if self.fixed or self._seen.all():
            return self._rows
        stand_in = self._initial
        if self._seen.any():
            odds = self.weights * self._missed / np.maximum(1.0 - self._missed, 1e-12)
            share = np.where(self._seen, odds, 0.0)
            if not share.any():  # all were picked with certainty
                share = self._seen * np.maximum(self.weights, 1e-300)
            stand_in = (share / share.sum()) @ self._rows
        return np.where(self._seen[:, None], self._rows, stand_in)

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float | None:
        if self.fixed:
            return None
        return check_matrix(models, "models", (n_reported, self.n_features), np.float64)

    def _learn(self, report: Report) -> None:
        if self.fixed:
            return
        inclusion = design_inclusion(report.selection, self.n_select)
        if inclusion is not None:
            self._missed *= 1.0 - np.minimum(inclusion, 1.0)
        if report.models is None:
            return
        clients = report.clients
        if self._journal is not None:
            self._journal.rows(clients, self._rows)
        step = np.where(self._seen[clients], self.blend, 1.0)[:, None]
        self._rows[clients] += step * (report.models - self._rows[clients])
        self._seen[clients] = True

    def _grow(self, n_clients: int, added: Float) -> None:
        more = np.zeros((added.size, self.n_features))
        if self.fixed:
            more += self._rows.mean(axis=0)  # until `set_features`
        self._rows = np.concatenate([self._rows, more])
        self._seen = np.concatenate([self._seen, np.zeros(added.size, dtype=bool)])
        self._missed = np.concatenate([self._missed, np.ones(added.size)])
        if self._scores is not None:
            # In proportion to size, on the scale of the given scores.
            scale = self._scores.sum() / self.weights.sum()
            self._scores = np.concatenate([self._scores, added * scale])

    def _forget(self, client: int) -> None:
        super()._forget(client)
        if self.fixed:
            self._rows[client] = 0.0
        if self._scores is not None:
            self._scores[client] = 0.0

    def _config(self) -> dict[str, Any]:
        return {
            "n_features": self.n_features,
            "initial": self._initial.copy(),
            "features": self._rows.copy() if self.fixed else None,
            "law": self.law if self._scores is None else self._scores.copy(),
            "blend": self.blend,
            "neighbours": self.neighbours,
        }

    def _learned(self) -> dict[str, Any]:
        if self.fixed:
            return {}
        return {
            "rows": self._rows.copy(),
            "seen": self._seen.copy(),
            "missed": self._missed.copy(),
        }

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        super()._check_sizes(config, learned)
        n_features = check_count(config["n_features"], "n_features")
        if config.get("initial") is not None:
            check_shape(config["initial"], "initial", (n_features,))
        if config.get("features") is None:
            check_shape(learned["rows"], "rows", (config["n_clients"], n_features))
        else:
            check_shape(config["features"], "features", (config["n_clients"], n_features))

    def _restore(self, learned: dict[str, Any]) -> None:
        if self.fixed:
            return
        self._rows = check_matrix(
            learned["rows"], "rows", (self.n_clients, self.n_features), np.float64
        ).copy()
        self._seen = check_stored(learned["seen"], "seen", self.n_clients, bool)
        self._missed = check_vector(learned["missed"], "missed", self.n_clients).copy()
        if (self._missed < 0).any() or (self._missed > 1).any():
            raise ValueError("missed must hold probabilities in [0, 1]")


def _check_scores(law: ArrayLike, n_clients: int) -> Float:
    scores = check_vector(law, "law", n_clients).copy()
    if (scores < 0).any():
        raise ValueError(f"law must hold non-negative scores, got {scores.min():g}")
    if not scores.any():
        raise ValueError("law must hold a positive score, got zeros")
    return scores
