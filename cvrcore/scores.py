"""Variance reduction: Algorithm 1, line 6."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from . import _backend
from ._validation import Float, check_finite, check_weights

#: A diagonal entry of C^d below this share of its coordinate's mean counts as zero.
DIAGONAL_FLOOR: Final = 1e-12


def check_covariance(value: ArrayLike, n_clients: int | None = None) -> Float:
    """Return C of shape (n_features, n_clients, n_clients), finite, diagonal not negative."""
    cov = np.ascontiguousarray(value)
    if cov.dtype.kind not in "fiu":
        raise TypeError(f"covariance must be a real numeric array, got dtype {cov.dtype}")
    if cov.dtype not in (np.float32, np.float64):
        cov = cov.astype(np.float64)
    wanted = "n_clients" if n_clients is None else n_clients
    if cov.ndim != 3 or cov.shape[1] != cov.shape[2] or n_clients not in (None, cov.shape[1]):
        raise ValueError(
            f"covariance must have shape (n_features, {wanted}, {wanted}), got {cov.shape}"
        )
    if cov.size == 0:
        raise ValueError(f"covariance must not be empty, got shape {cov.shape}")
    check_finite(cov, "covariance")
    lowest = np.einsum("dkk->dk", cov).min()
    if lowest < 0:
        raise ValueError(f"covariance must have a non-negative diagonal, got {lowest:g}")
    return cov


def score_moments(moment: Float, diagonal: Float) -> Float:
    """Return v from ``C alpha`` and ``diag C``, each of shape (n_clients, n_features)."""
    floor = np.empty(moment.shape[1])
    scores = np.empty(moment.shape[0])
    _backend.diagonal_floor(diagonal, DIAGONAL_FLOOR, floor)
    _backend.variance_reduction(moment, diagonal, floor, scores)
    return scores


def variance_reduction(covariance: ArrayLike, weights: ArrayLike | None = None) -> Float:
    """Return the total variance reduction of each client, Eqs. (8) and (9).

    ``v_k = sum_d (C^d alpha)_k^2 / C^d_kk``: how much of the variance of the aggregate
    alpha . theta is explained by observing client k alone.

    Parameters
    ----------
    covariance : array-like of shape (n_features, n_clients, n_clients)
        Symmetric matrices C^d with a non-negative diagonal. An entry of the diagonal
        below 1e-12 times its coordinate's mean counts as v_k^d = 0.
    weights : array-like of shape (n_clients,), optional
        Sample counts n_k; alpha = n_k / n. Default: equal.

    Returns
    -------
    ndarray of float64, shape (n_clients,)

    Examples
    --------
    >>> import cvrcore, numpy as np
    >>> cvrcore.variance_reduction(np.ones((3, 2, 2)))
    array([3., 3.])
    """
    cov = check_covariance(covariance)
    alpha = check_weights(weights, cov.shape[1])
    alpha = alpha / alpha.sum()
    moment = np.ascontiguousarray(np.matmul(cov, alpha, dtype=np.float64).T)
    return score_moments(moment, np.einsum("dkk->kd", cov).astype(np.float64, order="C"))
