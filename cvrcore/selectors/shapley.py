"""Shapley values of clients: worth of sub-averages in, the most valuable clients out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..draws.ranking import best_of
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_count, check_number, check_stored
from .base import Probe, Report, Selector
from .guards import Guards
from .power_of_choice import gumbel_top_k, law_inclusion

Utility = Callable[[Collection[int]], float]
_RECENT = 10  # permutations over which the estimate must stay within `tolerance`


def shapley_values(
    utility: Utility,
    clients: Collection[int],
    rng: np.random.Generator,
    tolerance: float = 1e-4,
    max_permutations: int | None = None,
) -> Float:
    """Return the Shapley value of each client by truncated Monte Carlo (GTG-Shapley [1]_).

    Random orders of the clients are walked through; a client's value is the mean of what it
    adds to the clients before it. The n-th order starts with client n modulo their number, so
    that every client comes first equally often. Where the clients before are worth nearly as
    much as all together, what follows counts as 0 (truncation between clients); where all
    together are worth no more than none, all values are 0 (truncation between rounds).

    Parameters
    ----------
    utility : callable
        Worth of the average of the models of a collection of clients; ``utility(())`` is that
        of the model that was sent. Each collection is evaluated once.
    clients : collection of int
    rng : Generator
    tolerance : float
        Bound of both truncations, and of the change of the values at which the walk ends.
    max_permutations : int, optional
        Default: 50 times the number of clients.

    References
    ----------
    .. [1] Liu, Chen, Yu, Liu and Cui, "GTG-Shapley: efficient and accurate participant
       contribution evaluation in federated learning", ACM TIST, 2022.

    Examples
    --------
    >>> worth = lambda group: float(sum(group))
    >>> shapley_values(worth, [1, 2, 4], np.random.default_rng(0)).round(6)
    array([1., 2., 4.])
    """
    ids = list(clients)
    values = np.zeros(len(ids))
    known: dict[frozenset[int], float] = {}

    def worth(group: list[int]) -> float:
        key = frozenset(group)
        if key not in known:
            known[key] = float(utility(tuple(sorted(key))))
            if not np.isfinite(known[key]):
                raise ValueError(f"utilities must be finite, got {known[key]} for {sorted(key)}")
        return known[key]

    none, everybody = worth([]), worth(ids)
    if abs(everybody - none) <= tolerance or len(ids) == 1:
        return values if len(ids) > 1 else np.array([everybody - none])
    limit = 50 * len(ids) if max_permutations is None else max_permutations
    past: list[Float] = []
    for n in range(limit):
        head = n % len(ids)
        others = [i for i in range(len(ids)) if i != head]
        order = [head, *rng.permutation(others)]
        before, added = none, np.zeros(len(ids))
        for place, i in enumerate(order):
            if place and abs(everybody - before) <= tolerance:
                break
            now = worth([ids[j] for j in order[: place + 1]])
            added[i], before = now - before, now
        values += (added - values) / (n + 1)
        past.append(values.copy())
        # Whole cycles only: an order that starts with each client, twice at least.
        if n + 1 >= max(2 * len(ids), _RECENT + 1) and (n + 1) % len(ids) == 0:
            if np.abs(past[-1 - _RECENT] - values).max() <= tolerance:
                break
    return values


class ShapleySelector(Selector):
    r"""Picks the clients whose models add most to the average, on the server's own samples.

    The server gives ``observe(utilities=f)``, where ``f(clients)`` is the worth (say minus the
    validation loss) of the average of the models of a collection of clients that reported, and
    ``f(())`` that of the model sent. `shapley_values` shares the worth of all out among the
    clients of the round. Clients never seen are picked first.

    ====================  ==================================================================
    `form`                then
    ====================  ==================================================================
    ``"greedy"``          the `n_select` clients of largest mean value (GreedyFed [1]_);
                          ties at random
    ``"softmax"``         drawn without replacement in proportion to ``exp(value)``, value an
                          average ``memory * old + (1 - memory) * new`` (S-FedAvg [2]_)
    ====================  ==================================================================

    Already computed values may be given instead of a function: one number a client.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    form : {"greedy", "softmax"}
    memory : float in [0, 1)
        Of ``"softmax"``.
    tolerance, max_permutations
        See `shapley_values`.

    Notes
    -----
    A round costs at most ``min(2 ** P, 50 P ** 2)`` evaluations of the utility. The server
    needs samples of its own that no client reported on.

    References
    ----------
    .. [1] Singhal, Pandey and Popovski, "Greedy Shapley client selection for
       communication-efficient federated learning", IEEE Networking Letters, 2024.
    .. [2] Nagalapatti and Narayanam, "Game of gradients: mitigating irrelevant clients in
       federated learning", AAAI, 2021.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("shapley", n_clients=4, n_select=2, seed=0)
    >>> for _ in range(3):
    ...     picked = selector.select()
    ...     selector.observe(picked.clients, utilities=lambda group: float(sum(group)))
    >>> sorted(picked.clients.tolist())  # a client is worth its number here
    [2, 3]
    """

    name: ClassVar[str] = "shapley"
    needs = frozenset({"utilities"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        form: str = "greedy",
        memory: float = 0.75,
        tolerance: float = 1e-4,
        max_permutations: int | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.form = check_choice(form, "form", ("greedy", "softmax"))
        self.memory = check_number(memory, "memory", minimum=0.0, below=1.0)
        self.tolerance = check_number(tolerance, "tolerance", minimum=0.0)
        self.max_permutations = (
            None if max_permutations is None else check_count(max_permutations, "max_permutations")
        )
        self._values = np.zeros(self.n_clients)
        self._counts = np.zeros(self.n_clients, dtype=np.int64)  # rounds that valued a client

    @property
    @serialised
    def values(self) -> Float:
        """Return a copy of the present value of each client; 0 for clients never seen."""
        return self._values.copy()

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        unseen = np.flatnonzero(eligible & (self._counts == 0))
        first = self._rng.permutation(unseen)[:n_picked].astype(np.int64)
        ids = np.flatnonzero(eligible & (self._counts > 0))
        scores = np.where(self._counts > 0, self._values, np.nan)
        n_left = n_picked - first.size
        if self.form == "greedy":
            chosen = ids[best_of(self._values[ids], n_left, self._rng)]
            return Selection(
                clients=np.concatenate([first, chosen]), scores=scores, round=self.round
            )
        chosen = ids[gumbel_top_k(self._values[ids], n_left, self._rng)]
        clients = np.concatenate([first, chosen])
        if first.size:
            return Selection(clients=clients, scores=scores, round=self.round)
        law = np.zeros(self.n_clients)
        law[ids] = np.exp(self._values[ids] - self._values[ids].max())
        law /= law.sum()
        return Selection(
            clients=clients,
            scores=scores,
            probabilities=law,
            inclusion=lambda: law_inclusion(law, n_picked),
            round=self.round,
        )

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        return super()._check_signal(name, value, n_reported) if name == "utilities" else None

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        told = report.signals["utilities"]
        new = self._valued(told, report.clients) if callable(told) else np.asarray(told)
        old, counts = self._values[report.clients], self._counts[report.clients]
        if self.form == "greedy":
            self._values[report.clients] = old + (new - old) / (counts + 1)
        else:
            kept = np.where(counts > 0, self.memory, 0.0)
            self._values[report.clients] = kept * old + (1.0 - kept) * new
        self._counts[report.clients] += 1

    def _valued(self, utility: Utility, clients: Ids) -> Float:
        limit = self.max_permutations
        return shapley_values(utility, clients.tolist(), self._rng, self.tolerance, limit)

    def _grow(self, n_clients: int, added: Float) -> None:
        self._values = np.concatenate([self._values, np.zeros(added.size)])
        self._counts = np.concatenate([self._counts, np.zeros(added.size, dtype=np.int64)])

    def _config(self) -> dict[str, Any]:
        names = ("form", "memory", "tolerance", "max_permutations")
        return {name: getattr(self, name) for name in names}

    def _learned(self) -> dict[str, Any]:
        return {"values": self._values.copy(), "counts": self._counts.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        values = check_stored(learned["values"], "values", self.n_clients)
        counts = check_stored(learned["counts"], "counts", self.n_clients, np.int64)
        if not np.isfinite(values).all() or (counts < 0).any():
            raise ValueError("values must be finite and counts non-negative")
        self._values, self._counts = values, counts
