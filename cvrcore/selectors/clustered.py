"""Clustered sampling: sample counts or updates in, one draw from each of m laws out."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..runtime.threads import single_blas_thread
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_count, check_matrix, check_shape
from .base import Probe, Report, Selector
from .guards import Guards
from .multinomial import counted_selection

CLUSTERED_FORMS: Final = ("size", "similarity")
#: The tree of angles needs K (K - 1) / 2 distances: 1.6 GB here.
LARGEST: Final = 20_000


def packed_laws(mass: Float, groups: list[Ids], n_laws: int) -> list[tuple[Ids, Float]]:
    """Return laws over clients: each sums to 1, and a client's probabilities to its mass.

    Each of the heaviest `n_laws` groups has a law of its own; the clients of the other groups
    fill up what these laws have left, one after another, so that few clients are in two laws.

    Parameters
    ----------
    mass : ndarray of shape (n,)
        At most 1 each; sums to `n_laws`.
    groups : list of ndarray of int64
        A partition of the clients, no group heavier than 1.
    n_laws : int

    Returns
    -------
    list of (clients, probabilities)
    """
    weight = np.array([mass[group].sum() for group in groups])
    order = np.argsort(-weight, kind="stable")
    members: list[list[int]] = [groups[g].tolist() for g in order[:n_laws]]
    shares: list[list[float]] = [mass[groups[g]].tolist() for g in order[:n_laws]]
    room = 1.0 - weight[order[:n_laws]]
    law = 0
    for g in order[n_laws:]:
        for client in groups[g]:
            left = float(mass[client])
            while left > 1e-15:
                while law < n_laws - 1 and room[law] <= 1e-15:
                    law += 1
                taken = left if law == n_laws - 1 else min(left, float(room[law]))
                members[law].append(int(client))
                shares[law].append(taken)
                room[law] -= taken
                left -= taken
    laws = []
    for clients, chances in zip(members, shares, strict=True):
        law_of = np.array(chances)
        laws.append((np.array(clients, dtype=np.int64), law_of / law_of.sum()))
    return laws


def line_laws(mass: Float, n_laws: int) -> list[tuple[Ids, Float]]:
    """Return laws over clients in a row: law p is the stretch from p to p + 1 of their masses.

    As `packed_laws`, for groups of one client each.
    """
    ends = np.cumsum(mass)
    ends *= n_laws / ends[-1]
    ends[-1] = n_laws
    starts = np.concatenate([[0.0], ends[:-1]])
    first = np.searchsorted(ends, np.arange(n_laws), side="right")
    last = np.searchsorted(starts, np.arange(1, n_laws + 1), side="left")
    laws = []
    for p in range(n_laws):
        part = np.arange(first[p], last[p])
        share = np.minimum(ends[part], p + 1.0) - np.maximum(starts[part], float(p))
        kept = share > 0
        laws.append((part[kept], share[kept] / share[kept].sum()))
    return laws


def similar_groups(rows: Float, mass: Float) -> list[Ids]:
    """Return groups of clients with similar updates, none heavier than 1.

    Ward's tree of the angles between updates is cut from the top until every group's mass
    is at most 1. Clients without an update, rows of zeros, are alike, and at a right angle to
    all others.
    """
    import scipy.cluster.hierarchy  # half a second to import

    n = rows.shape[0]
    if n == 1:
        return [np.zeros(1, dtype=np.int64)]
    tree = scipy.cluster.hierarchy.linkage(angles(rows), "ward")
    children = tree[:, :2].astype(np.int64).tolist()
    total = mass.tolist()
    for a, b in children:
        total.append(total[a] + total[b])
    groups, stack = [], [2 * n - 2]
    while stack:
        node = stack.pop()
        if node >= n and total[node] > 1.0 + 1e-12:
            stack += reversed(children[node - n])
            continue
        leaves, below = [], [node]
        while below:
            current = below.pop()
            if current < n:
                leaves.append(current)
            else:
                below += reversed(children[current - n])
        groups.append(np.array(leaves, dtype=np.int64))
    return groups


def angles(rows: Float) -> Float:
    """Return the angles between all pairs of rows, in the order of SciPy's `pdist`."""
    norms = np.sqrt(np.einsum("kd,kd->k", rows, rows))
    known = norms > 0
    unit = rows / np.where(known, norms, 1.0)[:, None]
    with single_blas_thread():
        cosine = unit @ unit.T
    unknown = np.flatnonzero(~known)
    if unknown.size:
        cosine[np.ix_(unknown, unknown)] = 1.0
    from scipy.spatial.distance import squareform

    pairs = squareform(cosine, checks=False)
    np.clip(pairs, -1.0, 1.0, out=pairs)  # rounding passes 1, where arccos is NaN
    return np.asarray(np.arccos(pairs, out=pairs))


