"""Aggregators without state: the next model is a mean of those that came back."""

from __future__ import annotations

import numpy as np

from .._validation import Float
from .base import News, ShareAggregator
from .importance import FORMS, check_form, importance_factors, inclusion_for


class SizesAggregator(ShareAggregator):
    """Each reporter counts by its samples: n_k over the sum of those that reported, Eq. (12)."""

    name = "sizes"

    def _shares(self, news: News) -> Float:
        return news.weights[news.clients]


class MeanAggregator(ShareAggregator):
    """Each reporter counts alike: what policies that draw by size were published with."""

    name = "mean"

    def _shares(self, news: News) -> Float:
        return np.ones(news.clients.size)


class CoalitionMassAggregator(ShareAggregator):
    """Each coalition counts by the samples of all its clients; ours, not the paper's.

    Several reporters of one coalition share its mass by their own samples. A coalition that
    nobody reported for drops out. Without coalitions, as in warm-up, shares are by `sizes`.

    It is unbiased when a coalition draws one client in proportion to its samples
    (``within="size"``): with A_p the coalition's share of all samples and
    ``pi_k = alpha_k / A_p``, ``E[sum_p A_p u_k(p)] = sum_p A_p sum_k pi_k u_k =
    sum_k alpha_k u_k``. Under any other law it is not.
    """

    name = "coalition-mass"

    def _shares(self, news: News) -> Float:
        own = news.weights[news.clients]
        if news.selection is None or news.selection.coalitions is None:
            return own
        labels = news.selection.coalitions
        mass = np.bincount(labels, weights=news.weights)
        of_client = labels[news.clients]
        reported = np.bincount(of_client, weights=own, minlength=mass.size)
        shares: Float = own * (mass[of_client] / np.maximum(reported[of_client], 1e-300))
        return shares


class ImportanceAggregator(ShareAggregator):
    """Each reporter counts by ``alpha_k / pi_k``: what its being picked stands for.

    With alpha_k the client's share of the samples of all that could be picked, u_k its
    update and pi_k its inclusion probability, the Horvitz-Thompson step
    ``sum_k alpha_k u_k / pi_k`` over those picked has the mean
    ``sum_k pi_k alpha_k u_k / pi_k = sum_k alpha_k u_k``: that of everybody taking part,
    whatever the policy, as long as pi_k > 0 wherever alpha_k > 0.

    Parameters
    ----------
    form : {"horvitz-thompson", "self-normalised", "stratified"}
        The unbiased step; its shares divided by their sum (Hajek's ratio: a bias that
        vanishes as more are picked, less variance where shares vary); or divided so within
        each coalition, which then counts by its own mass.

    References
    ----------
    .. [1] Horvitz and Thompson, "A generalization of sampling without replacement from a
       finite universe", JASA, 1952.
    .. [2] Chen, Horvath and Richtarik, "Optimal client sampling for federated learning",
       TMLR, 2022.
    """

    name = "importance"
    whole_population = True

    def __init__(self, form: str = "horvitz-thompson") -> None:
        self.form = check_form(form, FORMS)

    def _shares(self, news: News) -> Float:
        inclusion = inclusion_for(self.name, news)
        assert news.selection is not None
        reachable = news.weights * (inclusion > 0)
        return importance_factors(self.form, news, reachable, inclusion)

    @property
    def _keeps_sum(self) -> bool:
        return self.form == "horvitz-thompson"
