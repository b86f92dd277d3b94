"""Optimal client sampling: norms of updates in, clients of exact inclusion out."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..draws.designs import draw_by_design
from ..draws.pps import capped_inclusion
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_count, check_number, check_stored
from .base import Probe, Report, Selector
from .guards import Guards

FORMS: Final = ("exact", "approximate")
OPTIMAL_DESIGNS: Final = ("systematic", "poisson")
SOURCES: Final = ("remembered", "probed")


def optimal_inclusion(scores: Float, size: int) -> Float:
    r"""Return the inclusion probabilities of least variance (OCS, closed form) [1]_.

    For independent draws of `size` clients in expectation, they minimise
    :math:`\sum_k s_k^2 / \pi_k` with :math:`s_k = \alpha_k \|u_k\|`. With scores sorted up and
    l the largest number with :math:`0 < m + l - n \le \sum_{j \le l} s_{(j)} / s_{(l)}`, the
    l smallest have :math:`(m + l - n) s_k / \sum_{j \le l} s_{(j)}` and the others 1: this is
    inclusion in proportion to scores, capped at 1. All scores 0: uniform.

    Examples
    --------
    >>> optimal_inclusion(np.array([8.0, 1.0, 1.0, 2.0]), 2)
    array([1.  , 0.25, 0.25, 0.5 ])
    """
    return capped_inclusion(scores, size)


def approximate_inclusion(scores: Float, size: int, j_max: int = 4) -> Float:
    """Return AOCS: the same probabilities by rescaling, which needs sums of scores only [1]_.

    Clients start from ``min(size * s_k / sum s, 1)``. Then, at most `j_max` times, those below
    1 are scaled so that all would sum to `size`, and cut at 1 again. The server learns sums,
    not single norms, so secure aggregation can hide them. The sum stays at or below `size`.
    """
    n = scores.shape[0]
    if size >= n:
        return np.ones(n)
    top = scores.max()
    if top <= 0:
        return np.full(n, size / n)
    shares = scores / top
    inclusion = np.minimum(size * (shares / shares.sum()), 1.0)
    for _ in range(j_max):
        below = inclusion < 1.0
        total = inclusion[below].sum()
        if total <= 0.0:
            break
        factor = (size - n + np.count_nonzero(below)) / total
        inclusion[below] = np.minimum(factor * inclusion[below], 1.0)
        if factor <= 1.0:
            break
    return inclusion


class OptimalSelector(Selector):
    r"""Clients in proportion to the norm of their updates: optimal client sampling [1]_.

    The inclusion probability is that of `optimal_inclusion` in ``alpha_k |u_k|``, alpha_k the
    client's share of the samples. Use it with ``importance``, which divides by it: for
    independent draws no other probabilities give a smaller variance.

    In the article every client computes its update and sends its norm before the draw. Here
    ``norms="remembered"`` (the default) takes the norm that a client last reported, the mean
    norm for a client never seen, and mixes in a share `floor` of uniform selection, so that
    nobody is forgotten. ``norms="probed"`` is the article's: `probe` names every eligible
    client, and ``select(losses=...)`` takes the *norms* of the updates that they would send.

    The article draws independently, so that a round has a random size, even 0
    (``design="poisson"``). The default is systematic sampling in random order: the same
    inclusion, a fixed size.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    form : {"exact", "approximate"}
        OCS, or AOCS, which ends at most at P clients in expectation.
    j_max : int, default=4
        Rescalings of AOCS.
    design : {"systematic", "poisson"}
    norms : {"remembered", "probed"}
    floor : float in [0, 1], optional
        Default: 0.1 for remembered norms, 0 for probed ones.

    References
    ----------
    .. [1] Chen, Horvath and Richtarik, "Optimal client sampling for federated learning",
       TMLR, 2022.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("optimal", n_clients=6, n_select=3, seed=0)
    >>> picked = selector.select()
    >>> selector.observe(picked.clients, norms=[4.0, 1.0, 1.0])
    >>> after = selector.select().inclusion
    >>> bool(after.argmax() == picked.clients[0]), float(after.sum().round(6))
    (True, 3.0)
    """

    name: ClassVar[str] = "optimal"
    needs = frozenset({"norms"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        form: str = "exact",
        j_max: int = 4,
        design: str = "systematic",
        norms: str = "remembered",
        floor: float | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.form = check_choice(form, "form", FORMS)
        self.j_max = check_count(j_max, "j_max", minimum=0)
        self.design = check_choice(design, "design", OPTIMAL_DESIGNS)
        self.norms = check_choice(norms, "norms", SOURCES)
        if floor is None:
            floor = 0.1 if norms == "remembered" else 0.0
        self.floor = check_number(floor, "floor", minimum=0, maximum=1)
        if self.design == "poisson" or self.form == "approximate":
            self.size_rule = "random"
        if self.norms == "probed":
            self.needs = frozenset({"probed_norms"})
        self._norms = np.full(self.n_clients, np.nan)

    def _candidates(self, eligible: Mask) -> Ids | None:
        return np.flatnonzero(eligible) if self.norms == "probed" else None

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        norms = self._norms
        if self.norms == "probed":
            if probe is None:
                raise ValueError(
                    "losses must be the norms of the updates of all clients that probe() names "
                    "with norms='probed', got None: call probe() first"
                )
            if (probe.losses < 0).any():
                raise ValueError(f"norms must be non-negative, got {np.nanmin(probe.losses):g}")
            norms = np.full(self.n_clients, np.nan)
            norms[probe.clients] = probe.losses
        found = expected_scores(self.weights, norms)
        size, everybody = min(self.n_select, ids.size), ids.size == self.n_clients
        found = found if everybody else found[ids]
        if self.form == "exact":
            chances = optimal_inclusion(found, size)
        else:
            chances = approximate_inclusion(found, size, self.j_max)
        chances = (1.0 - self.floor) * chances + self.floor * (size / ids.size)
        scores, inclusion = found, chances
        if not everybody:
            scores, inclusion = np.zeros((2, self.n_clients))
            scores[ids], inclusion[ids] = found, chances
        return draw_by_design(self.design, inclusion, self._rng, round=self.round, scores=scores)

    def _learn(self, report: Report) -> None:
        if "norms" in report.signals:
            self._norms[report.clients] = report.signals["norms"]

    def _grow(self, n_clients: int, added: Float) -> None:
        self._norms = np.concatenate([self._norms, np.full(added.size, np.nan)])

    def _config(self) -> dict[str, Any]:
        names = ("form", "j_max", "design", "norms", "floor")
        return {name: getattr(self, name) for name in names}

    def _learned(self) -> dict[str, Any]:
        return {"norms": self._norms.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._norms = check_stored(learned["norms"], "norms", self.n_clients)
        if (self._norms < 0).any() or np.isinf(self._norms).any():
            raise ValueError("norms must be finite and non-negative, or NaN where unknown")


def expected_scores(weights: Float, norms: Float) -> Float:
    """Return alpha_k times the norm of each client; the mean norm where it is not known."""
    top = norms.max()
    if top > 0:  # all are known: NaN is not above 0
        return np.asarray(weights / weights.max() * (norms / top))
    known = ~np.isnan(norms)
    top = norms[known].max() if known.any() else 0.0
    scaled = norms / top if top > 0 else np.where(known, 0.0, np.nan)  # sums must not overflow
    typical = scaled[known].mean() if known.any() else 1.0
    return np.asarray(weights / weights.max() * np.where(known, scaled, typical))