class ClusteredSelector(Selector):
    r"""One draw from each of m sampling distributions over clients: clustered sampling [1]_.

    Each distribution sums to 1, and the probabilities of a client over all of them to
    :math:`m\alpha_k` (to rounding, whatever the sizes), so that the plain mean of the drawn
    models is unbiased: use the aggregator ``mean``, or ``importance``, which is then the same.
    Compared with `multinomial`, a client is in few distributions, and the sample varies less.

    ``form="size"`` packs clients by size, the largest first. ``form="similarity"`` cuts a Ward
    tree of the angles between last updates at mass 1 / m, so that a distribution is over similar
    clients. A client of more than 1 / m of the samples first gets distributions of its own, as
    many as fit, and enters the others with the rest of its weight. Among available clients
    alpha_k is over those.

    Public code passes the matrix of distances to Ward's method as if it were observations,
    does not clip the cosine, and is biased by a quarter with one client above 1 / m.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`; `n_select` is the number of laws, m.
    form : {"size", "similarity"}, default="size"
    n_features : int, optional
        Number of watched coordinates, with "similarity"; K is then at most 20,000.

    References
    ----------
    .. [1] Fraboni, Vidal, Kameni and Lorenzi, "Clustered sampling: low-variance and improved
       representativity for clients selection in federated learning", ICML, 2021.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector(
    ...     "clustered", n_clients=5, n_select=2, weights=[50, 20, 10, 10, 10], seed=0
    ... )
    >>> selector.select().expected  # samples over all samples, times two draws
    array([1. , 0.4, 0.2, 0.2, 0.2])
    """

    name: ClassVar[str] = "clustered"
    size_rule = "at-most"
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_rows"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        form: str = "size",
        n_features: int | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.form = check_choice(form, "form", CLUSTERED_FORMS)
        self.n_features = None if n_features is None else check_count(n_features, "n_features")
        self._rows = np.zeros((self.n_clients, 0))
        if self.form == "similarity":
            self._check_size(self.n_clients)
            if self.n_features is None:
                raise ValueError("n_features must be given with form='similarity', got None")
            self.needs = frozenset({"updates"})
            self._rows = np.zeros((self.n_clients, self.n_features))

    def _check_size(self, n_clients: int) -> None:
        if n_clients > LARGEST:
            raise ValueError(
                f"n_clients must be at most {LARGEST} with form='similarity', which compares "
                f"all pairs, got {n_clients}: use form='size'"
            )

    def laws(self, eligible: Mask) -> list[tuple[Ids, Float]]:
        """Return the laws of a round among eligible clients: clients and probabilities each."""
        ids = np.flatnonzero(eligible)
        sizes = self.weights[ids] / self.weights[ids].max()
        mass = self.n_select * (sizes / sizes.sum())
        own = np.floor(mass + 1e-12).astype(np.int64)  # laws that hold one client alone
        alone = np.repeat(np.flatnonzero(own), own[own > 0])
        laws = [(ids[[i]], np.ones(1)) for i in alone]
        rest = np.maximum(mass - own, 0.0)
        n_left = self.n_select - len(laws)
        if n_left <= 0:
            return laws[: self.n_select]
        rest *= n_left / rest.sum()  # rounding only
        some = np.flatnonzero(rest > 1e-12)
        if self.form == "size":
            order = some[np.argsort(-rest[some], kind="stable")]
            return laws + [(ids[order[c]], p) for c, p in line_laws(rest[order], n_left)]
        groups = [some[g] for g in similar_groups(self._rows[ids[some]], rest[some])]
        return laws + [(ids[c], p) for c, p in packed_laws(rest, groups, n_left)]

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        expected, missed = np.zeros(self.n_clients), np.ones(self.n_clients)
        drawn = np.zeros(self.n_clients, dtype=np.int64)
        laws = self.laws(eligible)
        uniforms = self._rng.random(len(laws))
        for (clients, law), u in zip(laws, uniforms, strict=True):  # nobody twice in one law
            expected[clients] += law
            missed[clients] *= 1.0 - law
            place = np.searchsorted(np.cumsum(law), u * law.sum(), side="right")
            drawn[clients[min(int(place), clients.size - 1)]] += 1
        return counted_selection(drawn, expected, 1.0 - missed, self._rng, self.round)

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        if name == "updates" and self.form == "similarity":
            shape = (n_reported, self.n_features)
            return check_matrix(value, name, shape, np.float64, limit=1e100)
        return super()._check_signal(name, value, n_reported)

    def _learn(self, report: Report) -> None:
        if self.form == "similarity" and report.clients.size:
            if self._journal is not None:
                self._journal.rows(report.clients, self._rows)
            self._rows[report.clients] = report.signals["updates"]

    def _grow(self, n_clients: int, added: Float) -> None:
        if self.form == "similarity":
            self._check_size(n_clients)
        more = np.zeros((added.size, self._rows.shape[1]))
        self._rows = np.concatenate([self._rows, more])

    def _config(self) -> dict[str, Any]:
        return {"form": self.form, "n_features": self.n_features}

    def _learned(self) -> dict[str, Any]:
        return {"rows": self._rows.copy()} if self.form == "similarity" else {}

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        super()._check_sizes(config, learned)
        if config["form"] == "similarity":
            n_features = check_count(config["n_features"], "n_features")
            check_shape(learned["rows"], "rows", (config["n_clients"], n_features))

    def _restore(self, learned: dict[str, Any]) -> None:
        if self.form == "similarity":
            shape = self._rows.shape
            rows = check_matrix(learned["rows"], "rows", shape, np.float64, limit=1e100)
            self._rows = rows.copy()
