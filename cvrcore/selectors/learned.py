"""A home for learned policies: features of clients and a scorer in, the best clients out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..draws.ranking import best_of
from ..selection import Selection
from ..validation import Float, Mask, check_number, check_stored, check_vector
from .base import Probe, Report, Selector
from .guards import Guards

Scorer = Callable[[Float], ArrayLike]

#: Features of a client, and what each needs of `observe`. Numbers that are not known are 0, with
#: ``known`` telling the two cases apart.
FEATURES: Final[dict[str, str | None]] = {
    "size": None,
    "picks": None,
    "age": None,
    "known": None,
    "loss": "losses",
    "norm": "norms",
    "duration": "durations",
}
_LEARNED: Final = ("loss", "norm", "duration")


class LearnedSelector(Selector):
    """Ranks clients by any function of documented features, such as a trained agent.

    FAVOR, FedMarl, AutoFL and FedRank differ in how they train their agent; each round their
    server does the same: it scores every client and picks the best. This class is that server.

    ============  ===================================================================
    feature       value
    ============  ===================================================================
    ``size``      samples of the client over the mean of all clients
    ``picks``     how often it reported, over the mean of all clients (0 at first)
    ``age``       rounds since it last reported, over ``n_clients / n_select``; 1 if never
    ``known``     1 if it has reported, else 0
    ``loss``      its last loss of the model that it received
    ``norm``      the norm of its last update
    ``duration``  the seconds that it took last
    ============  ===================================================================

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    scorer : callable or array-like of shape (n_features,)
        A function from an array of shape (n_eligible, n_features) to one finite score a row, or
        the weights of a linear score. Ties are broken at random.
    features : sequence of str
        Names of the table, in the order of the scorer's columns. The policy needs what they
        need.
    explore : float in [0, 1]
        Share of the places that are drawn uniformly, rounded down.

    Notes
    -----
    A linear scorer is part of the saved state. A function is not: give it again,
    ``LearnedSelector.load(path, scorer=f)``. No code is ever read from a file.

    Examples
    --------
    >>> largest = LearnedSelector(4, 2, weights=[5, 9, 1, 7], scorer=[1.0], features=["size"])
    >>> sorted(largest.select().clients.tolist())
    [1, 3]
    """

    name: ClassVar[str] = "learned"
    loss_statistic: ClassVar[str | None] = "mean"
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_last", "_reports", "_reported"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        scorer: Scorer | ArrayLike = (1.0, -1.0, 1.0),
        features: Sequence[str] = ("size", "picks", "age"),
        explore: float = 0.0,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.features = tuple(features)
        for name in self.features:
            if name not in FEATURES:
                known = ", ".join(FEATURES)
                raise ValueError(f"features must be among {known}, got {name!r}")
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError(f"features must be distinct and at least one, got {features!r}")
        self.explore = check_number(explore, "explore", minimum=0.0, maximum=1.0)
        self.scorer: Scorer | None = scorer if callable(scorer) else None
        self.coefficients: Float | None = None
        if self.scorer is None:
            self.coefficients = check_vector(scorer, "scorer", len(self.features)).copy()  # type: ignore[arg-type]
        self.needs = frozenset(
            need for name in self.features if (need := FEATURES[name]) is not None
        )
        self._last = {name: np.zeros(self.n_clients) for name in _LEARNED}
        self._reports = np.zeros(self.n_clients, dtype=np.int64)
        self._reported = np.full(self.n_clients, -1, dtype=np.int64)  # last round

    def client_features(self) -> Float:
        """Return the present features of all clients, shape (n_clients, n_features)."""
        table = np.empty((self.n_clients, len(self.features)), order="F")
        for column, name in enumerate(self.features):
            table[:, column] = self._last[name] if name in self._last else self._feature(name)
        return table

    def _feature(self, name: str) -> Float:
        """Return a feature that is not reported."""
        if name == "size":
            return np.asarray(self.weights / self.weights.mean())
        if name == "picks":
            return self._reports / max(float(self._reports.mean()), np.finfo(np.float64).tiny)
        known = self._reports > 0
        if name == "known":
            return known.astype(np.float64)
        span = self.n_clients / self.n_select
        return np.where(known, (self.round - self._reported) / span, 1.0)

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        n_picked = min(self.n_select, ids.size)
        n_explored = int(self.explore * n_picked + 1e-9)
        rows, everybody = self.client_features(), ids.size == self.n_clients
        found = self._score(rows if everybody else rows[ids])
        ranked = best_of(found, n_picked - n_explored, self._rng)
        left = np.ones(ids.size, dtype=bool)
        left[ranked] = False
        best, others = ids[ranked], ids[left]
        rest = self._rng.permutation(others)[:n_explored] if n_explored else others[:0]
        scores = np.full(self.n_clients, np.nan)
        scores[... if everybody else ids] = found
        inclusion = np.zeros(self.n_clients)
        inclusion[ids] = _chances(found, best.size)
        if n_explored:
            inclusion[ids] += (1.0 - inclusion[ids]) * (n_explored / others.size)
        return Selection(
            clients=np.concatenate([best, rest]).astype(np.int64),
            scores=scores,
            inclusion=inclusion,
            round=self.round,
        )

    def _score(self, rows: Float) -> Float:
        if self.coefficients is not None:
            return np.asarray(rows @ self.coefficients)
        assert self.scorer is not None
        return check_vector(self.scorer(rows), "scores of the scorer", len(rows))

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        return super()._check_signal(name, value, n_reported) if name == "norms" else None

    def _learn(self, report: Report) -> None:
        told: dict[str, Any] = {
            "loss": report.losses,
            "norm": report.signals.get("norms"),
            "duration": report.durations,
        }
        if self._journal is not None:
            counted = (self._reports, self._reported, *self._last.values())
            self._journal.rows(report.clients, *counted)
        for name, values in told.items():
            if values is not None:
                self._last[name][report.clients] = values
        self._reports[report.clients] += 1
        self._reported[report.clients] = self.round

    def _grow(self, n_clients: int, added: Float) -> None:
        def grown(array: NDArray[Any], fill: int) -> NDArray[Any]:
            return np.concatenate([array, np.full(added.size, fill, dtype=array.dtype)])

        self._last = {name: grown(array, 0) for name, array in self._last.items()}
        self._reports, self._reported = grown(self._reports, 0), grown(self._reported, -1)

    # -- state -------------------------------------------------------------------

    def _forget(self, client: int) -> None:
        for array in (*self._last.values(), self._reports):
            array[client] = 0
        self._reported[client] = -1

    def _config(self) -> dict[str, Any]:
        coefficients = None if self.coefficients is None else self.coefficients.copy()
        return {
            "features": list(self.features),
            "explore": self.explore,
            "scorer": coefficients,
        }

    def _learned(self) -> dict[str, Any]:
        last = {name: array.copy() for name, array in self._last.items()}
        return {**last, "reports": self._reports.copy(), "reported": self._reported.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        last = {name: check_stored(learned[name], name, self.n_clients) for name in _LEARNED}
        if not all(np.isfinite(array).all() for array in last.values()):
            raise ValueError("loss, norm and duration must be finite")
        reports = check_stored(learned["reports"], "reports", self.n_clients, np.int64)
        reported = check_stored(learned["reported"], "reported", self.n_clients, np.int64)
        if (reports < 0).any() or (reported < -1).any() or (reported >= max(self.round, 1)).any():
            raise ValueError("reports and reported must be counts and past rounds")
        self._last, self._reports, self._reported = last, reports, reported

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all state by the result of `state_dict`; a function as scorer stays."""
        self._become(type(self).from_state_dict(state, scorer=self.scorer))

    @classmethod
    def from_state_dict(cls, state: dict[str, Any], scorer: Scorer | None = None) -> Self:
        """Build a selector from `state_dict`'s result; `scorer` where that was a function."""
        config = state.get("config") if isinstance(state, dict) else None
        if isinstance(config, dict) and config.get("scorer") is None:
            if scorer is None:
                raise ValueError(
                    "scorer must be given: the saved policy ranks by a function, which no state "
                    "holds; call LearnedSelector.load(path, scorer=f)"
                )
            state = {**state, "config": {**config, "scorer": scorer}}
        return super().from_state_dict(state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], scorer: Scorer | None = None) -> Self:
        """Read a selector that `save` wrote; `scorer` where that was a function."""
        from ..state import load_state

        return cls.from_state_dict(load_state(path), scorer=scorer)


def _chances(scores: Float, n_best: int) -> Float:
    """Return the chance of each score to be among the best, where ties are broken at random."""
    if n_best >= scores.size or n_best == 0:
        return np.full(scores.size, float(n_best > 0))
    edge = np.partition(scores, scores.size - n_best)[scores.size - n_best]
    above, tied = scores > edge, scores == edge
    chances = above.astype(np.float64)
    chances[tied] = (n_best - np.count_nonzero(above)) / np.count_nonzero(tied)
    return chances
