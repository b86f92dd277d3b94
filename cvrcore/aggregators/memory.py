"""Aggregators that remember updates, and use them as control variates."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from .._validation import Float, Ids, check_choice, check_stored, check_vector
from ..threads import single_blas_thread
from .bank import LIMIT, Bank
from .base import Aggregator, Arrays, Flat, News
from .importance import FORMS, check_form, importance_factors, inclusion_for

MEMORY_FORMS: Final = (*FORMS, "none")
UNSEEN: Final = ("mean", "zero")


class MemoryAggregator(Aggregator):
    r"""Each client's last update stands in for it when it is not picked.

    With alpha_k a client's share of all samples, u_k its update, pi_k its inclusion
    probability and m_k the update remembered of it, the step is

    .. math:: \sum_k \alpha_k m_k + \sum_{k\,\mathrm{picked}} \frac{\alpha_k}{\pi_k}(u_k - m_k).

    The mean of the second sum is :math:`\sum_k \alpha_k (u_k - m_k)`, since every m_k was
    fixed before the draw; so the step's mean is :math:`\sum_k \alpha_k u_k`, that of
    everybody taking part, and its variance that of the *changes* u_k - m_k alone. With equal
    samples and uniform selection this is FedVARP [1]_. Then m_k becomes u_k for those that
    reported. A client that cannot be reached (pi_k = 0) is represented by its memory.

    Parameters
    ----------
    form : {"horvitz-thompson", "self-normalised", "stratified", "none"}
        The first is the step above; the next two divide its factors by their sum, over all
        or within each coalition, as in `ImportanceAggregator`. "none" is the mean of all
        that is remembered after the round, MIFA [2]_: factors alpha_k, not unbiased.
    unseen : {"mean", "zero"}
        m_k of a client never seen: the mean of those remembered, or 0, as in [1]_. Both are
        fixed before the draw.
    dtype : {"float32", "bfloat16"}
    limit : int
        Bytes up to which updates stay in memory; above, in a file of `folder`.
    folder : path, optional
        See `cvrcore.aggregators.bank.Bank`.

    References
    ----------
    .. [1] Jhunjhunwala, Sharma, Nagarkatti and Joshi, "FedVARP: tackling the variance due to
       partial client participation in federated learning", UAI, 2022.
    .. [2] Gu, Huang, Zhang and Huang, "Fast federated learning in the presence of arbitrary
       device unavailability", NeurIPS, 2021.
    """

    name = "memory"
    whole_population = True

    def __init__(
        self,
        form: str = "horvitz-thompson",
        unseen: str = "mean",
        dtype: str = "float32",
        limit: int = LIMIT,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.form = check_form(form, MEMORY_FORMS)
        self.unseen = check_choice(unseen, "unseen", UNSEEN)
        self._bank = Bank(dtype, limit, folder)
        self._weights = np.zeros(0)  # of each client when it was last added to the sum
        self._sum = np.zeros(0)  # of n_k m_k over those seen

    @property
    def nbytes(self) -> int:
        """Bytes of all remembered updates and of their sum."""
        return self._bank.nbytes + self._sum.nbytes

    def _merge(self, news: News) -> Arrays:
        clients, weights = news.clients, news.weights
        factors = self._factors(news)
        flat = Flat(news.current)
        base = flat.join(news.current)
        changes = flat.changes(news.updates, clients, base)
        self._fit(weights, flat.size)
        step = self._mean()
        stand_in = step.astype(np.float32) if self.unseen == "mean" else np.float32(0.0)
        # Rows of float32 that BLAS adds up: sums over rounds alone need more digits.
        away = np.empty_like(changes)
        own = weights[clients].astype(np.float32)
        first = ~self._bank.known[clients]
        for row, client in enumerate(clients.tolist()):
            before = stand_in if first[row] else self._bank.read(client)
            np.subtract(changes[row], before, out=away[row])
            stored = self._bank.write(client, changes[row])
            if self._bank.dtype != "float32":
                self._sum += own[row] * (stored - changes[row])
        with single_blas_thread():
            self._sum += np.where(first, 0.0, own).astype(np.float32) @ away
            if first.any():
                self._sum += own[first] @ changes[first]
            if self.form == "none":
                return flat.split(base + self._mean())
            step += factors.astype(np.float32) @ away
        return flat.split(base + step)

    def _factors(self, news: News) -> Float:
        if self.form == "none":
            return np.zeros(news.clients.size)  # what is new counts once it is remembered
        inclusion = inclusion_for(self.name, news)
        return importance_factors(self.form, news, news.weights, inclusion)

    def _fit(self, weights: Float, size: int) -> None:
        """Make room, and let the sum follow weights that have changed."""
        self._bank.fit(weights.size, size)
        if self._sum.size != size:
            self._sum = np.zeros(size)
        added = weights.size - self._weights.size
        self._weights = np.concatenate([self._weights, np.zeros(added)])
        known = self._bank.known
        for k in np.flatnonzero(known & (weights != self._weights)):
            self._sum += (weights[k] - self._weights[k]) * self._bank.read(int(k))
        self._weights = weights.copy()

    def _mean(self) -> Float:
        """Return the mean by samples of what is remembered of all clients."""
        seen = self._weights[self._bank.known].sum()
        total = seen if self.unseen == "mean" else self._weights.sum()
        return self._sum / total if seen > 0 else np.zeros_like(self._sum)

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; see `Bank` about files."""
        return {
            **super().state_dict(),
            "weights": self._weights.copy(),
            "sum": self._sum.copy(),
            "bank": self._bank.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        n_clients, size = state["bank"]["shape"]
        weights = check_stored(state["weights"], "weights", n_clients)
        total = check_vector(state["sum"], "sum", size).copy()
        self._bank.restore(state["bank"])
        self._weights, self._sum = weights, total


class CoalitionMemoryAggregator(Aggregator):
    r"""One remembered update per coalition stands in for its clients.

    The step is that of `MemoryAggregator` with :math:`m_k = M_p` for all k of coalition p:
    as unbiased, with P remembered models instead of K. When coalitions change, M_p becomes
    the mean of the old ones over the clients of p, by samples: fixed before the draw, and
    the same mean over all clients as before. Rounds without coalitions, as in warm-up, have
    a single one of all clients. After the round, M_p is the mean by samples of the updates
    that came from p.

    With the factors of a coalition adding up to its mass (``form="stratified"``, or one
    client drawn in proportion to its samples) M_p cancels: then the step is that of
    `CoalitionMassAggregator`, but for coalitions that nobody reported for. It helps where
    factors vary.

    Parameters
    ----------
    form, dtype, limit, folder
        See `MemoryAggregator`; there is no form "none".
    """

    name = "coalition-memory"
    whole_population = True

    def __init__(
        self,
        form: str = "horvitz-thompson",
        dtype: str = "float32",
        limit: int = LIMIT,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.form = check_form(form, FORMS)
        self._bank = Bank(dtype, limit, folder)
        self._labels: Ids = np.zeros(0, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the remembered updates."""
        return self._bank.nbytes

    def _merge(self, news: News) -> Arrays:
        clients, weights = news.clients, news.weights
        inclusion = inclusion_for(self.name, news)
        assert news.selection is not None
        factors = importance_factors(self.form, news, weights, inclusion)
        flat = Flat(news.current)
        base = flat.join(news.current)
        changes = flat.changes(news.updates, clients, base)
        labels = news.selection.coalitions
        if labels is None:
            labels = np.zeros(weights.size, dtype=np.int64)
        known, before = self._carried(labels, weights, flat.size)

        mass = np.bincount(labels, weights=weights)
        share = np.zeros((mass.size, clients.size))
        share[labels[clients], np.arange(clients.size)] = weights[clients]
        counted = share.sum(axis=1)
        share /= np.where(counted > 0, counted, 1.0)[:, None]
        taken = np.bincount(labels[clients], weights=factors, minlength=mass.size)
        with single_blas_thread():
            step = (mass / mass.sum() - taken).astype(np.float32) @ before
            step += factors.astype(np.float32) @ changes
            after = share.astype(np.float32) @ changes
        self._bank.fit(mass.size, flat.size)
        for p in range(mass.size):
            if counted[p] > 0:
                self._bank.write(p, after[p])
            elif known:
                self._bank.write(p, before[p])
        self._labels = labels.copy()
        return flat.split(base + step)

    def _carried(self, labels: Ids, weights: Float, size: int) -> tuple[bool, Float]:
        """Return whether anything is remembered, and M_p for the present coalitions."""
        n_coalitions = int(labels.max()) + 1
        if not self._bank.known.any():
            return False, np.zeros((n_coalitions, size), dtype=np.float32)
        self._bank.fit(self._bank.n_rows, size)
        n_old = int(self._labels.max()) + 1
        known = self._bank.known[:n_old]
        old = np.zeros((n_old, size), dtype=np.float32)
        for q in np.flatnonzero(known):
            old[q] = self._bank.read(int(q))
        n_both = min(labels.size, self._labels.size)
        # Newcomers, and clients of weight 0, bring nothing of their own.
        table = np.zeros((n_coalitions, n_old))
        np.add.at(table, (labels[:n_both], self._labels[:n_both]), weights[:n_both])
        table[:, ~known] = 0.0
        mass = table.sum(axis=1, keepdims=True)
        everybody = table.sum(axis=0) / max(table.sum(), 1e-300)
        shares = np.where(mass > 0, table / np.where(mass > 0, mass, 1.0), everybody)
        with single_blas_thread():
            return True, shares.astype(np.float32) @ old

    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; see `Bank` about files."""
        return {
            **super().state_dict(),
            "labels": self._labels.copy(),
            "bank": self._bank.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        super().load_state_dict(state)
        labels = np.array(state["labels"], dtype=np.int64)
        if labels.size and labels.max() >= state["bank"]["shape"][0]:
            raise ValueError(f"labels must be below {state['bank']['shape'][0]}, as rows are")
        self._bank.restore(state["bank"])
        self._labels = labels
