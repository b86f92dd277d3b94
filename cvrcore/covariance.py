"""Online covariance of residuals, stateless: Algorithm 1, lines 13 to 18.

`cvrcore.store` keeps the same matrices between rounds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from ._validation import (
    Float,
    Ids,
    check_choice,
    check_ids,
    check_labels,
    check_matrix,
    check_number,
)
from .scores import DIAGONAL_FLOOR, check_covariance

PREDICTORS: Final = ("regression", "cosine")


def representatives(clients: Ids, coalitions: Ids) -> Ids:
    """Return the representative of each coalition: its first of `clients`, or -1."""
    first = np.full(int(coalitions.max()) + 1, -1, dtype=np.int64)
    # Written backwards, so that the first of a coalition is written last.
    first[coalitions[clients[::-1]]] = clients[::-1]
    return first


def cosine_coefficients(previous: Float, representative: Ids) -> Float:
    """Return the cosine of each client's last row with its representative's; 0 for zero rows."""
    others = previous[representative]
    dots = np.einsum("kd,kd->k", previous, others, dtype=np.float64)
    norms = np.sqrt(np.einsum("kd,kd->k", previous, previous, dtype=np.float64))
    product = norms * norms[representative]
    return np.where(product > 0, dots / np.where(product > 0, product, 1.0), 0.0)


def update_covariance(
    covariance: ArrayLike,
    models: ArrayLike,
    clients: ArrayLike,
    coalitions: ArrayLike,
    rate: float,
    predictor: str = "regression",
    previous: ArrayLike | None = None,
) -> Float:
    """Blend one round's residuals into the covariance and return the new one.

    Every client k is predicted from the representative j of its coalition,
    ``theta_bar_k = c_k theta_j`` (Eq. (13)), and
    ``C^d <- (1 - rate) C^d + rate delta^d delta^dT`` with ``delta = theta - theta_bar``
    (Algorithm 1, lines 14 and 17). The representative's residual is 0; so is that of a
    coalition without one.

    Parameters
    ----------
    covariance : array-like of shape (n_features, n_clients, n_clients)
    models : array-like of shape (n_clients, n_features)
        Rows after the round: new ones for those that reported, old ones for the rest.
    clients : array-like of int
        Representatives that reported, at most one in a coalition. With none at all every
        residual is 0 and C only fades; the selector leaves such a round out.
    coalitions : array-like of int, shape (n_clients,)
    rate : float
        Step, in [0, 1].
    predictor : {"regression", "cosine"}
        "regression": ``c_k^d = C^d_kj / C^d_jj``, correlation clipped to [-1, 1], 0 where
        C^d_jj is below 1e-12 of that coordinate's mean diagonal. "cosine": one scalar per
        pair, the cosine of the rows in `previous`.
    previous : array-like of shape (n_clients, n_features), optional
        Rows before the round; needed by "cosine".

    Returns
    -------
    ndarray of shape (n_features, n_clients, n_clients)
        A new array; the input is left as it was.
    """
    cov = check_covariance(covariance)
    n_features, n_clients, _ = cov.shape
    rows = check_matrix(models, "models", (n_clients, n_features), np.float64)
    labels = check_labels(coalitions, n_clients)
    ids = check_ids(clients, "clients", n_clients)
    rate = check_number(rate, "rate", minimum=0.0, maximum=1.0)
    predictor = check_choice(predictor, "predictor", PREDICTORS)
    used = np.bincount(labels[ids], minlength=1)
    if used.max() > 1:
        raise ValueError(
            f"clients must hold one representative a coalition, got {used.max()} in coalition "
            f"{used.argmax()}"
        )
    representative = representatives(ids, labels)[labels]
    if predictor == "cosine":
        if previous is None:
            raise ValueError("previous rows are required by predictor 'cosine', got None")
        old = check_matrix(previous, "previous", rows.shape, np.float64)
        coefficients = cosine_coefficients(old, representative)[:, None]
    else:
        diagonal = np.einsum("dkk->kd", cov).astype(np.float64)
        variance = diagonal[representative]
        entries = np.take_along_axis(cov, np.maximum(representative, 0)[None, :, None], axis=2)
        bound = np.sqrt(diagonal * variance)
        clipped = np.clip(entries[:, :, 0].T, -bound, bound)
        usable = variance > DIAGONAL_FLOOR * diagonal.mean(axis=0)
        coefficients = np.where(usable, clipped / np.where(usable, variance, 1.0), 0.0)
    delta = rows - coefficients * rows[representative]
    delta[(representative < 0) | (representative == np.arange(n_clients))] = 0.0
    updated = (1.0 - rate) * cov
    for d in range(n_features):  # one outer product at a time stays in cache
        updated[d] += rate * np.outer(delta[:, d], delta[:, d])
    return updated
