"""What each report stands for: its share of the samples over its chance to be picked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .._validation import Float, check_choice
from .base import News

FORMS: Final = ("horvitz-thompson", "self-normalised", "stratified")


def check_form(value: str, choices: Sequence[str]) -> str:
    """Return `value` if it is a known form of an estimator."""
    return check_choice(value, "form", choices)


def inclusion_for(name: str, news: News) -> Float:
    """Return the inclusion probabilities of a round, above 0 for all that reported."""
    clients, selection = news.clients, news.selection
    inclusion = None if selection is None else selection.inclusion
    if inclusion is None:
        raise ValueError(
            f"selection must state the inclusion probabilities that aggregator {name!r} divides "
            f"by, got {'no selection' if selection is None else 'None'}"
        )
    if (inclusion[clients] <= 0).any():
        client = clients[inclusion[clients] <= 0][0]
        raise ValueError(
            f"selection must give every client that reported a chance above 0, got 0 for {client}"
        )
    return inclusion


def importance_factors(form: str, news: News, weights: Float, inclusion: Float) -> Float:
    """Return how much each report counts; their sum is 1, or 1 on average.

    Those picked that stayed silent count as missing at random: what came back stands for
    them too, so that chances are multiplied by the share of the picked that reported.

    Parameters
    ----------
    form : str
        See `ImportanceAggregator`.
    news : News
        Of a round whose selection is known.
    weights : ndarray of shape (n_clients,)
        Samples of each client of the population that is estimated.
    inclusion : ndarray of shape (n_clients,)
    """
    assert news.selection is not None
    clients, labels, n_picked = news.clients, news.selection.coalitions, len(news.selection)
    total = weights.sum()
    odds = weights[clients] / (total * inclusion[clients])
    if form == "horvitz-thompson":
        return np.asarray(odds * (n_picked / clients.size))
    if form == "self-normalised" or labels is None:
        return np.asarray(odds / odds.sum())
    mass = np.bincount(labels, weights=weights) / total
    strata = labels[clients]
    reported = np.bincount(strata, weights=odds, minlength=mass.size)
    return np.asarray(odds * mass[strata] / reported[strata])
