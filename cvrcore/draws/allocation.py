"""Neyman's rules: sizes and distances of clients in, laws inside coalitions and places out.

Ours, not the paper's. An aggregate that estimates the update of all clients (see
`cvrcore.aggregators`) has a sampling variance. One client drawn from coalition p, with weight
``alpha_k / pi_k`` around a centre c_p that is known or cancels, contributes

    ``sum_k alpha_k^2 |u_k - c_p|^2 / pi_k - |sum_k alpha_k (u_k - c_p)|^2``,

least for ``pi_k ~ alpha_k |u_k - c_p|`` (Neyman, 1934): large clients, and clients far from
the centre of their coalition, are drawn more often. With m_p draws the variance falls like
``S_p^2 / m_p``, ``S_p = sum_k alpha_k |u_k - c_p|``, so coalitions get places in proportion
to S_p.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ..validation import Float, Ids, Mask
from .laws import Groups

#: Laws inside a coalition that depend on client sizes, and rules that allocate places.
SIZE_LAWS: Final = ("size", "neyman")
PLACES: Final = ("even", "neyman")
#: Share of the law "size" mixed into "neyman": no probability falls below FLOOR times that
#: of "size", and no report counts for more than 1 / FLOOR of its coalition.
FLOOR: Final = 0.3


def expected_distances(rows: Float, coalitions: Ids, weights: Float, known: Mask) -> Float:
    """Return the expected distance of each client's next update from its coalition's mean.

    The estimate is the distance of the client's last row from the sample-weighted mean of
    its coalition's known rows; for an unseen client, the mean distance of its coalition, or
    of all clients.

    Parameters
    ----------
    rows : ndarray of shape (n_clients, n_features)
        Last rows: updates, since models of different rounds are not comparable.
    coalitions : ndarray of int64, shape (n_clients,)
    weights : ndarray of shape (n_clients,)
        Sample counts; positive for at least one known client.
    known : ndarray of bool, shape (n_clients,)

    Returns
    -------
    ndarray of float64, shape (n_clients,)
        All 1 if no client is known.

    Examples
    --------
    >>> rows = np.array([[0.0], [2.0], [5.0], [9.0]])
    >>> known = np.array([True, True, True, False])
    >>> expected_distances(rows, np.array([0, 0, 1, 0]), np.ones(4), known)
    array([1., 1., 0., 1.])
    """
    share = weights * known
    n_coalitions = int(coalitions.max()) + 1
    member = np.zeros((n_coalitions, coalitions.size))
    member[coalitions, np.arange(coalitions.size)] = share
    mass = member.sum(axis=1)
    if not mass.any():
        return np.ones(coalitions.size)
    centre = (member @ rows) / np.where(mass > 0, mass, 1.0)[:, None]
    away = rows - centre[coalitions]
    distances = np.sqrt(np.einsum("kd,kd->k", away, away, dtype=np.float64))
    typical = member @ distances / np.where(mass > 0, mass, 1.0)
    typical[mass == 0] = share @ distances / share.sum()
    return np.where(known, distances, typical[coalitions])


def size_law(
    law: str, groups: Groups, weights: Float, distances: Float | None, floor: float = FLOOR
) -> Float:
    """Return log-probabilities of ``groups.members`` by "size" or "neyman", 0 at most.

    "size" is probability proportional to size, ``pi_k = n_k / sum n``. "neyman" is mixed
    with it by `floor`, so that every client can be picked. A coalition whose clients do not
    differ draws by size.

    Examples
    --------
    >>> groups = Groups.of(np.array([0, 0, 1]), np.ones(3, dtype=bool))
    >>> np.exp(size_law("size", groups, np.array([30.0, 10.0, 5.0]), None)).round(2)
    array([1.  , 0.33, 1.  ])
    """
    sizes = weights[groups.members]
    by_size = sizes / groups.spread(np.add.reduceat(sizes, groups.starts))
    if law == "neyman" and distances is not None:
        worth = sizes * distances[groups.members]
        total = groups.spread(np.add.reduceat(worth, groups.starts))
        spread = total > 1e-12 * groups.spread(np.add.reduceat(sizes, groups.starts))
        differing = worth / np.where(spread, total, 1.0)
        by_size = np.where(spread, (1.0 - floor) * differing + floor * by_size, by_size)
    logs = np.log(by_size)
    return np.asarray(logs - groups.spread(np.maximum.reduceat(logs, groups.starts)))


def neyman_places(groups: Groups, weights: Float, distances: Float, n_select: int) -> Ids:
    """Return places of coalitions with the least variance of the aggregate.

    Each coalition gets one place; each further place goes where ``S_p / sqrt(m (m + 1))`` is
    largest: the exact optimum over whole numbers (Wright, "The equivalence of Neyman optimum
    allocation for sampling and equal proportions for apportioning the U.S. House", 2012). A
    coalition gets no more places than it has clients.

    Examples
    --------
    >>> groups = Groups.of(np.array([0, 0, 0, 1, 1, 1]), np.ones(6, dtype=bool))
    >>> neyman_places(groups, np.ones(6), np.array([3.0, 3, 3, 1, 1, 1]), 4)
    array([3, 1])
    """
    worth = weights[groups.members] * distances[groups.members]
    total = np.add.reduceat(worth, groups.starts)
    if not total.any():
        total = np.add.reduceat(weights[groups.members], groups.starts)
    places = np.ones(groups.sizes.size, dtype=np.int64)
    for _ in range(min(n_select, groups.members.size) - places.size):
        gain = np.where(places < groups.sizes, total / np.sqrt(places * (places + 1.0)), -1.0)
        places[np.argmax(gain)] += 1
    return places
