"""Active federated learning: client losses in, a softmax sample of clients out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..draws.inclusion import filled_in, sampled_inclusion, successive_inclusion
from ..guards import Guards
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_number, check_stored
from .base import Probe, Report, Selector
from .power_of_choice import gumbel_top_k
from .uniform import uniform_selection

#: alpha1, alpha2, alpha3 of each preset.
PRESETS = {"paper": (0.8, 1.0, 0.0), "goetz": (0.75, 0.01, 0.1), "scripts": (0.0, 1.0, 0.0)}

_HUGE = 1e300  # losses near the largest double must not overflow in sqrt(n) * loss


class ActiveSelector(Selector):
    r"""Softmax sampling of a client value: sqrt(samples) times mean loss [1]_.

    The value v is :math:`\sqrt{n_k}` times the mean loss. Each round: drop the
    ``floor(alpha1 * E)`` of the E eligible clients with the smallest value; draw
    ``floor((1 - alpha3) * P)`` of the rest without replacement, in proportion to
    ``exp(alpha2 * v)``; draw the remaining slots uniformly from all clients not yet drawn. The
    drop keeps enough clients for the draw and breaks ties at random.

    The loss is the mean over the client's training samples of the model it was sent,
    *before* local training. `probe` returns the clients without a known loss: all clients
    in the first round. Later a value changes only when its client takes part (`observe`).
    A client without a value can be drawn in the uniform stage only; if no client has a
    value, the whole draw is uniform.

    Public copies go wrong in several ways avoided here: alpha1 is the fraction dropped,
    not kept; :math:`1/\sqrt n` multiplies the *sum* of losses, not their mean; values are
    masked in a copy, since writing -inf into the store erases them for later rounds;
    unseen clients at -inf would never be picked with ``alpha3=0``; ``exp`` overflows.

    Parameters
    ----------
    n_clients, n_select, weights, seed
        See `Selector`; `weights` are the n_k.
    preset : {"paper", "goetz", "scripts"}, default="paper"
        "paper": alphas 0.8, 1, 0, as the FedCVR-Bolt article runs it. "goetz": 0.75,
        0.01, 0.1 of the original. "scripts": 0, 1, 0 on another rule, that of the scripts
        published with FedCVR-Bolt: `probe` returns ``2 * n_select`` clients drawn uniformly,
        and only their losses of this round are the values.
    alpha1, alpha2, alpha3 : float, optional
        Override the preset: fraction dropped in [0, 1], inverse temperature >= 0, and
        fraction drawn uniformly in [0, 1]; ``alpha3=1`` is uniform sampling.

    Notes
    -----
    ``Selection.probabilities`` is the law given the known values (for "scripts", given the
    candidates) and given how ties at the drop were broken. ``Selection.inclusion`` is over
    all draws. It is exact except for "scripts", where
    `cvrcore.draws.inclusion.sampled_inclusion` estimates it; a client that is no candidate
    then enters with its last known loss, or with the loss of a random client.

    References
    ----------
    .. [1] Goetz, Malik, Bui, Moon, Liu and Kumar, "Active federated learning",
       arXiv:1909.12641, 2019.

    Examples
    --------
    >>> selector = ActiveSelector(n_clients=10, n_select=2, weights=[100] * 10, seed=0)
    >>> asked = selector.probe()  # all clients, in the first round
    >>> sorted(selector.select(losses=asked / 10).clients.tolist())
    [8, 9]
    """

    name: ClassVar[str] = "active"
    loss_statistic: ClassVar[str | None] = "mean"
    needs = frozenset({"probe"})

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        preset: str = "paper",
        alpha1: float | None = None,
        alpha2: float | None = None,
        alpha3: float | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, guards)
        self.preset = check_choice(preset, "preset", PRESETS)
        given = (alpha1, alpha2, alpha3)
        first, second, third = (
            default if alpha is None else alpha
            for alpha, default in zip(given, PRESETS[preset], strict=True)
        )
        self.alpha1 = check_number(first, "alpha1", minimum=0.0, maximum=1.0)
        self.alpha2 = check_number(second, "alpha2", minimum=0.0)
        self.alpha3 = check_number(third, "alpha3", minimum=0.0, maximum=1.0)
        # Last known losses, NaN if none; "scripts" reads them only for `inclusion`.
        self._losses = np.full(self.n_clients, np.nan)
        if self._n_valued(self.n_select) == 0:
            self.needs -= {"losses", "probe"}
        elif self._fresh:
            self.needs -= {"losses"}

    @property
    def _fresh(self) -> bool:
        """Return whether the values are only the losses of this round's candidates."""
        return self.preset == "scripts"

    def _n_valued(self, n_picked: int) -> int:
        # Rounding must not turn (1 - 0.9) * 10 into 0.
        return int((1.0 - self.alpha3) * n_picked + 1e-9)

    def _candidates(self, eligible: Mask) -> Ids | None:
        n_eligible = int(np.count_nonzero(eligible))
        if self._n_valued(min(self.n_select, n_eligible)) == 0:
            return None
        if self._fresh:
            size = min(2 * self.n_select, n_eligible)
            return self._rng.choice(np.flatnonzero(eligible), size=size, replace=False)
        unknown = np.flatnonzero(eligible & np.isnan(self._losses))
        return unknown if unknown.size else None

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        n_eligible = int(np.count_nonzero(eligible))
        n_picked = min(self.n_select, n_eligible)
        n_valued = self._n_valued(n_picked)
        if n_valued == 0:
            return uniform_selection(eligible, self.n_select, self._rng, self.round)
        values = self._values(probe)
        pool = np.flatnonzero(eligible & ~np.isnan(values))
        if pool.size == 0:
            if probe is None:
                raise ValueError(
                    "losses must be given to active while no eligible client has a value: call "
                    "probe() and pass the loss of each client that it returns, got None"
                )
            return uniform_selection(eligible, self.n_select, self._rng, self.round)

        n_valued = min(n_valued, pool.size)
        n_dropped = min(int(self.alpha1 * pool.size + 1e-9), pool.size - n_valued)
        order = np.lexsort((self._rng.random(pool.size), values[pool]))
        kept = pool[order[n_dropped:]]
        with np.errstate(over="ignore"):
            logits = self.alpha2 * (values[kept] - values[kept].max())
        logits = np.maximum(logits, -_HUGE)
        drawn = kept[gumbel_top_k(logits, n_valued, self._rng)]
        others = eligible.copy()
        others[drawn] = False
        rest = self._rng.choice(np.flatnonzero(others), size=n_picked - n_valued, replace=False)

        law = np.zeros(self.n_clients)
        law[kept] = np.exp(logits) / np.exp(logits).sum()
        clients = np.concatenate([drawn, rest])
        # Clients tied at the edge of the drop are kept with probability `share` each.
        tied = pool[values[pool] == values[kept[0]]]
        share = np.count_nonzero(values[kept] == values[kept[0]]) / tied.size

        def inclusion() -> Float:
            if n_picked == n_eligible:
                return eligible.astype(np.float64)
            first = np.zeros(law.size)
            first[kept] = successive_inclusion(logits, n_valued)
            first[tied] = first[kept[0]] * share
            # Probability of the uniform stage for a client that the first stage left out.
            second = (n_picked - n_valued) / (n_eligible - n_valued)
            return np.where(eligible, first + (1.0 - first) * second, 0.0)

        return Selection(
            clients=clients,
            scores=values,
            probabilities=law,
            inclusion=self._fresh_inclusion(eligible, clients) if self._fresh else inclusion,
            round=self.round,
        )

    def _fresh_inclusion(self, eligible: Mask, clients: Ids) -> Callable[[], Float]:
        """Return the lazy estimate for preset "scripts", over the draw of candidates too."""
        ids, losses, round = np.flatnonzero(eligible), self._losses[eligible], self.round
        n_asked, alpha2 = min(2 * self.n_select, ids.size), self.alpha2
        n_valued = self._n_valued(clients.size)
        n_dropped = min(int(self.alpha1 * n_asked + 1e-9), n_asked - n_valued)

        def draw(rng: np.random.Generator, n: int) -> Ids:
            asked = np.argsort(rng.random((n, ids.size)), axis=1)[:, :n_asked]
            values = np.take_along_axis(filled_in(losses, rng, n), asked, axis=1)
            order = np.lexsort((rng.random(values.shape), values))[:, n_dropped:]
            kept = np.take_along_axis(values, order, axis=1)
            keys = -(alpha2 * (kept - kept.max()) + rng.gumbel(size=kept.shape))
            best = np.argsort(keys, axis=1)[:, :n_valued]
            drawn = np.take_along_axis(np.take_along_axis(asked, order, axis=1), best, axis=1)
            keys = rng.random((n, ids.size))
            np.put_along_axis(keys, drawn, np.inf, axis=1)
            rest = np.argsort(keys, axis=1)[:, : clients.size - n_valued]
            return ids[np.concatenate([drawn, rest], axis=1)]

        return lambda: sampled_inclusion(draw, eligible, clients, round)

    def _values(self, probe: Probe | None) -> Float:
        """Store the probed losses; return the value of every client, NaN where unknown."""
        if self._fresh:
            values = np.full(self.n_clients, np.nan)
            if probe is not None:
                values[probe.clients] = probe.losses
        if probe is not None:
            answered = ~np.isnan(probe.losses)
            self._losses[probe.clients[answered]] = probe.losses[answered]
        if not self._fresh:
            with np.errstate(over="ignore"):
                values = np.sqrt(self.weights) * self._losses
        return np.asarray(np.clip(values, -_HUGE, _HUGE))

    def _check_learnable(self, report: Report) -> None:
        learns = not self._fresh and self._n_valued(self.n_select) > 0
        if learns and report.clients.size and report.losses is None:
            raise ValueError(
                "losses must be given to active: the mean training loss of each of the "
                f"{report.clients.size} clients that reported, got None"
            )

    def _learn(self, report: Report) -> None:
        if report.losses is not None and not self._fresh:
            self._losses[report.clients] = report.losses

    def _grow(self, n_clients: int, added: Float) -> None:
        self._losses = np.concatenate([self._losses, np.full(added.size, np.nan)])

    def _config(self) -> dict[str, Any]:
        return {
            "preset": self.preset,
            "alpha1": self.alpha1,
            "alpha2": self.alpha2,
            "alpha3": self.alpha3,
        }

    def _learned(self) -> dict[str, Any]:
        return {"losses": self._losses.copy()}

    def _restore(self, learned: dict[str, Any]) -> None:
        self._losses = check_stored(learned["losses"], "losses", self.n_clients)
