"""Draws with replacement: sample counts in, clients and how often each was drawn out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice
from .base import Probe, Selector
from .guards import Guards

MULTINOMIAL_DESIGNS: Final = ("independent", "systematic")


class MultinomialSelector(Selector):
    """P draws with replacement in proportion to sample counts: scheme I of Li et al. (2020) [1]_.

    Use it with the aggregator ``mean``, which weighs a client by how often it was drawn: the
    step is then unbiased, and the same as that of ``importance``. A client that was drawn
    twice trains once and counts twice.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`; `n_select` is the number of draws.
    design : {"independent", "systematic"}, default="independent"
        As published, or systematic sampling in random order: the same expected counts, each
        count the whole number just below or above its expectation, so that the step varies
        less. With no client above 1 / P of the samples all are then distinct.

    References
    ----------
    .. [1] Li, Huang, Yang, Wang and Zhang, "On the convergence of FedAvg on non-IID data",
       ICLR, 2020.
    .. [2] Fraboni, Vidal, Kameni and Lorenzi, "A general theory for client sampling in
       federated learning", arXiv:2107.12211.

    Examples
    --------
    >>> selector = MultinomialSelector(n_clients=5, n_select=4, weights=[1, 1, 8, 1, 1], seed=0)
    >>> int(selector.select().counts.sum())
    4
    """

    name: ClassVar[str] = "multinomial"
    size_rule = "at-most"

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        design: str = "independent",
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.design = check_choice(design, "design", MULTINOMIAL_DESIGNS)

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        sizes = np.where(eligible, self.weights, 0.0)
        law = sizes / sizes.max()  # the sum must not overflow
        law /= law.sum()
        expected = self.n_select * law
        inclusion: Float | Callable[[], Float]
        if self.design == "independent":
            ends = np.cumsum(law)
            # Never at the end of the line: the last client there may have no samples.
            places = np.minimum(self._rng.random(self.n_select) * ends[-1], ends[-1] * (1 - 1e-16))
            hits = np.searchsorted(ends, places, side="right")
            drawn = np.bincount(hits, minlength=self.n_clients)
            inclusion = functools.partial(_with_replacement, law, self.n_select)
        else:
            drawn = _systematic_counts(expected, self._rng)
            inclusion = np.minimum(expected, 1.0)
        return counted_selection(drawn, expected, inclusion, self._rng, self.round)

    def _config(self) -> dict[str, Any]:
        return {"design": self.design}


def counted_selection(
    drawn: Ids,
    expected: Float,
    inclusion: Float | Callable[[], Float],
    rng: np.random.Generator,
    round: int,
) -> Selection:
    """Return the round of clients that were drawn, in random order, with their counts."""
    clients = rng.permutation(np.flatnonzero(drawn)).astype(np.int64)
    return Selection(
        clients=clients,
        probabilities=expected / expected.sum(),
        inclusion=inclusion,
        counts=drawn[clients].astype(np.int64),
        expected=expected,
        round=round,
    )


def _with_replacement(law: Float, n_draws: int) -> Float:
    """Return the probability of being drawn at least once."""
    with np.errstate(divide="ignore"):  # the only client: log 0
        return np.asarray(-np.expm1(n_draws * np.log1p(-np.minimum(law, 1.0))))


def _systematic_counts(expected: Float, rng: np.random.Generator) -> Ids:
    """Return counts of systematic sampling in random order; they sum to the expected sum."""
    order = rng.permutation(expected.size)
    ends = np.cumsum(expected[order])
    ends *= np.rint(ends[-1]) / ends[-1]
    ends[-1] = np.rint(ends[-1])
    passed = np.floor(ends - rng.random())
    counts = np.zeros(expected.size, dtype=np.int64)
    counts[order] = np.diff(passed, prepend=-1.0).astype(np.int64)
    return counts
