"""FedCor: loss changes of all clients in, clients that lower everybody's loss out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..validation import Float, Ids, Mask, check_count, check_number, check_stored
from .base import Probe, Report, Selector
from .guards import Guards
from .uniform import uniform_selection


def factor_covariance(samples: Float, weights: Float, rank: int) -> tuple[Float, float]:
    r"""Return X and s of the Gaussian N(0, X X^T + s I) of largest likelihood.

    Probabilistic principal components [1]_, in closed form: X holds the leading eigenvectors of
    the weighted covariance of the samples, s is the mean of the other eigenvalues.

    Parameters
    ----------
    samples : ndarray of shape (n_samples, n_clients)
    weights : ndarray of shape (n_samples,)
        Positive; scaled to sum to 1.
    rank : int
        Largest number of columns of X.

    Returns
    -------
    factors : ndarray of shape (n_clients, r), r at most `rank`
    noise : float
        At least 1e-6 of the mean variance, so that every client has a variance.

    References
    ----------
    .. [1] Tipping and Bishop, "Probabilistic principal component analysis", JRSS B, 1999.
    """
    n_clients = samples.shape[1]
    scaled = samples * np.sqrt(weights / weights.sum())[:, None]
    _, singular, vectors = np.linalg.svd(scaled, full_matrices=False)
    values = np.square(singular)
    total = float(values.sum())
    floor = 1e-6 * max(total / n_clients, np.finfo(np.float64).tiny)
    rank = min(rank, int(np.count_nonzero(values > floor)), n_clients - 1)
    noise = max((total - float(values[:rank].sum())) / max(n_clients - rank, 1), floor)
    return vectors[:rank].T * np.sqrt(np.maximum(values[:rank] - noise, 0.0)), noise


def choose_correlated(
    factors: Float, noise: float, shares: Float, discounts: Float, eligible: Mask, size: int
) -> Ids:
    r"""Pick clients one by one, each by :math:`\beta_k \sum_i p_i C_{ik} / \sqrt{C_{kk}}`.

    After each pick C is conditioned on it: :math:`C - C_{\cdot k} C_{k \cdot} / C_{kk}`. C is
    never formed: every conditioned covariance is ``X A X^T`` plus the noise of the clients not
    picked, and a pick changes A by a matrix of rank one. Cost: O(n_clients r) a pick.

    Parameters
    ----------
    factors, noise
        Of `factor_covariance`: C = X X^T + noise I.
    shares : ndarray of shape (n_clients,)
        p_i.
    discounts : ndarray of shape (n_clients,)
        Beta to the number of picks of each client.
    eligible : ndarray of bool
        At least `size` True.
    size : int
    """
    left = eligible.copy()
    inner = np.eye(factors.shape[1])  # A
    mass = factors.T @ shares
    explained = np.einsum("kr,kr->k", factors, factors)  # diagonal of X A X^T
    toward = factors @ mass  # sum_i p_i (X A X^T)_ik
    chosen = np.empty(size, dtype=np.int64)
    for place in range(size):
        variance = explained + noise
        gain = discounts * (toward + noise * shares) / np.sqrt(variance)
        k = int(np.argmax(np.where(left, gain, -np.inf)))
        chosen[place] = k
        left[k] = False
        direction = inner @ factors[k]
        covariance = factors @ direction  # column k of X A X^T
        inner -= np.outer(direction, direction) / variance[k]
        explained = np.maximum(explained - np.square(covariance) / variance[k], 0.0)
        mass -= shares[k] * factors[k]  # its change is known now: it varies with nobody
        toward = factors @ (inner @ mass)
    return chosen


class FedCorSelector(Selector):
    r"""Picks by a Gaussian process over the clients' loss changes [1]_.

    The changes of all clients' losses from one round to the next are modelled as Gaussian with
    covariance C. A client whose loss change is correlated with everybody's is expected to lower
    everybody's loss: `choose_correlated`. To learn C the policy needs the losses of *all*
    clients of the current model: `probe` returns them in each of the first ``warmup + 1``
    rounds, and later in two consecutive rounds of every `interval`. The first `warmup` rounds
    are uniform.

    C is X X^T + s I with `rank` columns, fitted to the last `history` changes, newest first by
    weights ``gamma ** age``. The article fits the embedding X by gradient ascent on the
    likelihood; with its linear kernel the maximum is known in closed form, and that is taken
    (`factor_covariance`). Discounts start anew whenever C is fitted, as published. The
    leave-one-out objective of the published code runs over samples where clients are meant, and
    is left out.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    warmup : int
        Uniform rounds, at least 1.
    interval : int
        Rounds between two measurements of C after the warm-up, at least 2.
    rank : int
        Dimension of the embedding.
    beta : float in (0, 1]
        Discount of a client for each pick since the last measurement.
    gamma : float in (0, 1]
        Weight of a change one measurement older.
    history : int
        Changes kept.

    References
    ----------
    .. [1] Tang, Ning, Wang, Sun, Wang, Li and Chen, "FedCor: correlation-based active client
       selection strategy for heterogeneous federated learning", CVPR, 2022.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("fedcor", n_clients=6, n_select=2, warmup=1, seed=0)
    >>> for t in range(3):
    ...     asked = selector.probe()  # all clients in the first warmup + 1 rounds
    ...     losses = None if asked is None else [1.0 / (t + 1) + 0.1 * k for k in asked]
    ...     picked = selector.select(losses=losses)
    ...     selector.observe(picked.clients)
    >>> len(picked)
    2
    """

    name: ClassVar[str] = "fedcor"
    needs = frozenset({"probe"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        warmup: int = 15,
        interval: int = 10,
        rank: int = 15,
        beta: float = 0.95,
        gamma: float = 0.8,
        history: int = 15,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.warmup = check_count(warmup, "warmup")
        self.interval = check_count(interval, "interval", minimum=2)
        self.rank = check_count(rank, "rank")
        self.beta = check_number(beta, "beta", above=0.0, maximum=1.0)
        self.gamma = check_number(gamma, "gamma", above=0.0, maximum=1.0)
        self.history = check_count(history, "history")
        self._changes = np.zeros((0, self.n_clients))  # oldest first
        self._losses = np.full(self.n_clients, np.nan)  # of the last measured round
        self._measured = -2  # that round
        self._picks = np.zeros(self.n_clients, dtype=np.int64)  # since C was fitted

    def _measures(self, round: int) -> bool:
        """Return whether the losses of all clients are wanted in `round`."""
        later = round - self.warmup
        return later <= 0 or later % self.interval in (0, self.interval - 1)

    def _candidates(self, eligible: Mask) -> Ids | None:
        return np.flatnonzero(eligible) if self._measures(self.round) else None

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        if probe is None and self._measures(self.round):
            raise ValueError(
                "losses must be given to fedcor in this round: call probe() and pass the loss of "
                "each client that it returns, got None"
            )
        if probe is not None:
            self._take(probe)
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        if self.round < self.warmup or len(self._changes) == 0:
            return uniform_selection(eligible, self.n_select, self._rng, self.round)
        ages = np.arange(len(self._changes))[::-1]
        factors, noise = factor_covariance(self._changes, self.gamma**ages, self.rank)
        shares = self.weights / self.weights.sum()
        discounts = self.beta ** self._picks.astype(np.float64)
        clients = choose_correlated(factors, noise, shares, discounts, eligible, n_picked)
        return Selection(clients=clients, round=self.round)

    def _take(self, probe: Probe) -> None:
        """Store measured losses and, in the second of two measured rounds, their change."""
        losses = self._losses.copy()
        losses[:] = np.nan
        losses[probe.clients] = probe.losses
        if self._measured == self.round - 1:
            change = losses - self._losses
            known = ~np.isnan(change)
            if known.any():
                # A client without an answer changes as the others do on average.
                change[~known] = np.average(change[known], weights=self.weights[known] + 1e-300)
                self._changes = np.concatenate([self._changes, change[None]])[-self.history :]
                self._picks = np.zeros_like(self._picks)
        self._losses, self._measured = losses, self.round

    def _learn(self, report: Report) -> None:
        self._picks[report.selection.clients] += 1

    def _grow(self, n_clients: int, added: Float) -> None:
        mean = self._changes.mean(axis=1, keepdims=True)
        self._changes = np.hstack([self._changes, np.repeat(mean, added.size, axis=1)])
        self._losses = np.concatenate([self._losses, np.full(added.size, np.nan)])
        self._picks = np.concatenate([self._picks, np.zeros(added.size, dtype=np.int64)])

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self._changes[:, client] = 0.0

    def _config(self) -> dict[str, Any]:
        names = ("warmup", "interval", "rank", "beta", "gamma", "history")
        return {name: getattr(self, name) for name in names}

    def _learned(self) -> dict[str, Any]:
        return {
            "changes": self._changes.copy(),
            "losses": self._losses.copy(),
            "measured": self._measured,
            "picks": self._picks.copy(),
        }

    def _restore(self, learned: dict[str, Any]) -> None:
        changes = np.asarray(learned["changes"])
        if (
            changes.ndim != 2
            or changes.shape[1] != self.n_clients
            or len(changes) > self.history
            or changes.dtype != np.float64
            or not np.isfinite(changes).all()
        ):
            raise ValueError(
                f"changes must be finite, at most {self.history} rows of {self.n_clients} "
                f"clients, got {changes.dtype} {changes.shape}"
            )
        picks = check_stored(learned["picks"], "picks", self.n_clients, np.int64)
        if (picks < 0).any():
            raise ValueError(f"picks must be non-negative, got {picks.min()}")
        measured = check_count(learned["measured"], "measured", minimum=-2)
        losses = check_stored(learned["losses"], "losses", self.n_clients)
        if np.isinf(losses).any():
            raise ValueError("losses must be finite or NaN")
        self._changes, self._losses = changes.copy(), losses
        self._measured, self._picks = measured, picks
