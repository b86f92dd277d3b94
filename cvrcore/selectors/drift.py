"""Drift: updates and models sent in, the clients whose remembered update is oldest out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..draws.designs import DESIGNS, draw_by_design
from ..draws.pps import capped_inclusion
from ..selection import Selection
from ..validation import (
    Float,
    Mask,
    check_choice,
    check_count,
    check_matrix,
    check_number,
    check_shape,
    check_stored,
    check_vector,
)
from .base import Probe, Report, Selector
from .guards import Guards


class DriftSelector(Selector):
    r"""Sampling by how far the update that the server remembers of a client has drifted; ours.

    With the aggregator ``memory`` the step is
    :math:`\sum_k \alpha_k m_k + \sum_S (\alpha_k / \pi_k)(u_k - m_k)`. For independent draws
    its variance is least for inclusion in proportion to :math:`\alpha_k \|u_k - m_k\|`, capped
    at 1: neither the norm of the update nor its distance from a group's mean. If a client's
    update is :math:`L_k`-Lipschitz in the model,
    :math:`\|u_k - m_k\| \le L_k \|x_t - x_{s_k}\|` with :math:`s_k` its last round; the server
    knows all but :math:`L_k`. So

    - the score is ``alpha_k * L_k * |x_t - x_s|``, in the watched coordinates;
    - a report updates L_k by half with ``|u_k - m_k| / |x_t - x_s|``;
    - a client seen once has the median L, one never seen the median L and the largest drift;
    - inclusion is ``(1 - floor)`` times the capped scores plus `floor` times an even share.

    Pass the watched coordinates of the model that is about to be sent to
    ``select(sent=...)``, and ``observe(updates=...)``.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    n_features : int
        Number of watched coordinates D. State: 2 K D numbers.
    floor : float in (0, 1], default=0.2
    design : {"systematic", "pivotal", "poisson"}, default="systematic"
        How clients are drawn from the inclusion probabilities, see `cvrcore.draws.designs`;
        "pivotal" spreads the sample over the remembered updates, "poisson" has a random size.

    Examples
    --------
    >>> import numpy as np
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("drift", n_clients=8, n_select=3, n_features=2, seed=0)
    >>> model = np.zeros(2)
    >>> for _ in range(3):
    ...     picked = selector.select(sent=model)
    ...     selector.observe(picked.clients, updates=np.ones((3, 2)))
    ...     model = model + 1.0
    >>> float(picked.inclusion.sum().round(6))
    3.0
    """

    name: ClassVar[str] = "drift"
    needs = frozenset({"updates", "sent"})
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights", "_updates", "_models"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_features: int,
        floor: float = 0.2,
        design: str = "systematic",
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.n_features = check_count(n_features, "n_features")
        self.floor = check_number(floor, "floor", above=0, maximum=1)
        self.design = check_choice(design, "design", DESIGNS)
        if self.design == "poisson":
            self.size_rule = "random"
        shape = (self.n_clients, self.n_features)
        self._updates = np.zeros(shape)  # m_k
        self._models = np.zeros(shape)  # x_{s_k}
        self._seen = np.zeros(self.n_clients, dtype=bool)
        self._slopes = np.full(self.n_clients, np.nan)  # L_k, unknown until seen twice

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        assert self._sent is not None
        ids = np.flatnonzero(eligible)
        size = min(self.n_select, ids.size)
        scores = np.where(eligible, self._scores(self._sent), 0.0)
        inclusion = np.zeros(self.n_clients)
        inclusion[ids] = capped_inclusion(scores[ids], size)
        inclusion[ids] = (1.0 - self.floor) * inclusion[ids] + self.floor * (size / ids.size)
        return draw_by_design(
            self.design,
            inclusion,
            self._rng,
            round=self.round,
            scores=scores,
            features=self._updates if self.design == "pivotal" else None,
        )

    def _scores(self, sent: Float) -> Float:
        """Return alpha_k L_k |x_t - x_{s_k}|, on a scale of its own; by size while all are 0."""
        shares = self.weights / self.weights.max()
        if not self._seen.any():
            return np.asarray(shares)
        drift = np.where(self._seen, _norms(sent - self._models), 0.0)
        drift = np.where(self._seen, drift, drift.max())
        known = ~np.isnan(self._slopes)
        typical = np.median(self._slopes[known]) if known.any() else 1.0
        slopes = np.where(known, self._slopes, typical)
        top = slopes.max()
        drift_top = drift.max()
        if top <= 0 or drift_top <= 0:
            return np.asarray(shares)
        return np.asarray(shares * (slopes / top) * (drift / drift_top))

    def _check_sent(self, sent: ArrayLike | None) -> Float | None:
        if sent is None:
            raise ValueError(
                "sent must be given to drift: the watched coordinates of the model about to be "
                f"sent, {self.n_features} numbers, got None"
            )
        return check_vector(sent, "sent", self.n_features, limit=1e100).copy()

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        if name == "updates":
            shape = (n_reported, self.n_features)
            return check_matrix(value, name, shape, np.float64, limit=1e100)
        return super()._check_signal(name, value, n_reported)

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        sent, clients = report.selection.sent, report.clients
        updates = report.signals["updates"]
        assert sent is not None
        moved = _norms(sent - self._models[clients])
        changed = _norms(updates - self._updates[clients])
        # A model that has not moved tells nothing of the slope.
        told = self._seen[clients] & (moved > 1e-12 * (1.0 + np.linalg.norm(sent)))
        again = clients[told]
        ratio = changed[told] / moved[told]
        old = self._slopes[again]
        self._slopes[again] = np.where(np.isnan(old), ratio, 0.5 * (old + ratio))
        if self._journal is not None:
            self._journal.rows(clients, self._updates, self._models)
        self._updates[clients] = updates
        self._models[clients] = sent
        self._seen[clients] = True

    def _grow(self, n_clients: int, added: Float) -> None:
        more = np.zeros((added.size, self.n_features))
        self._updates = np.concatenate([self._updates, more])
        self._models = np.concatenate([self._models, more])
        self._seen = np.concatenate([self._seen, np.zeros(added.size, dtype=bool)])
        self._slopes = np.concatenate([self._slopes, np.full(added.size, np.nan)])

    def _config(self) -> dict[str, Any]:
        return {"n_features": self.n_features, "floor": self.floor, "design": self.design}

    def _learned(self) -> dict[str, Any]:
        return {
            "updates": self._updates.copy(),
            "models": self._models.copy(),
            "seen": self._seen.copy(),
            "slopes": self._slopes.copy(),
        }

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], learned: dict[str, Any]) -> None:
        super()._check_sizes(config, learned)
        n_features = check_count(config["n_features"], "n_features")
        for name in ("updates", "models"):
            check_shape(learned[name], name, (config["n_clients"], n_features))

    def _check_open(self, selection: Selection) -> None:
        if selection.sent is None:
            raise ValueError("pending sent must be the model that was sent, got None")
        check_vector(selection.sent, "pending sent", self.n_features, limit=1e100)

    def _restore(self, learned: dict[str, Any]) -> None:
        shape = (self.n_clients, self.n_features)
        for name in ("updates", "models"):
            rows = check_matrix(learned[name], name, shape, np.float64, limit=1e100)
            setattr(self, f"_{name}", rows.copy())
        self._seen = check_stored(learned["seen"], "seen", self.n_clients, bool)
        self._slopes = check_stored(learned["slopes"], "slopes", self.n_clients)
        if (self._slopes < 0).any() or np.isinf(self._slopes).any():
            raise ValueError("slopes must be finite and non-negative, or NaN where unknown")


def _norms(rows: Float) -> Float:
    return np.sqrt(np.einsum("kd,kd->k", rows, rows))
