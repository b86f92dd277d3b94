"""Power-of-Choice: losses of random candidates in, the candidates of highest loss out."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..draws.inclusion import filled_in, sampled_inclusion, successive_inclusion
from ..guards import Guards
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_count, check_stored
from .base import Probe, Selector

_MANY: Final = 500  # weights from which `weighted_top_k` gains


def gumbel_top_k(log_weights: Float, size: int, rng: np.random.Generator) -> Ids:
    """Draw `size` distinct indices one by one in proportion to weights: Gumbel top-k.

    The largest log weights after adding Gumbel noise follow the law of sequential sampling
    without replacement (Efraimidis and Spirakis, 2006), in the same order. Logarithms do not
    overflow or underflow; ``rng.choice(p=...)`` fails if fewer than `size` probabilities
    are above zero.

    Parameters
    ----------
    log_weights : ndarray of shape (n,)
        At least `size` entries above -inf.
    size : int
    rng : Generator
    """
    if size == 0:
        return np.empty(0, dtype=np.int64)
    keys = -(log_weights + rng.gumbel(size=log_weights.shape[0]))
    top = np.argpartition(keys, size - 1)[:size]
    return top[np.argsort(keys[top])].astype(np.int64)


def weighted_top_k(weights: Float, size: int, rng: np.random.Generator) -> Ids:
    """Return what ``gumbel_top_k(np.log(weights), size, rng)`` returns, faster for many weights.

    Gumbel noise g is -log(-log(1 - u)), so the largest ``log(w) + g`` are the smallest
    ``-log(1 - u) / w``. These are at least u / w: logarithms are taken only of those with u / w
    below a bound that about three times `size` of them meet.
    """
    n = weights.shape[0]
    total, top = float(weights.sum()), float(weights.max(initial=0.0))
    # Few weights, or numbers whose quotients could overflow or lose their order.
    plain = n < _MANY or 8 * size > n or not 1e-100 < top <= total < 1e100
    if plain or float(weights.min()) < 1e-100:
        with np.errstate(divide="ignore"):
            return gumbel_top_k(np.log(weights), size, rng)
    before = rng.bit_generator.state
    uniforms: Float = rng.random(size=(n,))  # the numbers that `rng.gumbel` would use
    bound = 3.0 * size / total
    near = np.flatnonzero(uniforms < bound * weights)
    times = -np.log1p(-uniforms[near]) / weights[near]
    if np.count_nonzero(times < bound) < size or not uniforms.all():
        rng.bit_generator.state = before
        return gumbel_top_k(np.log(weights), size, rng)
    first = near[np.argsort(times)[:size]]
    return first.astype(np.int64)


def law_inclusion(law: Float, size: int) -> Float:
    """Return exact inclusion probabilities of `size` successive draws from a law."""
    with np.errstate(divide="ignore"):
        return successive_inclusion(np.log(law), min(size, int(np.count_nonzero(law))))


class PowerOfChoiceSelector(Selector):
    """Pick the clients of highest loss among a random set of candidates [1]_.

    `probe` draws the candidates. `select` takes their mean losses of the *current global
    model* over their *training* samples and picks the largest; ties are broken at random.
    A candidate without an answer (NaN) is picked only if too few candidates answered. Give
    the same `available` to both; candidates that became unavailable are replaced by further
    draws.

    Public copies differ from the article, and so from this class: some draw the
    candidates uniformly (``candidates="uniform"`` here), rank by test loss (which leaks
    test labels), give an empty client an infinite loss (so that it is always picked; here a
    client of weight 0 is never eligible), or use positions among the candidates as client
    ids.

    Parameters
    ----------
    n_clients, n_select, weights, seed
        See `Selector`.
    n_candidates : int, optional
        Number of candidates, d, at least `n_select`; capped at the eligible clients.
        Default: twice `n_select`. With ``n_candidates=n_select`` losses have no effect and
        the policy samples with probability proportional to size.
    candidates : {"size", "uniform"}, default="size"
        Draw candidates without replacement in proportion to ``weights``, or uniformly.

    Notes
    -----
    ``Selection.inclusion`` is over the draw of the candidates too;
    `cvrcore.draws.inclusion.sampled_inclusion` estimates it. A client that is no candidate
    enters with its last known loss, or with the loss of a random client if it has none. The
    estimate is exact if all candidates are picked. It is near 0 for clients of low loss:
    weighting by its inverse cannot undo the policy's bias towards high losses.

    References
    ----------
    .. [1] Cho, Wang and Joshi, "Towards understanding biased client selection in
       federated learning", AISTATS, 2022.

    Examples
    --------
    >>> selector = PowerOfChoiceSelector(n_clients=4, n_select=2, n_candidates=4, seed=0)
    >>> loss = np.array([0.1, 0.9, 0.3, 0.8])
    >>> asked = selector.probe()
    >>> selector.select(losses=loss[asked]).clients
    array([1, 3])
    """

    name: ClassVar[str] = "power-of-choice"
    needs = frozenset({"probe"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_candidates: int | None = None,
        candidates: str = "size",
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        if n_candidates is None:
            n_candidates = 2 * self.n_select
        self.n_candidates = check_count(n_candidates, "n_candidates", minimum=self.n_select)
        self.candidates = check_choice(candidates, "candidates", ("size", "uniform"))
        self._losses = np.full(self.n_clients, np.nan)  # last known; only `inclusion` reads it

    def _candidates(self, eligible: Mask) -> Ids:
        size = min(self.n_candidates, int(np.count_nonzero(eligible)))
        return self._draw(eligible, size)

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if probe is None:
            raise ValueError(
                "losses must be given to power-of-choice: call probe() and pass the loss of "
                "each client that it returns, got None"
            )
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        scores = np.full(self.n_clients, np.nan)
        scores[probe.clients] = probe.losses
        answered = ~np.isnan(probe.losses)
        self._losses[probe.clients[answered]] = probe.losses[answered]
        asked = probe.clients[eligible[probe.clients]]
        if asked.size > n_picked:
            losses = scores[asked]
            ranks = np.where(np.isnan(losses), -np.inf, losses)
            order = np.lexsort((self._rng.random(asked.size), -ranks))
            return self._selection(asked[order[:n_picked]], scores, eligible)
        if asked.size < n_picked:
            others = eligible.copy()
            others[asked] = False
            asked = np.concatenate([asked, self._draw(others, n_picked - asked.size)])
            return self._selection(asked, scores, eligible)
        law = self._law(eligible, self.weights)  # all candidates are picked: losses have no effect
        return Selection(
            clients=asked,
            scores=scores,
            probabilities=law,
            inclusion=functools.partial(law_inclusion, law.copy(), n_picked),
            round=self.round,
        )

    def _selection(self, clients: Ids, scores: Float, eligible: Mask) -> Selection:
        # As they are now: `inclusion` may be worked out after the next round.
        round, last, sizes = self.round, self._losses.copy(), self.weights

        def estimate() -> Float:
            ids = np.flatnonzero(eligible)
            with np.errstate(divide="ignore"):  # a share may be too small for a double
                logs = np.log(self._law(eligible, sizes)[ids])
            n_asked, losses = min(self.n_candidates, ids.size), last[ids]

            def draw(rng: np.random.Generator, n: int) -> Ids:
                keys = -(logs + rng.gumbel(size=(n, ids.size)))
                asked = np.argpartition(keys, n_asked - 1, axis=1)[:, :n_asked]
                ranks = np.take_along_axis(-filled_in(losses, rng, n), asked, axis=1)
                best = np.lexsort((rng.random(ranks.shape), ranks))[:, : clients.size]
                return ids[np.take_along_axis(asked, best, axis=1)]

            return sampled_inclusion(draw, eligible, clients, round)

        return Selection(clients=clients, scores=scores, inclusion=estimate, round=round)

    def _law(self, mask: Mask, sizes: Float) -> Float:
        weights = mask * (sizes if self.candidates == "size" else 1.0)
        weights /= weights.max()  # the sum must not overflow
        return np.asarray(weights / weights.sum())

    def _draw(self, mask: Mask, size: int) -> Ids:
        ids = np.flatnonzero(mask)
        weights = self.weights[ids] if self.candidates == "size" else np.ones(ids.size)
        return ids[weighted_top_k(weights, size, self._rng)]

    def _grow(self, n_clients: int, added: Float) -> None:
        self._losses = np.concatenate([self._losses, np.full(added.size, np.nan)])

    def _config(self) -> dict[str, Any]:
        return {"n_candidates": self.n_candidates, "candidates": self.candidates}

    def _learned(self) -> dict[str, Any]:
        return {} if np.isnan(self._losses).all() else {"losses": self._losses.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        if "losses" in learned:
            self._losses = check_stored(learned["losses"], "losses", self.n_clients)
