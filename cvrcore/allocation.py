"""Draws and places that reduce variance: Neyman's rules, for clients and for coalitions.

Ours, not the paper's. An aggregate that estimates the update of everybody (see
`cvrcore.aggregators`) errs by what its draws leave to chance. For one client of coalition p,
counted by ``alpha_k / pi_k`` around a centre c_p that is known or cancels, that is

    ``sum_k alpha_k^2 |u_k - c_p|^2 / pi_k - |sum_k alpha_k (u_k - c_p)|^2``,

least for ``pi_k ~ alpha_k |u_k - c_p|`` (Neyman, 1934): pick large clients, and those that
differ from their coalition. With m_p draws it falls like ``S_p^2 / m_p``,
``S_p = sum_k alpha_k |u_k - c_p|``, so that places go to coalitions in proportion to S_p.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ._validation import Float, Ids, Mask
from .sampling import Groups

#: Laws inside a coalition that go by size, and rules that share out places.
SIZE_LAWS: Final = ("size", "neyman")
PLACES: Final = ("even", "neyman")
#: Part of each coalition's law that goes by size alone: nobody's chance falls below that
#: share of it, and no report counts for more than 1 / FLOOR of its coalition.
FLOOR: Final = 0.3


def expected_distances(rows: Float, coalitions: Ids, weights: Float, known: Mask) -> Float:
    """Return how far each client's next update is expected to be from its coalition's.

    The distance of its last row from the mean by samples of its coalition's known rows. A
    client never seen has the mean distance of its coalition, or of all clients.

    Parameters
    ----------
    rows : ndarray of shape (n_clients, n_features)
        Last rows; of updates, which models of different rounds are not.
    coalitions : ndarray of int64, shape (n_clients,)
    weights : ndarray of shape (n_clients,)
        Sample counts; at least one client that is known has some.
    known : ndarray of bool, shape (n_clients,)

    Returns
    -------
    ndarray of float64, shape (n_clients,)
        All 1 when nobody is known.
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

    By size alone, ``pi_k = n_k / sum n``; Neyman's is mixed with it by `floor`, so that
    everybody can be picked. A coalition whose clients do not differ draws by size.
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
    """Share out places over coalitions so that the variance of the aggregate is least.

    One place each, then one by one where ``S_p / sqrt(m (m + 1))`` is largest: the exact
    optimum over whole numbers (Wright, "The equivalence of Neyman optimum allocation for
    sampling and equal proportions for apportioning the U.S. House", 2012). A coalition
    gets no more places than it has clients.

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
