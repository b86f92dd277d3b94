"""K-Vib: norms of updates in, clients of exact inclusion out, by an online rule."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from ..draws.designs import design_inclusion, draw_by_design
from ..draws.pps import capped_inclusion
from ..selection import Selection
from ..validation import Float, Mask, check_choice, check_count, check_number, check_stored
from .base import Probe, Report, Selector
from .guards import Guards

KVIB_DESIGNS: Final = ("systematic", "poisson")


class KVibSelector(Selector):
    r"""Online learning of the inclusion probabilities of least variance [1]_.

    With :math:`\theta = \min(1, (K / (T P))^{1/3})` the inclusion probability is

    .. math:: \tilde\pi_k = (1 - \theta)\,\pi_k + \theta P / K, \qquad
              \pi_k \propto \sqrt{\omega_k + \gamma}

    with pi capped at 1, and a client that reports adds
    :math:`(\alpha_k \|u_k\|)^2 / \tilde\pi_k` to its :math:`\omega_k`, so that
    :math:`\omega` is an unbiased sum over all rounds. One public copy omits the square root.
    Use it with ``importance``. Among the clients that are available K is their number.

    The article draws independently (``design="poisson"``): a round has a random size, even 0.
    The default is systematic sampling in random order, the same inclusion at a fixed size.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`.
    n_rounds : int, default=200
        Horizon T.
    gamma : float, optional
        Regularisation. Default: ``0.1 K / (theta P)``, as in the authors' code, times the
        largest ``(alpha_k |u_k|)^2`` seen: a number of its own would have the scale of one
        model, and with small updates keep the law uniform for ever.
    design : {"systematic", "poisson"}

    References
    ----------
    .. [1] Zeng, Xu, Pan, Luo, Wang and Tang, "Enhanced federated optimization: adaptive
       unbiased client sampling with reduced variance", arXiv:2310.02698.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("k-vib", n_clients=6, n_select=3, seed=0)
    >>> picked = selector.select()
    >>> selector.observe(picked.clients, norms=[4.0, 1.0, 1.0])
    >>> bool(selector.select().inclusion.argmax() == picked.clients[0])
    True
    """

    name: ClassVar[str] = "k-vib"
    needs = frozenset({"norms"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_rounds: int | None = None,
        gamma: float | None = None,
        design: str = "systematic",
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.n_rounds = check_count(200 if n_rounds is None else n_rounds, "n_rounds")
        self.gamma = None if gamma is None else check_number(gamma, "gamma", above=0)
        self.design = check_choice(design, "design", KVIB_DESIGNS)
        if self.design == "poisson":
            self.size_rule = "random"
        self._omega = np.zeros(self.n_clients)
        self._largest = 0.0  # (alpha_k |u_k|)^2

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        ids = np.flatnonzero(eligible)
        size = min(self.n_select, ids.size)
        theta = min(1.0, (ids.size / (self.n_rounds * size)) ** (1.0 / 3.0))
        gamma = self.gamma
        if gamma is None:
            gamma = 0.1 * ids.size / (theta * size) * (self._largest or 1.0)
        everybody = ids.size == self.n_clients
        found = np.sqrt((self._omega if everybody else self._omega[ids]) + gamma)
        chances = (1.0 - theta) * capped_inclusion(found, size) + theta * (size / ids.size)
        scores, inclusion = found, chances
        if not everybody:
            scores, inclusion = np.zeros((2, self.n_clients))
            scores[ids], inclusion[ids] = found, chances
        return draw_by_design(self.design, inclusion, self._rng, round=self.round, scores=scores)

    def _learn(self, report: Report) -> None:
        if report.clients.size == 0:
            return
        clients = report.clients
        inclusion = design_inclusion(report.selection, self.n_select)
        if inclusion is None:
            return
        with np.errstate(over="ignore"):
            worth = np.square(self.weights[clients] / self.weights.sum() * report.signals["norms"])
        worth = np.minimum(worth, 1e200)
        self._largest = max(self._largest, float(worth.max()))
        self._omega[clients] += worth / np.maximum(inclusion[clients], 1e-12)
        np.minimum(self._omega, 1e300, out=self._omega)

    def _grow(self, n_clients: int, added: Float) -> None:
        self._omega = np.concatenate([self._omega, np.zeros(added.size)])

    def _forget(self, client: int) -> None:
        super()._forget(client)
        self._largest = 0.0  # it may be this client's; the next reports find it again

    def _config(self) -> dict[str, Any]:
        return {"n_rounds": self.n_rounds, "gamma": self.gamma, "design": self.design}

    def _learned(self) -> dict[str, Any]:
        return {"omega": self._omega.copy(), "largest": self._largest}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._omega = check_stored(learned["omega"], "omega", self.n_clients)
        if not (np.isfinite(self._omega).all() and (self._omega >= 0).all()):
            raise ValueError("omega must be finite and non-negative")
        self._largest = check_number(learned["largest"], "largest", minimum=0, maximum=1e200)
