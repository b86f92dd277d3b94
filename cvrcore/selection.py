"""Selection: one round's decision, as plain data."""

from __future__ import annotations

import dataclasses

import numpy as np

from ._validation import Float, Ids


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Whom a policy picked in one round, and why.

    Attributes
    ----------
    clients : ndarray of int64, shape (m,)
        Distinct ids, m = min(n_select, eligible), in the order they were drawn.
    coalitions : ndarray of int64, shape (n_clients,), or None
        Coalition of every client, ``0 .. P - 1``; None in warm-up and for policies
        without coalitions.
    scores : ndarray of float64, shape (n_clients,), or None
        What the policy ranks by; for FedCVR-Bolt the variance reduction v_k, Eq. (9).
    probabilities : ndarray of float64, shape (n_clients,), or None
        Law of the first draw. With coalitions it is pi_p(k), Eq. (11), and sums to 1 in
        each coalition that has an eligible client; otherwise it sums to 1.
    inclusion : ndarray of float64, shape (n_clients,), or None
        Probability of being among the m at all, where the policy knows it.
    round : int
        Index of the round, from 0.
    warmup : bool
        Whether the round belongs to the policy's uniform warm-up.
    """

    clients: Ids
    coalitions: Ids | None = None
    scores: Float | None = None
    probabilities: Float | None = None
    inclusion: Float | None = None
    round: int = 0
    warmup: bool = False

    def __len__(self) -> int:
        """Return the number of clients picked."""
        return self.clients.shape[0]

    def __repr__(self) -> str:
        """Show the round, the clients and, if there are any, their coalitions."""
        kind = ", warm-up" if self.warmup else ""
        text = f"Selection(round={self.round}{kind}, clients={self.clients.tolist()}"
        if self.coalitions is not None:
            sizes = np.bincount(self.coalitions)
            text += f", {sizes.size} coalitions of {sizes.min()}-{sizes.max()} clients"
        if self.scores is not None:
            text += f", scores {self.scores.min():.4g}..{self.scores.max():.4g}"
        return text + ")"
