"""The draw inside coalitions: Algorithm 1, lines 7 to 9."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import _backend
from ._validation import (
    Float,
    Ids,
    Mask,
    check_available,
    check_choice,
    check_labels,
    check_number,
    check_vector,
)
from .inclusion import successive_inclusion
from .threads import run_chunks

SCORES: Final = ("raw", "zscore", "log")
LAWS: Final = ("boltzmann", "argmax", "uniform")
_CHUNK: Final = 65_536  # clients of one task
_TIE = 1e-9  # scores this close, relative to the largest, are equal: no backend decides


def sort_by_label(labels: Ids, kept: Mask, n_labels: int) -> tuple[Ids, Ids, Ids]:
    """Return ids of kept clients by label, where each label's begin, and how many they are."""
    order = np.empty(labels.size, dtype=np.int64)
    starts, sizes = np.empty((2, n_labels), dtype=np.int64)
    n_kept = _backend.sort_by_label(labels, kept.view(np.uint8), order, starts, sizes)
    return order[:n_kept], starts, sizes


class Groups(NamedTuple):
    """Eligible clients, sorted by coalition."""

    members: Ids  # eligible ids, those of one coalition together
    group: Ids  # the coalition of each, counting non-empty ones alone
    starts: Ids  # where each non-empty coalition begins in `members`
    sizes: Ids  # its number of eligible members

    @classmethod
    def of(cls, coalitions: Ids, eligible: Mask) -> Groups:
        """Sort eligible clients by coalition."""
        members, starts, sizes = sort_by_label(coalitions, eligible, int(coalitions.max()) + 1)
        if sizes.all():
            return cls(members, coalitions[members], starts, sizes)
        found = sizes > 0
        starts, sizes = starts[found], sizes[found]
        return cls(members, np.repeat(np.arange(sizes.size), sizes), starts, sizes)

    def spread(self, per_group: Float) -> Float:
        """Repeat one value per coalition for each of its members."""
        return per_group[self.group]


