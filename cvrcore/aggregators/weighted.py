"""Weighted means: the models of a round in, their mean by samples, alike or by coalition out."""

from __future__ import annotations

import numpy as np

from ..validation import Float
from .base import RoundUpdates, WeightedAggregator


class SizesAggregator(WeightedAggregator):
    """Each report has the weight n_k over the sum of the clients that reported, Eq. (12).

    A client drawn more than once counts as often, here and below.

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore.aggregators import make_aggregator
    >>> models = [[np.array([1.0])], [np.array([4.0])]]  # of clients 0 and 2
    >>> make_aggregator("sizes").aggregate([np.zeros(1)], models, [0, 2], [30, 9, 15])
    [array([2.])]
    """

    name = "sizes"

    def _factors(self, received: RoundUpdates) -> Float:
        return received.times_drawn * received.weights[received.clients]


class MeanAggregator(WeightedAggregator):
    """Each report has the same weight: published with policies that draw by sample count.

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore.aggregators import make_aggregator
    >>> models = [[np.array([1.0])], [np.array([4.0])]]  # of clients 0 and 2
    >>> make_aggregator("mean").aggregate([np.zeros(1)], models, [0, 2], [30, 9, 15])
    [array([2.5])]
    """

    name = "mean"

    def _factors(self, received: RoundUpdates) -> Float:
        return received.times_drawn


class CoalitionMassAggregator(WeightedAggregator):
    """Each coalition has the weight of all its clients' samples; not part of the paper.

    Several reports of one coalition divide its weight by their own samples. A coalition
    without a report drops out. Without coalitions, as in warm-up, weights are as in `sizes`.

    It is unbiased when a coalition draws one client in proportion to its samples
    (``within="size"``): with A_p the coalition's share of all samples and
    ``pi_k = alpha_k / A_p``, ``E[sum_p A_p u_k(p)] = sum_p A_p sum_k pi_k u_k =
    sum_k alpha_k u_k``. Under any other law it is not.

    Examples
    --------
    >>> import numpy as np
    >>> import cvrcore
    >>> from cvrcore.aggregators import make_aggregator
    >>> picked = cvrcore.Selection(np.array([0, 2]), coalitions=np.array([0, 0, 1]))
    >>> models = [[np.array([1.0])], [np.array([4.0])]]  # coalition 0 has 45 samples, 1 has 15
    >>> make_aggregator("coalition-mass").aggregate(
    ...     [np.zeros(1)], models, picked.clients, [30, 15, 15], picked
    ... )
    [array([1.75])]
    """

    name = "coalition-mass"

    def _factors(self, received: RoundUpdates) -> Float:
        own: Float = received.times_drawn * received.weights[received.clients]
        if received.selection is None or received.selection.coalitions is None:
            return own
        labels = received.selection.coalitions
        mass = np.bincount(labels, weights=received.weights)
        of_client = labels[received.clients]
        reported = np.bincount(of_client, weights=own, minlength=mass.size)
        factors: Float = own * (mass[of_client] / np.maximum(reported[of_client], 1e-300))
        return factors
