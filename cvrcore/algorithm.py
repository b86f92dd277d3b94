"""Algorithm 1 of the paper, stateless, from top to bottom: arrays in, arrays out.

Licciardi, Raineri, Proskurnikov, Rondoni, Zino: "Tackling Heterogeneity in Federated Learning
via Variance-Reduced Boltzmann Sampling within Homogeneous Social Coalitions" (FedCVR-Bolt).
docs/algorithm.md says, line by line, where this library departs from the text. A server that
keeps state between rounds uses `cvrcore.CoalitionSelector`: the same numbers, incrementally.

=====================  ==========================================  =====================
lines of Algorithm 1   what they do                                function
=====================  ==========================================  =====================
3, 4                   normalise rows, influence W, Eq. (4)        `influence`
5                      coalitions by spectral clustering           `coalitions`
6                      variance reduction v, Eqs. (8), (9)         `variance_reduction`
7                      Boltzmann law in each coalition, Eq. (11)   `boltzmann`
3 to 9                 one client from each coalition              `select`
13 to 18               predictor, Eq. (13), residuals, C           `update_covariance`
=====================  ==========================================  =====================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .clustering.affinity import KERNELS, Affinity, check_gamma
from .clustering.partitions import Effort, plane_coalitions, spectral_coalitions, trivial_partition
from .covariance.pairs import PREDICTORS, cosine_coefficients, representatives
from .covariance.scores import DIAGONAL_FLOOR, score_moments
from .draws.allocation import SIZE_LAWS, expected_distances
from .draws.coalition_draw import SCORES, Law, draw_selection, transform_scores
from .draws.laws import LAWS
from .runtime.threads import single_blas_thread
from .selection import Selection
from .validation import (
    Float,
    Ids,
    check_available,
    check_choice,
    check_count,
    check_finite,
    check_ids,
    check_labels,
    check_matrix,
    check_number,
    check_seed,
    check_vector,
    check_weights,
)


def influence(models: ArrayLike, kernel: str = "rbf", gamma: float | str = 1.0) -> Float:
    """Return the influence matrix W of Eq. (4), rows summing to 1.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's model; rows are normalised first
        (Algorithm 1, line 3), a zero row stays zero.
    kernel : {"rbf", "cosine", "laplacian", "sigmoid"}
        See `Affinity`.
    gamma : float or "median", default=1.0
        The paper gives none; its scripts use 1. "cosine" ignores it.

    Returns
    -------
    ndarray of float64, shape (n_clients, n_clients)

    Examples
    --------
    >>> import cvrcore
    >>> cvrcore.influence([[1.0, 0.0], [0.0, 1.0]]).round(3)
    array([[0.881, 0.119],
           [0.119, 0.881]])
    """
    rows = check_matrix(models, "models", dtype=np.float64)
    kernel = check_choice(kernel, "kernel", KERNELS)
    gamma = check_gamma(gamma, kernel)
    with single_blas_thread():
        weights = Affinity(rows, kernel, gamma).matrix()
    return weights / weights.sum(axis=1, keepdims=True)


def coalitions(
    models: ArrayLike,
    n_coalitions: int,
    kernel: str = "rbf",
    gamma: float | str = 1.0,
    n_init: int = 10,
    seed: int | np.random.Generator | None = None,
) -> Ids:
    """Partition clients into coalitions by spectral clustering, Algorithm 1, line 5.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's model. One or two coordinates are clustered
        as they are, by k-means.
    n_coalitions : int
        P, between 1 and the number of clients.
    kernel, gamma
        See `cvrcore.influence`.
    n_init : int, default=10
        Restarts of k-means.
    seed : int, Generator or None

    Returns
    -------
    ndarray of int64, shape (n_clients,)
        Labels 0 .. P - 1, each used at least once, numbered by first appearance.

    Examples
    --------
    >>> import cvrcore
    >>> cvrcore.coalitions([[1, 0, 0], [0, 1, 0], [1, 0.1, 0], [0, 1, 0.1]], 2, seed=0)
    array([0, 1, 0, 1])
    """
    rows = check_matrix(models, "models")
    n_coalitions = check_count(n_coalitions, "n_coalitions", maximum=rows.shape[0])
    kernel = check_choice(kernel, "kernel", KERNELS)
    gamma = check_gamma(gamma, kernel)
    effort = Effort(restarts=check_count(n_init, "n_init"))
    rng = check_seed(seed)
    trivial = trivial_partition(rows.shape[0], n_coalitions)
    if trivial is not None:
        return trivial
    if rows.shape[1] <= 2:
        return plane_coalitions(rows, n_coalitions, rng, effort)
    with single_blas_thread():
        return spectral_coalitions(Affinity(rows, kernel, gamma), n_coalitions, rng, effort)[0]


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
    cov = _check_covariance(covariance)
    alpha = check_weights(weights, cov.shape[1])
    alpha = alpha / alpha.sum()
    moment = np.ascontiguousarray(np.matmul(cov, alpha, dtype=np.float64).T)
    return score_moments(moment, np.einsum("dkk->kd", cov).astype(np.float64, order="C"))


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


def select(
    models: ArrayLike,
    n_select: int,
    weights: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    kernel: str = "rbf",
    gamma: float | str = 1.0,
    temperature: float = 1.0,
    available: ArrayLike | None = None,
    seed: int | np.random.Generator | None = None,
    *,
    score: str = "raw",
    within: str = "boltzmann",
) -> Selection:
    """Pick one client from each of `n_select` coalitions: Algorithm 1, lines 3 to 9.

    Stateless: the caller keeps models and covariance between rounds, or lets
    `CoalitionSelector` do it, which is faster.

    Parameters
    ----------
    models : array-like of shape (n_clients, n_features)
        Watched coordinates of each client's last model, see `cvrcore.features`.
    n_select : int
        P: clients to pick, and coalitions to form.
    weights : array-like of shape (n_clients,), optional
        Sample counts n_k; a client of weight 0 is never picked. Default: equal.
    covariance : array-like of shape (n_features, n_clients, n_clients), optional
        C, from `update_covariance`. Default: ones, the first round's.
    kernel, gamma
        See `cvrcore.influence`.
    temperature : float, default=1.0
        Positive; see `cvrcore.boltzmann`.
    available : mask of shape (n_clients,) or array of ids, optional
        Who can be reached. Default: everybody.
    seed : int, Generator or None
    score : {"raw", "zscore", "log"}
        Scale of the scores; "raw" is the paper's.
    within : {"boltzmann", "argmax", "uniform", "size", "neyman"}
        Law inside a coalition, as in `cvrcore.Rule`: Eq. (11), Eq. (10), or neither; in
        proportion to samples, or to samples times the distance of the client's row from its
        coalition's mean ("neyman", meant for rows of updates).

    Returns
    -------
    Selection

    Examples
    --------
    >>> import cvrcore
    >>> models = [[1, 0, 0], [1, 0.1, 0], [0, 1, 0], [0, 1, 0.1]]
    >>> picked = cvrcore.select(models, n_select=2, seed=0)
    >>> picked.coalitions
    array([0, 0, 1, 1])
    """
    rows = check_matrix(models, "models")
    n_clients, n_features = rows.shape
    n_select = check_count(n_select, "n_select", maximum=n_clients)
    sizes = check_weights(weights, n_clients)
    temperature = check_number(temperature, "temperature", above=0)
    score = check_choice(score, "score", SCORES)
    within = check_choice(within, "within", (*LAWS, *SIZE_LAWS))
    eligible = check_available(available, n_clients) & (sizes > 0)
    if not eligible.any():
        raise ValueError("available must contain at least one client of positive weight, got none")
    if covariance is None:
        scores = np.full(n_clients, float(n_features))
    else:
        cov = _check_covariance(covariance, n_clients)
        if cov.shape[0] != n_features:
            raise ValueError(
                f"covariance must have one matrix for each of {n_features} features, "
                f"got {cov.shape[0]}"
            )
        scores = variance_reduction(cov, sizes)
    rng = check_seed(seed)
    labels = coalitions(rows, n_select, kernel, gamma, seed=rng)
    everyone = np.ones(n_clients, dtype=bool)
    neyman = within == "neyman"
    return draw_selection(
        labels,
        scores,
        eligible,
        n_select,
        rng,
        score=score,
        within=within,
        temperature=temperature,
        weights=sizes,
        distances=expected_distances(rows, labels, sizes, everyone) if neyman else None,
    )


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

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore import update_covariance
    >>> models = np.array([[1.0], [2.0], [5.0]])  # three clients, one watched coordinate
    >>> update_covariance(np.ones((1, 3, 3)), models, [0, 2], [0, 0, 1], rate=0.5)
    array([[[0.5, 0.5, 0.5],
            [0.5, 1. , 0.5],
            [0.5, 0.5, 0.5]]])
    """
    cov = _check_covariance(covariance)
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


def _check_covariance(value: ArrayLike, n_clients: int | None = None) -> Float:
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