class Law(NamedTuple):
    """Eq. (11) for everybody, and how many eligible clients each coalition has.

    Worked out over fixed chunks of clients: the number of threads changes no bit.
    """

    probabilities: Float  # (n_clients,), 0 for those not eligible
    counts: Ids  # (n_chunks, n_coalitions)

    @classmethod
    def of(cls, scores: Float, coalitions: Ids, eligible: Mask, temperature: float) -> Law:
        """Return the Boltzmann law of each coalition."""
        n_clients, n_labels = coalitions.size, int(coalitions.max()) + 1
        law, kept = np.empty(n_clients), eligible.view(np.uint8)
        shape = (-(-n_clients // _CHUNK), n_labels)
        counts, tops, totals = np.empty(shape, dtype=np.int64), np.empty(shape), np.empty(shape)

        def survey(start: int, stop: int) -> None:
            found = (counts[start // _CHUNK], tops[start // _CHUNK])
            _backend.law_tops(coalitions, kept, scores, start, stop, *found)

        def weigh(start: int, stop: int) -> None:
            what = (coalitions, kept, scores, top, temperature, start, stop)
            _backend.law_weights(*what, totals[start // _CHUNK], law)

        def share(start: int, stop: int) -> None:
            _backend.law_shares(coalitions, total, start, stop, law)

        run_chunks(survey, n_clients, _CHUNK)
        top = tops.max(axis=0)
        run_chunks(weigh, n_clients, _CHUNK)
        total = totals.sum(axis=0)
        run_chunks(share, n_clients, _CHUNK)
        return cls(law, counts)

    def gives_one_each(self, n_select: int) -> bool:
        """Return whether a coalition gets one place if it has anybody, and nothing is left."""
        sizes = self.counts.sum(axis=0)
        return np.count_nonzero(sizes) == min(n_select, int(sizes.sum()))

    def draw(self, coalitions: Ids, eligible: Mask, rng: np.random.Generator) -> Ids:
        """Draw a client from each coalition that has one; the clients of `draw`, sooner."""
        counts, kept = self.counts.T, eligible.view(np.uint8)
        uniforms = rng.random(int(counts.sum()))  # those of one coalition lie together
        ends = np.cumsum(counts).reshape(counts.shape)
        places = np.ascontiguousarray((ends - counts).T)
        times, picked = np.empty(places.shape), np.empty_like(places)

        def draw_some(start: int, stop: int) -> None:
            chunk = start // _CHUNK
            what = (coalitions, kept, self.probabilities, uniforms, start, stop)
            _backend.draw_one_each(*what, places[chunk], times[chunk], picked[chunk])

        run_chunks(draw_some, coalitions.size, _CHUNK)
        first = picked[times.argmin(axis=0), np.arange(picked.shape[1])]
        return first[first >= 0]


def log_law(
    scores: Float, groups: Groups, law: str = "boltzmann", temperature: float = 1.0
) -> Float:
    """Return unnormalised log-probabilities of ``groups.members``, 0 at their largest.

    Eq. (11) for "boltzmann"; Eq. (10) for "argmax", where equal scores share; "uniform"
    ignores scores.
    """
    values = scores[groups.members]
    if law == "uniform":
        return np.zeros(values.size)
    top = np.maximum.reduceat(values, groups.starts)
    below = values - groups.spread(top)
    if law == "argmax":
        return np.where(below >= -_TIE * np.abs(groups.spread(top)), 0.0, -np.inf)
    if temperature == 1.0:
        return below
    with np.errstate(over="ignore"):  # a tiny temperature: -inf is the limit
        return below / temperature


def probabilities_of(log_weights: Float, groups: Groups, n_clients: int) -> Float:
    """Normalise log-probabilities in each coalition; 0 for everybody else."""
    weights = np.exp(log_weights)
    result = np.zeros(n_clients)
    result[groups.members] = weights / groups.spread(np.add.reduceat(weights, groups.starts))
    return result


def places_of(groups: Groups, n_select: int) -> Ids:
    """Give each coalition with an eligible client one place, and share out the rest.

    A place that its own coalition cannot fill goes to the one with most eligible clients
    to spare, the first such.
    """
    places = np.ones(groups.sizes.size, dtype=np.int64)
    for _ in range(min(n_select, groups.members.size) - places.size):
        places[np.argmax(groups.sizes - places)] += 1
    return places


def draw(
    log_weights: Float,
    scores: Float,
    groups: Groups,
    places: Ids,
    rng: np.random.Generator,
) -> Ids:
    """Draw ``places[p]`` distinct clients from each coalition, first drawn first.

    Gumbel keys: the largest key is a draw from the law, the next a draw from what is
    left, and so on. Clients of probability zero come last, by score.
    """
    keys = np.log(-np.log1p(-rng.random(groups.members.size))) - log_weights  # smallest first
    if math.isfinite(keys.sum()):
        order = np.lexsort((keys, groups.group))
    else:
        order = np.lexsort((-scores[groups.members], keys, groups.group))
    position = np.arange(keys.size) - groups.spread(groups.starts)
    return groups.members[order[position < groups.spread(places)]]


def inclusion_of(
    probabilities: Float, log_weights: Float, scores: Float, groups: Groups, places: Ids
) -> Float | Callable[[], Float]:
    """Return each client's chance to be drawn at all, exact; a function where that takes time.

    Coalitions draw apart from each other, so that one place is the law itself and several
    are `successive_inclusion`. Clients of probability zero are taken by score, for certain,
    once the others are.
    """
    if places.max() == 1:
        return probabilities.copy()

    def work_out() -> Float:
        inclusion = probabilities.copy()
        for start, size, wanted in zip(groups.starts, groups.sizes, places, strict=True):
            if wanted == 1:
                continue
            members = groups.members[start : start + size]
            logs = log_weights[start : start + size]
            chance = successive_inclusion(logs, int(wanted))
            n_left = int(wanted) - int(np.isfinite(logs).sum())
            if n_left > 0:
                none = np.flatnonzero(~np.isfinite(logs))
                best = np.argsort(-scores[members[none]], kind="stable")[:n_left]
                chance[none[best]] = 1.0
            inclusion[members] = chance
        return inclusion

    return work_out


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
    flat = spread <= _TIE * np.abs(scores).max()
    return np.where(flat, 0.0, centred / np.where(flat, 1.0, spread))


def boltzmann(
    scores: ArrayLike,
    coalitions: ArrayLike,
    temperature: float = 1.0,
    available: ArrayLike | None = None,
    score: str = "raw",
) -> Float:
    """Return the Boltzmann law inside each coalition, Eq. (11).

    ``pi_p(k) ~ exp(v_k / temperature)`` for k in coalition p, through a shifted
    log-sum-exp. Towards temperature 0 it is the argmax of Eq. (10), towards infinity
    uniform.

    Parameters
    ----------
    scores : array-like of shape (n_clients,)
        Variance reduction v; finite, larger is likelier.
    coalitions : array-like of int, shape (n_clients,)
        Labels 0 .. P - 1, each used.
    temperature : float, default=1.0
        Positive.
    available : mask of shape (n_clients,) or array of ids, optional
        The law is restricted to them; default: everybody.
    score : {"raw", "zscore", "log"}
        Scale of the scores, see `transform_scores`.

    Returns
    -------
    ndarray of float64, shape (n_clients,)
        Sums to 1 in each coalition with an available client; 0 elsewhere.

    Examples
    --------
    >>> import cvrcore
    >>> cvrcore.boltzmann([0.0, 1.0, 5.0], [0, 0, 1]).round(3)
    array([0.269, 0.731, 1.   ])
    """
    values = check_vector(scores, "scores")
    labels = check_labels(coalitions, values.size)
    temperature = check_number(temperature, "temperature", above=0)
    score = check_choice(score, "score", SCORES)
    mask = check_available(available, values.size)
    if not mask.any():
        return np.zeros(values.size)
    return Law.of(transform_scores(values, labels, score), labels, mask, temperature).probabilities
