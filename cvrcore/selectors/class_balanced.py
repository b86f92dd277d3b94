"""FedCBS: class counts of clients in, clients whose pooled data are class-balanced out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..draws.inclusion import sampled_inclusion
from ..guards import Guards
from ..runtime.journal import atomic
from ..selection import Selection
from ..validation import (
    Float,
    Ids,
    Mask,
    check_count,
    check_matrix,
    check_number,
    check_stored,
    check_total,
    check_vector,
)
from .base import Probe, Report, Selector
from .power_of_choice import gumbel_top_k

FLOOR = 1e-12  # a perfectly balanced pool has QCID 0, and a power of 0 has no logarithm


def qcid(counts: ArrayLike) -> Float:
    """Return the quadratic class imbalance of pooled class counts, over the last axis.

    QCID is the squared distance of the class shares from the uniform law: 0 for balanced
    data, ``1 - 1 / n_classes`` for a single class. The form
    ``sum_ij <N_i, N_j> / (sum_i n_i) ** 2 - 1 / n_classes`` over the clients of the pool
    is equal, but suffers cancellation near 0.

    Examples
    --------
    >>> qcid([[5, 5], [10, 0]])
    array([0. , 0.5])
    """
    counts = np.asarray(counts, dtype=np.float64)
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return np.asarray(np.square(shares - 1.0 / counts.shape[-1]).sum(axis=-1))


class ClassBalancedSelector(Selector):
    """Draw clients one after another towards a class-balanced pool [1]_.

    In round t, counted from 1, the first client is drawn in proportion to::

        qcid({k}) ** -beta_1 + exploration * sqrt(3 * ln(t) / (2 * T_k))

    where T_k is 1 plus the number of times client k was picked. The m-th client is drawn in
    proportion to ``qcid(M + {k}) ** -beta_m`` given the pool M so far; ``beta_m = beta * m``.
    The article's other factors depend only on M and cancel. One public copy keeps the
    *candidate's* T in the second step, where it does not cancel and penalises
    little-explored clients, and gives a perfectly balanced candidate the lowest weight. This
    class puts a floor under QCID and draws in logarithms.

    The server must know the class counts (or all their inner products, say from an
    enclave): state this beside any result. Count training samples only.

    ``Selection.inclusion`` is exact if one client or all clients are picked and for
    ``beta=0``; otherwise `cvrcore.draws.inclusion.sampled_inclusion` estimates it.

    Parameters
    ----------
    n_clients, n_select, seed
        See `Selector`.
    weights : array-like of shape (n_clients,), optional
        See `Selector`. Default: the row sums of `label_counts`.
    label_counts : array-like of shape (n_clients, n_classes)
        Training samples of each class at each client; required. A client of positive
        weight needs at least one sample.
    beta : float in [0, 1e6], default=1.0
        Scale of the exponents: 1 is the article's ``beta_m = m``; 0 ignores the classes.
    exploration : float, default=10.0
        The article's lambda, >= 0. With ``beta=0, exploration=0`` sampling is uniform.

    References
    ----------
    .. [1] Zhang, Li, Chang, et al., "Fed-CBS: a heterogeneity-aware client sampling
       mechanism for federated learning via class-imbalance reduction", ICML, 2023.

    Examples
    --------
    >>> counts = [[9, 0], [9, 0], [0, 9]]
    >>> selector = ClassBalancedSelector(n_clients=3, n_select=2, label_counts=counts, seed=0)
    >>> 2 in selector.select().clients
    True
    """

    name: ClassVar[str] = "fedcbs"
    needs = frozenset({"label_counts"})
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "label_counts"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        label_counts: ArrayLike | None = None,
        beta: float = 1.0,
        exploration: float = 10.0,
        guards: Guards | str | None = None,
    ) -> None:
        n_clients = check_count(n_clients, "n_clients")
        self.label_counts = _check_label_counts(label_counts, (n_clients, None))
        if weights is None:
            weights = self.label_counts.sum(axis=1)
        super().__init__(n_clients, n_select, weights, seed, guards)
        _check_has_samples(self.label_counts, self.weights)
        self.beta = check_number(beta, "beta", minimum=0.0, maximum=1e6)
        self.exploration = check_number(exploration, "exploration", minimum=0.0)
        self._times_picked = np.zeros(self.n_clients, dtype=np.int64)

    @atomic
    def resize(
        self, n_clients: int, weights: ArrayLike, label_counts: ArrayLike | None = None
    ) -> None:
        """Add slots for clients that joined; old slots keep their id, weight and counts.

        Parameters
        ----------
        n_clients : int
            New number of slots, at least the present one.
        weights : array-like of shape (n_clients - present,)
            Sample counts of the newcomers.
        label_counts : array-like of shape (n_clients - present, n_classes)
            Class counts of the newcomers. Required if clients join: any guess (balanced, or
            like the others) would decide how often they are picked.
        """
        n_added = check_count(n_clients, "n_clients", minimum=self.n_clients) - self.n_clients
        n_classes = self.label_counts.shape[1]
        if n_added == 0 and label_counts is None:
            label_counts = np.empty((0, n_classes))
        joined = _check_label_counts(label_counts, (n_added, n_classes))
        _check_has_samples(joined, check_vector(weights, "weights", n_added))
        super().resize(n_clients, weights)
        self.label_counts = np.concatenate([self.label_counts, joined])
        self._weights_clipped()

    def _weights_clipped(self) -> None:
        """Keep the class counts of a client within its sample count, if that is bounded."""
        if self.guards.max_weight is not None:
            claimed = self.label_counts.sum(axis=1)
            kept = np.minimum(1.0, self.weights / np.maximum(claimed, 1e-300))
            # A client of weight 0 is never picked; its classes must not become 0 of 0.
            self.label_counts = self.label_counts * np.where(self.weights > 0, kept, 1.0)[:, None]

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        n_picked = min(self.n_select, ids.size)
        counts = self.label_counts[ids]
        pool = np.zeros(counts.shape[1])
        positions: Ids = np.empty(n_picked, dtype=np.int64)
        law = np.zeros(self.n_clients)
        for m in range(n_picked):
            logits = -self.beta * (m + 1) * np.log(np.maximum(qcid(pool + counts), FLOOR))
            if m == 0:
                logits = np.logaddexp(logits, self._log_bonus(ids))
                odds = np.exp(logits - logits.max())
                law[ids] = odds / odds.sum()
            logits[positions[:m]] = -np.inf
            positions[m] = gumbel_top_k(logits, 1, self._rng)[0]
            pool += counts[positions[m]]

        clients = ids[positions]
        inclusion: Float | Callable[[], Float]
        if n_picked == ids.size:
            inclusion = eligible.astype(np.float64)
        elif n_picked == 1 or self.beta == 0.0:
            # After the first draw, the draw is uniform among clients not yet drawn.
            inclusion = np.where(eligible, law + (1.0 - law) * (n_picked - 1) / (ids.size - 1), 0.0)
        else:
            inclusion = self._inclusion(eligible, clients, law)
        return Selection(clients=clients, probabilities=law, inclusion=inclusion, round=self.round)

    def _inclusion(self, eligible: Mask, clients: Ids, law: Float) -> Callable[[], Float]:
        """Return the lazy estimate: later draws depend on the pool and have no closed form."""
        ids, round, beta = np.flatnonzero(eligible), self.round, self.beta
        counts, first = self.label_counts[ids], law[ids].copy()

        def draw(rng: np.random.Generator, n: int) -> Ids:
            drawn = np.empty((n, clients.size), dtype=np.int64)
            pools = np.zeros((n, counts.shape[1]))
            taken = np.zeros((n, ids.size))
            for m in range(clients.size):
                if m == 0:
                    with np.errstate(divide="ignore"):
                        logits = np.log(first) + taken
                else:
                    imbalance = qcid(pools[:, None, :] + counts)
                    logits = -beta * (m + 1) * np.log(np.maximum(imbalance, FLOOR)) + taken
                drawn[:, m] = np.argmax(logits + rng.gumbel(size=taken.shape), axis=1)
                taken[np.arange(n), drawn[:, m]] = -np.inf
                pools += counts[drawn[:, m]]
            return ids[drawn]

        width = counts.shape[1]
        return lambda: sampled_inclusion(draw, eligible, clients, round, width=width)

    def _log_bonus(self, ids: Ids) -> Float:
        """Return the logarithm of the exploration term, -inf where it is 0."""
        scale = self.exploration * math.sqrt(1.5 * math.log(self.round + 1))
        if scale == 0.0:
            return np.full(ids.size, -np.inf)
        return np.asarray(math.log(scale) - 0.5 * np.log1p(self._times_picked[ids]))

    def _learn(self, report: Report) -> None:
        self._times_picked[report.selection.clients] += 1

    def _grow(self, n_clients: int, added: Float) -> None:
        never = np.zeros(added.size, dtype=np.int64)
        self._times_picked = np.concatenate([self._times_picked, never])

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self.label_counts = self.label_counts.copy()
        self.label_counts[client] = 0.0

    def _config(self) -> dict[str, Any]:
        return {
            "label_counts": self.label_counts.copy(),
            "beta": self.beta,
            "exploration": self.exploration,
        }

    def _learned(self) -> dict[str, Any]:
        return {"times_picked": self._times_picked.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        times = check_stored(learned["times_picked"], "times_picked", self.n_clients, np.int64)
        if (times < 0).any():
            raise ValueError(f"times_picked must be non-negative, got {times.min()}")
        self._times_picked = times


def _check_label_counts(value: ArrayLike | None, shape: tuple[int, int | None]) -> Float:
    if value is None:
        raise ValueError(
            "label_counts must be given to fedcbs: the class counts of each client, "
            f"{shape[0]} rows, got None"
        )
    counts = check_matrix(value, "label_counts", shape, dtype=np.float64).copy()
    if (counts < 0).any():
        raise ValueError(f"label_counts must be non-negative, got {counts.min():g}")
    if counts.size:
        with np.errstate(over="ignore"):
            check_total(counts.sum(axis=1), "label_counts")
    return counts


def _check_has_samples(counts: Float, weights: Float) -> None:
    empty = (weights > 0) & ~counts.any(axis=1)
    if empty.any():
        k = int(np.argmax(empty))
        raise ValueError(
            "label_counts must hold a sample for each client of positive weight, "
            f"got none for row {k} of weight {weights[k]:g}"
        )
