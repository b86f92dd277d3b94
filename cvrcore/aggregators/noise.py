"""Variance of a round's step: the weights and updates of a round in, one number out."""

from __future__ import annotations

import numpy as np

from ..validation import Float


def step_variance(factors: Float, rows: Float, inclusion: Float | None = None) -> float:
    r"""Return an estimate of the variance of ``sum_j factors_j * rows_j`` over draws.

    Hajek's approximation for samples of fixed size [1]_, summed over coordinates: with
    :math:`c_j` the term of client j, :math:`\pi_j` its inclusion probability, n clients and
    :math:`q_j = (1 - \pi_j)\, n / (n - 1)`,

    .. math:: \sum_j q_j \Big\| c_j - \frac{\sum_i q_i c_i}{\sum_i q_i} \Big\|^2 .

    It uses no joint inclusion probabilities. Draws that spread over the features of clients
    have less variance than it says.

    Parameters
    ----------
    factors : ndarray of shape (n,)
        Weight of each report in the step.
    rows : ndarray of shape (n, size)
        What each report adds: its update, or its difference from what was expected of it. If
        the weights were divided by their sum, the weighted mean is subtracted first.
    inclusion : ndarray of shape (n,), optional
        Of the clients that reported. Default: close to 0.

    Returns
    -------
    float
        Infinity for a single report that was not certain to be drawn.

    References
    ----------
    .. [1] Hajek, "Asymptotic theory of rejective sampling with varying probabilities from a
       finite population", Annals of Mathematical Statistics, 1964.

    Examples
    --------
    >>> step_variance(np.array([0.5, 0.5]), np.array([[1.0], [3.0]]))
    1.0
    """
    n = len(factors)
    left_out = np.ones(n) if inclusion is None else 1.0 - np.minimum(inclusion, 1.0)
    if not left_out.sum() > 0:
        return 0.0
    if n == 1:
        return float("inf")
    q = left_out * (n / (n - 1))
    terms = factors[:, None].astype(rows.dtype) * rows
    centre = (q / q.sum()).astype(rows.dtype) @ terms
    terms -= centre
    return float(q @ np.einsum("jd,jd->j", terms, terms, dtype=np.float64))
