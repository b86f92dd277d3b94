"""Control variates per client: updates and remembered updates in, the next model out."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from ..runtime.threads import serialised, single_blas_thread
from ..validation import Float, check_choice, check_number, check_stored, check_vector
from .base import Aggregator, Arrays, RoundUpdates, loading
from .flat import FlatLayout
from .importance import FORMS, check_form, importance_factors, inclusion_for
from .noise import step_variance
from .row_store import LIMIT, RowStore

MEMORY_FORMS: Final = (*FORMS, "none")
UNSEEN: Final = ("mean", "zero")


class MemoryAggregator(Aggregator):
    r"""Each client's last update is used in its place when it is not selected.

    With alpha_k a client's share of all samples, u_k its update, pi_k its inclusion
    probability and m_k the update remembered of it, the step is

    .. math:: \sum_k \alpha_k m_k + \sum_{k\,\mathrm{selected}} \frac{\alpha_k}{\pi_k}(u_k - m_k).

    The m_k are control variates, fixed before the draw. So the mean of the second sum is
    :math:`\sum_k \alpha_k (u_k - m_k)`, the mean of the step is :math:`\sum_k \alpha_k u_k`,
    the step of full participation, and the variance is that of the *differences* u_k - m_k
    alone. With equal samples and uniform selection this is FedVARP [1]_. After the round, m_k
    is u_k for the clients that reported. A client that cannot be reached (pi_k = 0) is
    represented by m_k.

    Parameters
    ----------
    form : {"horvitz-thompson", "self-normalised", "stratified", "none"}
        The first is the step above; the next two divide its factors by their sum, over all
        or within each coalition, as in `ImportanceAggregator`. "none" is the mean of all
        remembered updates after the round, MIFA [2]_: factors alpha_k, not unbiased.
    unseen : {"mean", "zero"}
        m_k of a client never seen: the mean of the remembered updates, or 0, as in [1]_. Both
        are fixed before the draw.
    fade : float in (0, 1], default=1
        Factor on a remembered update in each round in which its client does not report: below
        1, the memory of clients that left fades. Any factor leaves the step unbiased.
    dtype : {"float32", "bfloat16"}
    limit : int
        Bytes up to which updates stay in memory; above, they are in a file of `folder`.
    folder : path, optional
        See `cvrcore.aggregators.row_store.RowStore`.

    References
    ----------
    .. [1] Jhunjhunwala, Sharma, Nagarkatti and Joshi, "FedVARP: tackling the variance due to
       partial client participation in federated learning", UAI, 2022.
    .. [2] Gu, Huang, Zhang and Huang, "Fast federated learning in the presence of arbitrary
       device unavailability", NeurIPS, 2021.

    Examples
    --------
    Two clients with the updates 1 and 3; client 1 reports, then client 0. In the second round
    the server still knows what client 1 sent.

    >>> import numpy as np
    >>> import cvrcore
    >>> from cvrcore.aggregators import make_aggregator
    >>> aggregator, model = make_aggregator("memory", unseen="zero"), [np.zeros(1)]
    >>> for client, update in [(1, 3.0), (0, 1.0)]:
    ...     picked = cvrcore.Selection(np.array([client]), inclusion=np.array([0.5, 0.5]))
    ...     received = [[model[0] + update]]
    ...     model = aggregator.aggregate(model, received, picked.clients, [10, 10], picked)
    >>> model  # 3, then 0.5 * 3 of the memory and 0.5 / 0.5 * 1 of the report
    [array([5.5])]
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
        fade: float = 1.0,
    ) -> None:
        self.form = check_form(form, MEMORY_FORMS)
        self.unseen = check_choice(unseen, "unseen", UNSEEN)
        self.fade = check_number(fade, "fade", above=0, maximum=1)
        self._store = RowStore(dtype, limit, folder)
        self._weights = np.zeros(0)  # sample counts that the sum was computed with
        self._sum = np.zeros(0)  # of n_k m_k over the clients seen
        self._kept = np.ones(0)  # what fading has left of each stored update; m_k is the product

    @property
    def nbytes(self) -> int:
        """Bytes of all remembered updates and of their sum."""
        return self._store.nbytes + self._sum.nbytes

    def _merge(self, received: RoundUpdates) -> Arrays:
        clients, weights = received.clients, received.weights
        factors = self._factors(received)
        layout = FlatLayout(received.current)
        base = layout.flatten(received.current)
        changes = layout.differences(received.updates, clients, base)
        self._fit(weights, layout.size)
        step = self._mean()
        stand_in = step.astype(np.float32) if self.unseen == "mean" else np.float32(0.0)
        # BLAS adds float32 rows; only the sum over rounds needs float64.
        innovations = np.empty_like(changes)
        # Scaled by a power of two: float32 overflows above 3e38, and no bit changes otherwise.
        unit = 2.0 ** np.floor(np.log2(weights.max()))
        own = (weights[clients] / unit).astype(np.float32)
        first = ~self._store.known[clients]
        for row, client in enumerate(clients.tolist()):
            before = stand_in if first[row] else self._remembered(client)
            np.subtract(changes[row], before, out=innovations[row])
            stored = self._store.write(client, changes[row])
            if self._store.dtype != "float32":
                self._sum += unit * (own[row] * (stored - changes[row])).astype(np.float64)
        with single_blas_thread():
            again = np.where(first, 0.0, own).astype(np.float32)
            self._sum += unit * (again @ innovations).astype(np.float64)
            if first.any():
                self._sum += unit * (own[first] @ changes[first]).astype(np.float64)
            self._kept[clients] = 1.0
            if self.form == "none":
                if self.measures_noise:
                    share = own / np.float32(weights.sum() / unit)
                    self.noise = step_variance(share, innovations, received.inclusion)
                return layout.unflatten(base + self._mean())
            change = factors.astype(np.float32) @ innovations
            step += change
        if self.measures_noise:
            if self.form != "horvitz-thompson":
                innovations -= change  # weights that were divided by their sum
            self.noise = step_variance(factors, innovations, received.inclusion)
        return layout.unflatten(base + step)

    def _merge_nobody(self, received: RoundUpdates) -> Arrays:
        # A policy of random size picked nobody: its unbiased step is that of the memory. If
        # picked clients failed, nothing is known of this round, and the model stays.
        if received.selection is None or len(received.selection) or not self._store.known.any():
            return super()._merge_nobody(received)
        layout = FlatLayout(received.current)
        self._fit(received.weights, layout.size)
        return layout.unflatten(layout.flatten(received.current) + self._mean())

    def _factors(self, received: RoundUpdates) -> Float:
        if self.form == "none":
            return np.zeros(received.clients.size)  # new updates count once they are remembered
        inclusion = inclusion_for(self.name, received)
        return importance_factors(self.form, received, received.weights, inclusion)

    def _fit(self, weights: Float, size: int) -> None:
        """Grow the store, and update the sum where sample counts have changed."""
        self._store.fit(weights.size, size)
        if self._sum.size != size:
            self._sum = np.zeros(size)
        added = weights.size - self._weights.size
        self._weights = np.concatenate([self._weights, np.zeros(added)])
        self._kept = np.concatenate([self._kept, np.ones(added)])
        known = self._store.known
        for k in np.flatnonzero(known & (weights != self._weights)):
            self._sum += (weights[k] - self._weights[k]) * self._remembered(int(k))
        self._weights = weights.copy()
        if self.fade < 1.0:
            self._sum *= self.fade
            self._kept *= self.fade

    def _remembered(self, client: int) -> Float:
        """Return m_k: the stored update times what fading has left of it."""
        stored = self._store.read(client)
        return stored if self._kept[client] == 1.0 else np.float32(self._kept[client]) * stored

    def _forget(self, client: int) -> None:
        """Erase a client's update, and its part of the sum."""
        if client >= self._weights.size:
            return
        if self._store.known[client]:
            weights = np.where(self._store.known, self._weights, 0.0)
            weights[client] = 0.0
            # Summed again: a difference would leave the rounding errors of its update.
            self._sum = np.zeros_like(self._sum)
            for k in np.flatnonzero(weights):
                self._sum += weights[k] * self._remembered(int(k))
            self._store.erase(client)
        self._weights[client], self._kept[client] = 0.0, 1.0

    def _mean(self) -> Float:
        """Return the mean of the remembered updates, weighted by samples."""
        seen = self._weights[self._store.known].sum()
        total = seen if self.unseen == "mean" else self._weights.sum()
        return self._sum / total if seen > 0 else np.zeros_like(self._sum)

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; see `RowStore` about files."""
        return {
            **super().state_dict(),
            "weights": self._weights.copy(),
            "sum": self._sum.copy(),
            "kept": self._kept.copy(),
            "bank": self._store.state(),
        }

    @loading
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        super().load_state_dict(state)
        n_clients, size = state["bank"]["shape"]
        weights = check_stored(state["weights"], "weights", n_clients)
        total = check_vector(state["sum"], "sum", size).copy()
        kept = check_stored(state.get("kept", np.ones(n_clients)), "kept", n_clients)
        if kept.size and not (kept.min() >= 0 and kept.max() <= 1):
            raise ValueError("kept must be factors between 0 and 1")
        self._store.restore(state["bank"])
        self._weights, self._sum, self._kept = weights, total, kept
