"""The draw of a round: labels, scores and eligible clients in, a `Selection` out; lines 7 to 9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from ..kernels import dispatch
from ..selection import Selection
from ..validation import Float, Ids, Mask
from .allocation import SIZE_LAWS, neyman_places, size_law
from .balanced import draw_balanced, inclusion_across, inclusion_within
from .laws import TIE, Groups, draw, inclusion_of, log_law, places_of, probabilities_of

SCORES: Final = ("raw", "zscore", "log")


def draw_selection(
    labels: Ids,
    scores: Float,
    eligible: Mask,
    n_select: int,
    rng: np.random.Generator,
    *,
    score: str = "raw",
    within: str = "boltzmann",
    temperature: float = 1.0,
    round: int = 0,
    weights: Float | None = None,
    distances: Float | None = None,
    places: str = "even",
    balance: str | None = None,
    rows: Float | None = None,
) -> Selection:
    """Draw one client from each coalition: Algorithm 1, lines 7 to 9; inputs are checked.

    A coalition without an eligible client gives its place to the one with most to spare; with
    fewer coalitions than places, `places` says who gets more. `weights` are the sample
    counts, needed by the laws of `cvrcore.draws.allocation`; so are `distances` by Neyman's.
    `balance` spreads the clients over `rows`, see `cvrcore.draws.balanced`.
    """
    scores = scores.copy()  # as they are now: `inclusion` may be worked out after `observe`
    scaled = transform_scores(scores, labels, score)
    law = Law.of(scaled, labels, eligible, temperature) if within == "boltzmann" else None
    simple = law is not None and places == "even" and balance != "across"
    if simple and law is not None and law.gives_one_each(n_select):  # the usual case
        return Selection(
            clients=law.draw(labels, eligible, rng),
            coalitions=labels,
            scores=scores,
            probabilities=law.probabilities,
            inclusion=law.probabilities,
            round=round,
        )
    groups = Groups.of(labels, eligible)
    if within in SIZE_LAWS:
        assert weights is not None
        log_weights = size_law(within, groups, weights, distances)
    else:
        log_weights = log_law(scaled, groups, within, temperature)
    if places == "neyman":
        assert weights is not None
        assert distances is not None
        n_places = neyman_places(groups, weights, distances, n_select)
    else:
        n_places = places_of(groups, n_select)
    probabilities = (
        probabilities_of(log_weights, groups, labels.size) if law is None else law.probabilities
    )
    inclusion: Float | Callable[[], Float]
    if balance is None:
        clients = draw(log_weights, scaled, groups, n_places, rng)
        inclusion = inclusion_of(probabilities, log_weights, scaled, groups, n_places)
    else:
        assert rows is not None
        if balance == "within":
            chances = inclusion_within(log_weights, groups, n_places)
        else:
            chances = inclusion_across(within, probabilities, groups, n_select, weights, distances)
        clients, inclusion = draw_balanced(chances, rows, groups, rng)
    return Selection(
        clients=clients,
        coalitions=labels,
        scores=scores,
        probabilities=probabilities,
        inclusion=inclusion,
        round=round,
    )


class Law(NamedTuple):
    """Eq. (11) for all clients, and the number of eligible clients of each coalition."""

    probabilities: Float  # (n_clients,), 0 for clients that are not eligible
    counts: Ids  # (n_coalitions,)

    @classmethod
    def of(cls, scores: Float, coalitions: Ids, eligible: Mask, temperature: float) -> Law:
        """Return the Boltzmann law of each coalition, by a shifted log-sum-exp."""
        n_labels = int(coalitions.max()) + 1
        counts, tops = np.empty(n_labels, dtype=np.int64), np.empty(n_labels)
        dispatch.law_tops(coalitions, eligible.view(np.uint8), scores, counts, tops)
        below = np.where(eligible, scores - tops[coalitions], -np.inf)
        with np.errstate(over="ignore"):  # a tiny temperature: -inf is the limit
            law = np.exp(below / temperature)
        total = np.bincount(coalitions, law, n_labels)[coalitions]
        return cls(np.divide(law, total, out=law, where=law > 0), counts)

    def gives_one_each(self, n_select: int) -> bool:
        """Return whether every coalition with an eligible client gets exactly one place."""
        return np.count_nonzero(self.counts) == min(n_select, int(self.counts.sum()))

    def draw(self, coalitions: Ids, eligible: Mask, rng: np.random.Generator) -> Ids:
        """Draw a client from each coalition with an eligible one. Same result as `draw`, faster."""
        uniforms = rng.random(int(self.counts.sum()))  # sorted by coalition, then by id
        places = np.cumsum(self.counts) - self.counts
        picked = np.empty_like(places)
        kept = eligible.view(np.uint8)
        dispatch.draw_one_each(coalitions, kept, self.probabilities, uniforms, places, picked)
        return picked[picked >= 0]


def transform_scores(scores: Float, coalitions: Ids, how: str) -> Float:
    """Put scores on the scale that the temperature divides.

    "raw" is the paper's. "zscore" standardises inside each coalition; "log" makes the law
    a power of v. The last two are ours: raw scores shrink like 1/t, and the law with
    them to uniform.
    """
    if how == "raw":
        return scores
    if how == "log":
        top = scores.max()
        return np.log(np.maximum(scores, 1e-12 * top if top > 0 else 1.0))
    sizes = np.bincount(coalitions)
    centred = scores - (np.bincount(coalitions, scores) / sizes)[coalitions]
    spread = np.sqrt(np.bincount(coalitions, centred**2) / sizes)[coalitions]
    # Equal up to rounding means no information: divide by anything but that.
    flat = spread <= TIE * np.abs(scores).max()
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, spread))
