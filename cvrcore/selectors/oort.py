"""Oort: losses and durations in, exploited (high utility) and explored (untried) clients out."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..guards import Guards
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_number, check_stored
from .base import Probe, Report, Selector
from .power_of_choice import gumbel_top_k, law_inclusion
from .uniform import uniform_selection

EXPLORATION = 0.9  # epsilon before the first decay
WINDOW = 5  # explore among the WINDOW * size largest untried clients
PACER_STEP = 20  # rounds
PACER_DELTA = 5.0  # percentile points

_HUGE = 1e300
_TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class Preset:
    """The numbers on which the article, its code and FedScale differ."""

    cut_off: float
    clip: float
    decay: float
    exploration_min: float
    percentile: float


PRESETS = {
    "paper": Preset(0.95, 0.95, 0.98, 0.2, 10.0),
    "repo": Preset(0.7, 0.98, 0.95, 0.2, 10.0),
    "fedscale": Preset(0.05, 0.9, 0.98, 0.3, 30.0),
}


def oort_scores(
    utilities: Float,
    last_rounds: Ids,
    round: int,
    *,
    reference: Float | None = None,
    clip: float = 0.95,
    durations: Float | None = None,
    preferred: float = np.inf,
    penalty: float = 2.0,
) -> Float:
    """Return scores of tried clients from utility, staleness and speed.

    With ``low = 0.999 * min(reference)``::

        s = (min(utility, clip quantile) - low) / (max(reference) - low)
        s = s + sqrt(0.1 * ln(round) / last_round)
        s = s * (preferred / duration) ** penalty       where duration > preferred

    The staleness bonus divides by the *index* of the last round, not by its age: old rounds
    have a small index. The bonus is of order 0.1, so utility is first scaled to [0, 1];
    beside a raw utility in the hundreds, as in one public copy, the bonus has no effect.

    Parameters
    ----------
    utilities : ndarray of shape (n,)
        n_k times the root mean square loss; 0 for a client that failed in every round.
    last_rounds : ndarray of int, shape (n,)
        Round in which each client was last picked, counted from 1.
    round : int
        The coming round, counted from 1.
    reference : ndarray, optional
        Positive utilities that set the scale; untried clients enter with their sample
        count. Default: the positive ones of `utilities`.
    clip : float, default=0.95
        Utilities are clipped at this quantile of `reference`.
    durations : ndarray of shape (n,), optional
        Seconds; NaN where unknown, which brings no penalty.
    preferred : float, default=inf
        Longest duration without a penalty.
    penalty : float, default=2.0
        Exponent of the penalty.

    Examples
    --------
    >>> oort_scores(np.array([1.0, 2.0]), np.array([1, 1]), round=1).round(3)
    array([0.001, 1.   ])
    """
    if reference is None:
        reference = utilities[utilities > 0]
    scores = np.zeros(utilities.shape[0])
    if reference.size:
        ordered = np.sort(reference)
        cap = ordered[min(int(clip * ordered.size + 1e-9), ordered.size - 1)]
        low = 0.999 * ordered[0]
        # A client of utility 0 lies below `low`: clip, draw weights are not negative.
        span = max(ordered[-1] - low, np.finfo(np.float64).tiny)
        scores = np.maximum((np.minimum(utilities, cap) - low) / span, 0.0)
    scores += np.sqrt(0.1 * np.log(round) / last_rounds)
    if durations is not None:
        slow = durations > preferred
        scores[slow] *= (preferred / durations[slow]) ** penalty
    return scores


class OortSelector(Selector):
    """Guided selection by statistical utility, staleness and speed [1]_.

    The first round is uniform. Later rounds exploit ``floor((1 - epsilon) * P)`` clients,
    drawn in proportion to `oort_scores` among the tried clients that score at least
    `cut_off` times the score at that rank. The other places explore: they are drawn in
    proportion to sample counts among the largest untried clients. epsilon is 0.9 times
    `decay` for every closed round, but at least `exploration_min`. Places that one side
    cannot fill go to the other.

    Report the root mean square of the per-sample training losses in the first local
    epoch, or in one pass of the model that was sent (`loss_statistic` is "rms"); the utility
    is n_k times this loss. Summing over all E local epochs, as one public copy does,
    multiplies utility by sqrt(E). A client reported as `failed` counts as tried and keeps
    its utility, so that it is not explored again and again.

    Durations are optional. Without them, or if all are equal, the speed factor is 1 and
    the pacer has no effect. With them, the preferred duration is a percentile of the known
    durations, and the pacer moves this percentile by 5 points every 20 rounds. Preset
    "paper": up if the mean utility of exploited clients is lower than in the 20 rounds
    before. Other presets, as in the published code: up if that mean changed by at most
    10 %, down if by 500 % or more.

    The article explores by speed. The speed of an untried client is not known here, so
    all presets explore by size, as the published code does. Exactly P clients are picked
    (no over-commitment), and no client is barred for being picked often: with a hundred
    clients that rule would bar all of them within a hundred rounds. ``Selection.inclusion``
    is exact given the known losses and durations; it is 0 below the cut-off.

    Parameters
    ----------
    n_clients, n_select, weights, seed
        See `Selector`; `weights` are the n_k.
    preset : {"paper", "repo", "fedscale"}, default="paper"
        Defaults of the five below: the article (0.95, 0.95, 0.98, 0.2, 10), the code of
        its authors (0.7, 0.98, 0.95, 0.2, 10), FedScale's copy (0.05, 0.9, 0.98, 0.3, 30).
    cut_off, clip, decay, exploration_min : float in [0, 1], optional
    percentile : float in [0, 100], optional
        Initial percentile of the preferred duration; at 100 there is no speed penalty.
    penalty : float, default=2.0
        Exponent of the speed factor, >= 0.

    References
    ----------
    .. [1] Lai, Zhu, Madhyastha and Chowdhury, "Oort: efficient federated learning via
       guided participant selection", OSDI, 2021.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("oort", n_clients=10, n_select=3, seed=0)
    >>> picked = selector.select()
    >>> selector.observe(picked.clients, losses=[0.9, 0.4, 2.1], durations=[3.0, 1.0, 2.0])
    >>> len(selector.select())
    3
    """

    name: ClassVar[str] = "oort"
    loss_statistic: ClassVar[str | None] = "rms"

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        preset: str = "paper",
        cut_off: float | None = None,
        clip: float | None = None,
        decay: float | None = None,
        exploration_min: float | None = None,
        percentile: float | None = None,
        penalty: float = 2.0,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.preset = check_choice(preset, "preset", PRESETS)
        chosen = PRESETS[preset]

        def number(value: float | None, name: str, maximum: float = 1.0) -> float:
            value = getattr(chosen, name) if value is None else value
            return check_number(value, name, minimum=0.0, maximum=maximum)

        self.cut_off = number(cut_off, "cut_off")
        self.clip = number(clip, "clip")
        self.decay = number(decay, "decay")
        self.exploration_min = number(exploration_min, "exploration_min")
        self.percentile = number(percentile, "percentile", 100.0)
        self.penalty = check_number(penalty, "penalty", minimum=0.0)
        self._utilities = np.zeros(self.n_clients)
        self._last_rounds = np.zeros(self.n_clients, dtype=np.int64)  # 0: never tried
        self._durations = np.full(self.n_clients, np.nan)
        self._paced = self.percentile
        self._history = np.empty(0)  # exploited utility of the last 2 * PACER_STEP rounds

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if self.round == 0:
            return uniform_selection(eligible, self.n_select, self._rng, 0, warmup=True)
        tried = np.flatnonzero(eligible & (self._last_rounds > 0))
        untried = np.flatnonzero(eligible & (self._last_rounds == 0))
        n_picked = min(self.n_select, tried.size + untried.size)
        # A function of the closed rounds: a repeated `select` must not decay it twice.
        epsilon = max(EXPLORATION * self.decay**self.round, self.exploration_min)
        n_exploited = min(int((1.0 - epsilon) * n_picked + 1e-9), tried.size)
        n_explored = min(n_picked - n_exploited, untried.size)
        n_exploited = n_picked - n_explored

        scores = np.full(self.n_clients, np.nan)
        scores[tried] = self._scores(tried, untried)
        tried, worth = self._admissible(tried, scores[tried], n_exploited)
        exploited = tried[gumbel_top_k(np.log(worth), n_exploited, self._rng)]
        # Ties in size at the edge of the window are broken at random.
        order = np.lexsort((self._rng.random(untried.size), -self.weights[untried]))
        edge, share = _edge(self.weights[untried][order], WINDOW * n_explored)
        tied = untried[order[edge]]
        untried = untried[order[: WINDOW * n_explored]]
        sizes = self.weights[untried]
        explored = untried[gumbel_top_k(np.log(sizes), n_explored, self._rng)]

        by_score = self._law(tried, worth, n_exploited)
        by_size = self._law(untried, sizes, n_explored)

        def inclusion() -> Float:
            by_window = law_inclusion(by_size, n_explored)
            if tied.size:
                by_window[tied] = by_window[tied].max() * share
            return law_inclusion(by_score, n_exploited) + by_window

        return Selection(
            clients=np.concatenate([exploited, explored]),
            scores=scores,
            probabilities=by_score if n_exploited else by_size,
            inclusion=inclusion,
            round=self.round,
        )

    def _scores(self, tried: Ids, untried: Ids) -> Float:
        utilities = self._utilities[tried]
        return oort_scores(
            utilities,
            self._last_rounds[tried],
            self.round + 1,
            reference=np.concatenate([utilities[utilities > 0], self.weights[untried]]),
            clip=self.clip,
            durations=self._durations[tried],
            preferred=self._preferred_duration(),
            penalty=self.penalty,
        )

    def _admissible(self, tried: Ids, scores: Float, size: int) -> tuple[Ids, Float]:
        """Return the clients at or above the cut-off and their positive draw weights."""
        if tried.size == 0:
            return tried, scores
        # Rank `size`, counted from 0, does not exist if all tried clients are exploited.
        edge = np.sort(scores)[::-1][min(size, tried.size - 1)]
        inside = scores >= self.cut_off * edge
        return tried[inside], np.maximum(scores[inside], _TINY)

    def _law(self, ids: Ids, weights: Float, size: int) -> Float:
        """Return the law of the first draw over all clients; zeros if `size` is 0."""
        law = np.zeros(self.n_clients)
        if size > 0:
            scaled = weights / weights.max()
            law[ids] = scaled / scaled.sum()
        return law

    def _preferred_duration(self) -> float:
        known = np.sort(self._durations[~np.isnan(self._durations)])
        if self._paced >= 100.0 or known.size == 0:
            return np.inf
        return float(known[min(int(known.size * self._paced / 100.0 + 1e-9), known.size - 1)])

    def _check_learnable(self, report: Report) -> None:
        if report.losses is None and report.clients.size:
            raise ValueError(
                "losses must be given to oort: the root mean square training loss of each of "
                f"the {report.clients.size} clients that reported, got None"
            )

    def _learn(self, report: Report) -> None:
        exploited = report.clients[self._last_rounds[report.clients] > 0]
        if report.losses is not None:
            with np.errstate(over="ignore"):
                utilities = self.weights[report.clients] * report.losses
            self._utilities[report.clients] = np.minimum(utilities, _HUGE)
        if report.durations is not None:
            self._durations[report.clients] = report.durations
        self._last_rounds[report.clients] = self.round + 1
        self._last_rounds[report.failed] = self.round + 1
        gained = self._utilities[exploited].mean() if exploited.size else 0.0
        self._history = np.append(self._history, gained)[-2 * PACER_STEP :]
        self._pace(self.round + 1)

    def _pace(self, n_closed: int) -> None:
        if self._history.size < 2 * PACER_STEP or n_closed % PACER_STEP:
            return
        # Means of PACER_STEP utilities capped at _HUGE do not overflow.
        before, now = self._history[:PACER_STEP].mean(), self._history[PACER_STEP:].mean()
        if self.preset == "paper":
            up, down = now < before, False
        else:
            change = abs(now - before)
            up, down = change <= 0.1 * before, change >= 5.0 * before
        if up:
            self._paced = min(self._paced + PACER_DELTA, 100.0)
        elif down:
            self._paced = max(self._paced - PACER_DELTA, PACER_DELTA)

    def _grow(self, n_clients: int, added: Float) -> None:
        self._utilities = np.concatenate([self._utilities, np.zeros(added.size)])
        never = np.zeros(added.size, dtype=np.int64)
        self._last_rounds = np.concatenate([self._last_rounds, never])
        self._durations = np.concatenate([self._durations, np.full(added.size, np.nan)])

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self._history = np.empty(0)  # means over a few clients: one may be this client's alone

    def _config(self) -> dict[str, Any]:
        names = ("preset", "cut_off", "clip", "decay", "exploration_min", "percentile", "penalty")
        return {name: getattr(self, name) for name in names}

    def _learned(self) -> dict[str, Any]:
        return {
            "utilities": self._utilities.copy(),
            "last_rounds": self._last_rounds.copy(),
            "durations": self._durations.copy(),
            "percentile": self._paced,
            "history": self._history.copy(),
        }

    def _restore(self, learned: dict[str, Any]) -> None:
        size = self.n_clients
        self._utilities = check_stored(learned["utilities"], "utilities", size)
        self._last_rounds = check_stored(learned["last_rounds"], "last_rounds", size, np.int64)
        self._durations = check_stored(learned["durations"], "durations", size)
        self._paced = check_number(learned["percentile"], "percentile", minimum=0, maximum=100)
        self._history = np.array(learned["history"], dtype=np.float64)


def _edge(ordered: Float, size: int) -> tuple[Mask, float]:
    """Return a mask of the entries tied at the last of `size` places, and the share inside."""
    if not 0 < size < ordered.size:
        return np.zeros(ordered.size, dtype=bool), 1.0
    tied: Mask = ordered == ordered[size - 1]
    return tied, float(np.count_nonzero(tied[:size]) / np.count_nonzero(tied))
