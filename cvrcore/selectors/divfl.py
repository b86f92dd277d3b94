"""DivFL: last updates of clients in, the clients that represent all others best out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..validation import Float, Mask, check_number
from .base import Probe, Report
from .facility import CoarseFacility, ExactFacility, Facility
from .guards import Guards
from .update_rows import UpdateRowsSelector

#: Clients above which the K x K distances are refused: 0.8 GB in bfloat16, 1.6 GB in float32.
MAX_CLIENTS = 20_000
#: Clients up to which all candidates are looked at, and the loss above.
EXACT_CLIENTS, DEFAULT_EPSILON = 2_000, 0.2


class DivFLSelector(UpdateRowsSelector):
    r"""Greedy facility location over updates [1]_.

    The chosen set S lowers :math:`\sum_k \min_{i \in S} \|g_k - g_i\|` step by step, with g_k
    the last update of client k in the watched coordinates. The sum runs over all clients seen,
    reachable or not; S is chosen among the eligible ones. Greedy choice is within
    :math:`1 - 1/e` of the best set. It is evaluated lazily [2]_: the same set as plain greedy,
    faster. Above 2,000 clients each step looks at a random part of the candidates only,
    :math:`(E / P) \ln(1 / \epsilon)` of E, which is within :math:`1 - 1/e - \epsilon` of the best
    set on average [3]_. Distances then are bfloat16, each off by at most 0.4 %.

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
        See `Selector`; at most 20,000 clients: distances of all pairs are kept, 4 K^2 bytes,
        or 2 K^2 with random candidates (0.2 GB at 10,000 clients, 0.8 GB at 20,000).
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
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_rows"})

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
        self._facility: Facility | None = None  # made when first needed

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        first = self._unseen_first(eligible)
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        if first.size == n_picked:
            return Selection(clients=first, round=self.round)
        candidates = self._rng.permutation(np.flatnonzero(eligible & self._seen))
        facility = self._measured()
        chosen = facility.greedy(candidates, self._seen, n_picked - first.size, self._rng)
        labels = facility.represented(chosen) if first.size == 0 else None
        return Selection(
            clients=np.concatenate([first, chosen]), coalitions=labels, round=self.round
        )

    def _measured(self) -> Facility:
        """Return the distances of all pairs of clients."""
        if self._facility is None:
            epsilon = self.epsilon
            if epsilon is None:
                epsilon = 0.0 if self.n_clients <= EXACT_CLIENTS else DEFAULT_EPSILON
            if epsilon == 0.0:
                self._facility = ExactFacility(self._rows, self._seen)
            else:
                self._facility = CoarseFacility(self._rows, self._seen, epsilon)
        return self._facility

    def _learn(self, report: Report) -> None:
        super()._learn(report)
        if self._facility is not None and report.clients.size:
            self._facility.measure(self._rows, self._seen, report.clients, self._journal)

    def _grow(self, n_clients: int, added: Float) -> None:
        _check_size(n_clients)
        super()._grow(n_clients, added)
        self._facility = None

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "epsilon": self.epsilon}

    def _restore(self, learned: dict[str, Any]) -> None:
        super()._restore(learned)
        self._facility = None


def _check_size(n_clients: int) -> None:
    if n_clients > MAX_CLIENTS:
        raise ValueError(
            f"n_clients must be at most {MAX_CLIENTS} for divfl, which keeps the distances of all "
            f"pairs of clients, got {n_clients}; fedcvr-bolt and pivotal serve more"
        )
