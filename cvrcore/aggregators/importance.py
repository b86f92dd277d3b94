"""Importance weights: inclusion probabilities in, the weight of each reported model out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..validation import Float, check_choice
from .base import RoundUpdates, WeightedAggregator

FORMS: Final = ("horvitz-thompson", "self-normalised", "stratified")


#: What to do about a policy such as `divfl`, which states no inclusion probabilities.
_UNSTATED: Final = (
    "None: with a policy that has none, aggregate by 'sizes' or 'mean', or choose a policy that "
    "states them, such as 'uniform' or 'pivotal'"
)


def check_form(value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is a known form of an estimator."""
    return check_choice(value, "form", choices)


def inclusion_for(name: str, received: RoundUpdates) -> Float:
    """Return what weights divide by; refuse 0 for a client that reported.

    The inclusion probabilities of a round or, where clients may be drawn more than once,
    their expected counts.
    """
    clients, selection = received.clients, received.selection
    inclusion = None if selection is None else selection.inclusion
    if selection is not None and selection.counts is not None:
        inclusion = selection.expected
    if inclusion is None:
        raise ValueError(
            f"selection must state the inclusion probabilities that aggregator {name!r} divides "
            f"by, got {'no selection: pass it' if selection is None else _UNSTATED}"
        )
    if (inclusion[clients] <= 0).any():
        client = clients[inclusion[clients] <= 0][0]
        raise ValueError(
            "selection must give every client that reported a chance above 0, got 0 for client "
            f"{client}"
        )
    return inclusion


def importance_factors(
    form: str, received: RoundUpdates, weights: Float, inclusion: Float
) -> Float:
    """Return the weight of each reported model; the weights sum to 1, or to 1 on average.

    Selected clients without a report count as missing at random: inclusion probabilities are
    multiplied by the share of the selected clients that reported. A client that was drawn
    more than once counts as often: with expected counts as `inclusion` the first form is
    then the estimator of Hansen and Hurwitz (1943).

    Parameters
    ----------
    form : str
        See `ImportanceAggregator`.
    received : RoundUpdates
        With a selection.
    weights : ndarray of shape (n_clients,)
        Sample counts of the clients whose mean update is estimated.
    inclusion : ndarray of shape (n_clients,)
    """
    assert received.selection is not None
    clients, labels = received.clients, received.selection.coalitions
    times, n_drawn = received.times_drawn, int(received.selection.times_drawn.sum())
    total = weights.sum()
    ratios = times * weights[clients] / (total * inclusion[clients])
    if form == "horvitz-thompson":
        return np.asarray(ratios * (n_drawn / times.sum()))
    if form == "self-normalised" or labels is None:
        return np.asarray(ratios / ratios.sum())
    mass = np.bincount(labels, weights=weights) / total
    strata = labels[clients]
    reported = np.bincount(strata, weights=ratios, minlength=mass.size)
    return np.asarray(ratios * mass[strata] / reported[strata])


class ImportanceAggregator(WeightedAggregator):
    """Each report has the weight ``alpha_k / pi_k`` (Horvitz-Thompson estimator).

    With alpha_k the client's share of the samples of all clients that could be selected, u_k
    its update and pi_k its inclusion probability, the step ``sum_k alpha_k u_k / pi_k`` over
    the selected clients has the mean ``sum_k pi_k alpha_k u_k / pi_k = sum_k alpha_k u_k``:
    the step of full participation, for every policy with pi_k > 0 wherever alpha_k > 0.

    Parameters
    ----------
    form : {"horvitz-thompson", "self-normalised", "stratified"}
        The unbiased step; its weights divided by their sum (Hajek estimator: a bias that
        vanishes as more clients are selected, less variance where weights vary); or divided
        within each coalition, whose weight is then its share of the samples.

    References
    ----------
    .. [1] Horvitz and Thompson, "A generalization of sampling without replacement from a
       finite universe", JASA, 1952.
    .. [2] Chen, Horvath and Richtarik, "Optimal client sampling for federated learning",
       TMLR, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> import cvrcore
    >>> from cvrcore.aggregators import make_aggregator
    >>> picked = cvrcore.make_selector("uniform", n_clients=4, n_select=2, seed=0).select()
    >>> models = [[np.array([1.0])], [np.array([3.0])]]
    >>> aggregator = make_aggregator("importance")
    >>> aggregator.aggregate([np.zeros(1)], models, picked.clients, [10] * 4, picked)
    [array([2.])]
    """

    name = "importance"
    whole_population = True

    def __init__(self, form: str = "horvitz-thompson") -> None:
        self.form = check_form(form, FORMS)

    def _factors(self, received: RoundUpdates) -> Float:
        inclusion = inclusion_for(self.name, received)
        assert received.selection is not None
        reachable = received.weights * (inclusion > 0)
        return importance_factors(self.form, received, reachable, inclusion)

    @property
    def _is_unnormalised(self) -> bool:
        return self.form == "horvitz-thompson"
