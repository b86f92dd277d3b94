"""Kriging of updates: the best linear prediction of the full step; for experiments alone.

The updates of all clients in all rounds are taken for one Gaussian field, of which the reports
of the last rounds are observations. The covariance of two updates, of clients k and l in rounds
s and t, is a sum of three parts, each of which fades with the rounds between them:

    common * r_common^|s-t| + factor * <f_k, f_l> * r_factor^|s-t| + own * [k = l] * r_own^|s-t|

plus `noise` on the diagonal. The step is the conditional mean of ``sum_k alpha_k u_k``. Nothing
corrects it by how clients were drawn: it is not unbiased over draws. `CorrectedKriging` takes
the conditional means before the round instead, and adds what they missed of the clients that
report, weighted by inclusion: the regression estimator of survey sampling.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cvrcore.aggregators import Arrays
from cvrcore.aggregators.base import RoundUpdates
from cvrcore.aggregators.flat import FlatLayout
from cvrcore.head import HeadMap

from .replayed import Replayed

WINDOW = 30  # rounds that are remembered


@dataclasses.dataclass(frozen=True)
class Covariance:
    """Variances of the parts of an update, and their correlations from round to round.

    The defaults have the largest `log_likelihood` on a recording of MNIST, 100 clients, seed 0,
    rounded; the noise, which came out near 0, is a little more than that.
    """

    common: float = 1.0
    factor: float = 1.0
    own: float = 0.16
    noise: float = 0.001
    r_common: float = 0.998
    r_factor: float = 0.995
    r_own: float = 0.975

    def between(
        self,
        a: tuple[np.ndarray, np.ndarray, np.ndarray],
        b: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> np.ndarray:
        """Return the covariances of two lists of updates, each by round, client and feature."""
        gap = np.abs(a[0][:, None] - b[0][None, :])
        same = a[1][:, None] == b[1][None, :]
        near = a[2] @ b[2].T
        found: np.ndarray = (
            self.common * self.r_common**gap
            + self.factor * near * self.r_factor**gap
            + self.own * same * self.r_own**gap
        )
        return found


class Kriging(Replayed):
    """The conditional mean of the full step, given the reports of the last `WINDOW` rounds."""

    name = "kriging"

    def __init__(self, covariance: Covariance | None = None, window: int = WINDOW) -> None:
        self.covariance = covariance or Covariance()
        self.window = window
        self._round = 0
        self._rounds = np.zeros(0)
        self._clients = np.zeros(0, dtype=np.int64)
        self._updates = np.zeros((0, 0), dtype=np.float32)
        self._features = np.zeros((0, 0))
        self._seen = np.zeros(0, dtype=bool)

    @property
    def nbytes(self) -> int:
        """Bytes of the reports that are remembered."""
        return self._updates.nbytes

    def _merge(self, received: RoundUpdates) -> Arrays:
        layout = FlatLayout(received.current)
        base = layout.flatten(received.current)
        self.learn(received, layout.differences(received.updates, received.clients, base))
        step = self.weights(received.weights).astype(np.float32) @ self._updates
        return layout.unflatten(base + step)

    def learn(self, received: RoundUpdates, changes: np.ndarray) -> None:
        """Remember the reports of a round and forget the oldest."""
        self._round += 1
        n_clients, clients = received.weights.size, received.clients
        rows = HeadMap(received.current).updates(received.updates, received.current)
        if not self._features.size:
            self._features = np.zeros((n_clients, rows.shape[1]))
            self._seen = np.zeros(n_clients, dtype=bool)
            self._updates = np.zeros((0, changes.shape[1]), dtype=np.float32)
        half = np.where(self._seen[clients], 0.5, 1.0)[:, None]
        self._features[clients] += half * (rows - self._features[clients])
        self._seen[clients] = True
        kept = self._rounds > self._round - self.window
        self._rounds = np.append(self._rounds[kept], np.full(clients.size, float(self._round)))
        self._clients = np.append(self._clients[kept], clients)
        self._updates = np.concatenate([self._updates[kept], changes])

    def weights(self, sizes: np.ndarray, ahead: int = 0) -> np.ndarray:
        """Return the weight of each remembered report in the prediction of the full step."""
        share = sizes / sizes.sum()
        found: np.ndarray = self.predictors(share, ahead) @ share
        return found

    def predictors(self, share: np.ndarray, ahead: int) -> np.ndarray:
        """Return the weights that predict each client's update, a column each, `ahead` rounds on.

        Of a sum over clients only the weighted column is needed, but the cost is small.
        """
        seen = (self._rounds, self._clients, self._features[self._clients])
        inner = self.covariance.between(seen, seen)
        inner[np.diag_indices_from(inner)] += self.covariance.noise
        features = self._features
        if not self._seen.all():
            known = np.where(self._seen, share, 0.0)
            mean = known @ features / known.sum()
            features = np.where(self._seen[:, None], features, mean)
        now = (np.full(share.size, float(self._round + ahead)), np.arange(share.size), features)
        found: np.ndarray = np.linalg.solve(inner, self.covariance.between(seen, now))
        return found


class CorrectedKriging(Kriging):
    """Predictions from earlier rounds, corrected by the reports: no bias but of the division."""

    name = "corrected-kriging"

    def _merge(self, received: RoundUpdates) -> Arrays:
        layout, clients = FlatLayout(received.current), received.clients
        base = layout.flatten(received.current)
        changes = layout.differences(received.updates, clients, base)
        share = received.weights / received.weights.sum()
        assert received.selection is not None
        inclusion = received.selection.inclusion
        assert inclusion is not None
        factors = share[clients] / inclusion[clients]
        factors = (factors / factors.sum()).astype(np.float32)
        step = factors @ changes
        if self._round:
            predictors = self.predictors(share, ahead=1)
            # The prediction for all, less that for the clients that report.
            left = predictors @ share - predictors[:, clients] @ factors.astype(np.float64)
            step += left.astype(np.float32) @ self._updates
        self.learn(received, changes)
        return layout.unflatten(base + step)


def log_likelihood(covariance: Covariance, kriging: Kriging) -> float:
    """Return the mean log-likelihood of a coordinate of the remembered reports.

    The scale of the covariance is taken out: only the proportions of its parts matter.
    """
    seen = (kriging._rounds, kriging._clients, kriging._features[kriging._clients])
    inner = covariance.between(seen, seen)
    inner[np.diag_indices_from(inner)] += covariance.noise
    lower = np.linalg.cholesky(inner)
    white = np.linalg.solve(lower, kriging._updates.astype(np.float64))
    n, width = white.shape
    scale = float((white**2).sum() / (n * width))
    return -0.5 * (n * np.log(scale) + 2.0 * float(np.log(np.diag(lower)).sum()))
