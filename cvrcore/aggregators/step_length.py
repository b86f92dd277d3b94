r"""Measurements of a round in, the length of the server's step out: the rule "adaptive".

Let d be the aggregated update, g the update that full participation would have made, s the
squared length of d, v its variance over draws, as the aggregator estimates it
(`cvrcore.aggregators.noise`), f the mean update of the reports of this round alone, d' the last
d. On a quadratic with curvature h along d the loss falls most, on average over draws, for the
step length

    <g, d> / (h |d|^2) = (1 - v / s) / h .

*Noise.* ``1 - v / s`` is the share of d that full participation would take too.

*Curvature.* The reports of a round measure the slope at the model that was sent, which the last
step led to: ``<f, d'>`` is on average ``|g'|^2 - lr h |d'|^2``. With ``rho = <f, d'> / |d'|^2``
the difference ``(1 - v / s) - rho`` is the last step length times the curvature. The remembered
part of d cannot tell this: it was measured at earlier models. The sign of ``<f, d'>`` is the
hypergradient of [1]_.

All four numbers are averaged over rounds. The step length is ``caution * (1 - v / s) / h``, at
least `shortest` and at most `longest`; it starts at `shortest` and grows by at most a tenth a
round.

*Averaged models.* Where the moving average of the models is deployed (`ModelAverage`), the longest
stable step is better than the best single one: the average takes the overshoot out. On a quadratic
whose noise grows with the update, as that of a draw does, steps are stable up to twice
``(1 - v / s) / h``. The rule then takes 1.5 of it instead of 0.75, and grows by a fifth a round.

References
----------
.. [1] Baydin, Cornish, Martinez Rubio, Schmidt and Wood, "Online learning rate adaptation with
   hypergradient descent", ICLR, 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..runtime.journal import Noted

Array = NDArray[Any]

#: Weight of the past in the running means.
MEMORY: Final = 0.9
#: Part of the best single step that is taken: of models that are deployed, or averaged.
CAUTION: Final = {False: 0.75, True: 1.5}
#: The most by which a step is longer than the one before.
GROWTH: Final = {False: 1.1, True: 1.2}


class Step(NamedTuple):
    """A step length, with the running means of s, v, lr * h and lr that it comes from."""

    lr: float
    means: Array


class StepLength(Noted):
    """The rule's settings and state.

    Parameters
    ----------
    longest, shortest : float
        Bounds of the step length.
    caution : float, optional
        Part of the best single step that is taken. Default: 0.75, or 1.5 if `averaged`.
    averaged : bool
        Whether the average of the models is deployed in place of the model.

    Examples
    --------
    >>> rule = StepLength(longest=3.0, shortest=1.0)
    >>> x = np.array([3.0, 4.0])
    >>> for _ in range(20):  # on the quadratic |x|^2 / 4, without noise
    ...     moved = [-0.5 * x]
    ...     step = rule.measure(moved, noise=0.0, fresh=moved)
    ...     rule.take(step, moved)
    ...     x = x + step.lr * moved[0]
    >>> round(step.lr, 2)
    1.5
    """

    def __init__(
        self,
        longest: float,
        shortest: float,
        caution: float | None = None,
        averaged: bool = False,
    ) -> None:
        self.longest, self.shortest = longest, shortest
        self.caution = CAUTION[averaged] if caution is None else caution
        self.growth = GROWTH[averaged]
        self.last_lr = shortest
        self.means: Array = np.zeros(0)
        self.last: list[Array] = []  # d of the last round

    def measure(self, moved: Sequence[Array], noise: float, fresh: Sequence[Array]) -> Step:
        """Return the length of the step along `moved`; nothing changes.

        Parameters
        ----------
        moved : list of arrays
            The aggregated update d; arrays that do not move are empty.
        noise : float
            Its variance over draws, summed over coordinates.
        fresh : list of arrays
            The mean update f of this round's reports alone, of the shapes of the model.
        """
        length = _dot(moved, moved)
        # A variance above the squared length says no more than that nothing is known.
        newest = np.array([length, min(noise, length), 0.0, 0.0])
        old = self.means if self.means.size else np.zeros(4)
        last = self.last
        if [a.shape for a in last] == [a.shape for a in moved] and (square := _dot(last, last)) > 0:
            floats = [f if a.size else a for f, a in zip(fresh, last, strict=True)]
            # Bounded: one report of any length may not decide the step of later rounds.
            rho = float(np.clip(_dot(floats, last) / square, -1.0, 1.0))
            newest[2:] = _share(old) - rho, self.last_lr
        means = MEMORY * old + (1.0 - MEMORY) * newest
        longest = min(self.longest, self.growth * self.last_lr)
        if means[2] > 0:  # the loss curves upwards along the last steps
            longest = min(longest, self.caution * _share(means) * means[3] / means[2])
        return Step(float(max(longest, self.shortest)), means)

    def take(self, step: Step, moved: Sequence[Array]) -> None:
        """Remember a step that was taken."""
        self.last_lr, self.means, self.last = step.lr, step.means, list(moved)


def _share(means: Array) -> float:
    """Return 1 - v / s, the share of the update that is not noise of the draw."""
    return float(1.0 - means[1] / means[0]) if means[0] > 0 else 0.0


def _dot(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Return the inner product of two lists of arrays, summed in float64."""
    pairs = zip(left, right, strict=True)
    return sum(
        float(np.einsum("i,i->", a.ravel(), b.ravel(), dtype=np.float64)) if a.size else 0.0
        for a, b in pairs
    )
