"""DivFL: last updates of clients in, the clients that represent all others best out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..kernels import dispatch
from ..runtime.threads import run_chunks, single_blas_thread
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_number
from .base import Probe, Report
from .guards import Guards
from .update_rows import UpdateRowsSelector

#: Clients above which the K x K distances are refused: 1.6 GB in float32.
MAX_CLIENTS = 20_000
#: Clients up to which all candidates are looked at, and the loss above.
EXACT_CLIENTS, DEFAULT_EPSILON = 2_000, 0.2
_CHUNK = 64  # candidates that a thread evaluates at a time


class DivFLSelector(UpdateRowsSelector):
    r"""Greedy facility location over updates [1]_.

    The chosen set S lowers :math:`\sum_k \min_{i \in S} \|g_k - g_i\|` step by step, with g_k
    the last update of client k in the watched coordinates. The sum runs over all clients seen,
    reachable or not; S is chosen among the eligible ones. Greedy choice is within
    :math:`1 - 1/e` of the best set. It is evaluated lazily [2]_: the same set as plain greedy,
    faster. Above 2,000 clients each step looks at a random part of the candidates only,
    :math:`(E / P) \ln(1 / \epsilon)` of E, which is within :math:`1 - 1/e - \epsilon` of the best
    set on average [3]_.

    ``Selection.coalitions`` says which chosen client represents each client: with the
    aggregator ``"coalition-mass"`` each report has the weight of all clients that it
    represents, the gamma of the article. The choice is deterministic up to ties, so that
    ``Selection.inclusion`` is not stated.

    As in the article's version without overhead, updates are those of each client's last
    round. Clients never seen are picked first. The published code of others trains all
    clients in every round for this, or picks from the largest *similarities* with the sign
    turned around.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`; at most 20,000 clients: distances of all pairs are kept in float32.
    n_features : int
        Watched coordinates of an update.
    epsilon : float in [0, 1), optional
        Loss of the random candidates; 0 looks at all. Default: 0 up to 2,000 clients, 0.2
        above.

    References
    ----------
    .. [1] Balakrishnan, Li, Zhou, Himayat, Smith and Bilmes, "Diverse client selection for
       federated learning via submodular maximization", ICLR, 2022.
    .. [2] Minoux, "Accelerated greedy algorithms for maximizing submodular set functions",
       Optimization Techniques, 1978.
    .. [3] Mirzasoleiman, Badanidiyuru, Karbasi, Vondrak and Krause, "Lazier than lazy greedy",
       AAAI, 2015.

    Examples
    --------
    >>> selector = DivFLSelector(n_clients=4, n_select=2, n_features=1, seed=0)
    >>> rows = np.array([[0.0], [0.1], [5.0], [5.1]])
    >>> for _ in range(2):  # until every client was seen
    ...     picked = selector.select().clients
    ...     selector.observe(picked, updates=rows[picked])
    >>> sorted((selector.select().clients // 2).tolist())
    [0, 1]
    """

    name: ClassVar[str] = "divfl"
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_rows", "_distances"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_features: int,
        epsilon: float | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, n_features=n_features, guards=guards)
        _check_size(self.n_clients)
        self.epsilon = epsilon
        if epsilon is not None:
            self.epsilon = check_number(epsilon, "epsilon", minimum=0.0, below=1.0)
        self._distances: Float | None = None  # of all pairs of clients; made when first needed
        self._totals = np.zeros(0)  # its row sums

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        first = self._unseen_first(eligible)
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        if first.size == n_picked:
            return Selection(clients=first, round=self.round)
        candidates = self._rng.permutation(np.flatnonzero(eligible & self._seen))
        chosen = self._greedy(candidates, n_picked - first.size)
        labels = None
        if first.size == 0:
            labels = np.argmin(self._known_distances()[chosen], axis=0).astype(np.int64)
            labels[chosen] = np.arange(chosen.size)
        return Selection(
            clients=np.concatenate([first, chosen]), coalitions=labels, round=self.round
        )

    def _greedy(self, candidates: Ids, n_picked: int) -> Ids:
        distances = self._known_distances()
        # A client never seen is served at no cost; others begin infinitely far away.
        nearest = np.where(self._seen, np.finfo(np.float32).max, 0.0).astype(np.float32)
        picked = np.empty(n_picked, dtype=np.int64)  # places in `candidates`
        picked[0] = np.argmin(self._totals[candidates])
        np.minimum(nearest, distances[candidates[picked[0]]], out=nearest)
        epsilon = self.epsilon
        if epsilon is None:
            epsilon = 0.0 if self.n_clients <= EXACT_CLIENTS else DEFAULT_EPSILON
        if epsilon == 0.0 and n_picked > 1:
            costs, fresh = np.empty(candidates.size), np.empty(candidates.size, dtype=np.int64)
            self._evaluate(nearest, candidates, costs)
            dispatch.lazy_greedy(distances, nearest, candidates, costs, fresh, picked, 1)
            return candidates[picked]
        n_tried = int(np.ceil(candidates.size / n_picked * np.log(1.0 / max(epsilon, 1e-12))))
        left = np.delete(np.arange(candidates.size), picked[0])
        for p in range(1, n_picked):
            tried = self._rng.choice(left.size, size=min(n_tried, left.size), replace=False)
            costs = np.empty(tried.size)
            self._evaluate(nearest, candidates[left[tried]], costs)
            best = tried[np.argmin(costs)]
            picked[p] = left[best]
            left = np.delete(left, best)
            np.minimum(nearest, distances[candidates[picked[p]]], out=nearest)
        return candidates[picked]

    def _evaluate(self, nearest: Float, candidates: Ids, costs: Float) -> None:
        """Write the cost of adding each candidate to the chosen clients."""
        distances = self._known_distances()

        def work(start: int, stop: int) -> None:
            dispatch.assignment_costs(distances, nearest, candidates, costs, start, stop)

        run_chunks(work, candidates.size, _CHUNK)

    def _known_distances(self) -> Float:
        if self._distances is None:
            self._distances = np.zeros((self.n_clients, self.n_clients), dtype=np.float32)
            self._totals = np.zeros(self.n_clients)
            self._measure(np.flatnonzero(self._seen))
        return self._distances

    def _measure(self, clients: Ids) -> None:
        """Compute the distances of some clients from all clients seen."""
        assert self._distances is not None
        squares = np.einsum("kd,kd->k", self._rows, self._rows)
        with single_blas_thread():
            for block in np.array_split(clients, max(1, clients.size // 256)):
                products = self._rows[block] @ self._rows.T
                far = np.maximum(squares[block, None] + squares - 2.0 * products, 0.0)
                rows = np.sqrt(far).astype(np.float32)
                rows[:, ~self._seen] = 0.0
                rows[np.arange(block.size), block] = 0.0
                self._totals -= self._distances[block].sum(axis=0, dtype=np.float64)
                self._totals += rows.sum(axis=0, dtype=np.float64)
                self._distances[block] = rows
                self._distances[:, block] = rows.T
                self._totals[block] = self._distances[block].sum(axis=1, dtype=np.float64)

    def _learn(self, report: Report) -> None:
        super()._learn(report)
        if self._distances is not None and report.clients.size:
            if self._journal is not None:
                self._journal.cross(report.clients, self._distances)
            self._measure(report.clients)

    def _grow(self, n_clients: int, added: Float) -> None:
        _check_size(n_clients)
        super()._grow(n_clients, added)
        self._distances = None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "epsilon": self.epsilon}

    def _restore(self, learned: dict[str, Any]) -> None:
        super()._restore(learned)
        self._distances = None


def _check_size(n_clients: int) -> None:
    if n_clients > MAX_CLIENTS:
        raise ValueError(
            f"n_clients must be at most {MAX_CLIENTS} for divfl, which keeps the distances of all "
            f"pairs of clients, got {n_clients}; fedcvr-bolt and pivotal serve more"
        )
