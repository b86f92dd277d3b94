"""A world for a selector: clients that come and go, answer, fail or keep silent."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._validation import Float, Ids, Mask
from ..selection import Selection
from ..selectors.base import Selector
from .claims import Broken


class World:
    """Drives one selector, with a random stream of its own.

    Two worlds of one seed do the same to their selectors as long as these make the same
    choices.

    Parameters
    ----------
    selector : Selector
    seed : int
    n_features : int
        Width of the models that clients report.
    """

    def __init__(self, selector: Selector, seed: int, n_features: int) -> None:
        self.selector, self.n_features = selector, n_features
        self.rng = np.random.default_rng(seed)
        self.available: Mask | None = None
        self.answers: Float | None = None
        self.picked: Selection | None = None

    def eligible(self) -> Mask:
        """Return who could be picked now."""
        able: Mask = self.selector.weights > 0
        return able if self.available is None else able & self.available

    def probe(self) -> Ids | None:
        """Let some clients come or go, and answer the policy's questions."""
        self.available = None
        if self.rng.random() > 0.2:
            self.available = self.rng.random(self.selector.n_clients) < self.rng.random()
            somebody = self.rng.choice(np.flatnonzero(self.selector.weights > 0))
            self.available[somebody] = True
        asked = self.selector.probe(self.available)
        self.answers = None
        if asked is not None:
            silent = self.rng.random(asked.size) < 0.2
            self.answers = np.where(silent, np.nan, self.rng.gamma(2.0, size=asked.size))
        return asked

    def select(self) -> Selection:
        """Let the policy pick."""
        self.picked = self.selector.select(self.available, losses=self.answers)
        return self.picked

    def observe(self) -> None:
        """Report what some of the picked did, in any order; some fail, some keep silent."""
        clients = self.rng.permutation(self.pending().clients)
        n_back, n_lost = self.rng.multinomial(clients.size, [0.7, 0.2, 0.1])[:2]
        failed = clients[n_back : n_back + n_lost]
        self.selector.observe(clients[:n_back], failed=failed, **self.report(n_back))

    def report(self, n_back: int) -> dict[str, Any]:
        """Return what `n_back` clients say: models, losses if wanted, durations at times."""
        losses = self.rng.gamma(2.0, size=n_back)
        timed = self.rng.random() < 0.8
        return {
            "models": self.rng.normal(size=(n_back, self.n_features)),
            "losses": losses if self.selector.loss_statistic is not None else None,
            "durations": self.rng.gamma(2.0, size=n_back) if timed else None,
        }

    def pending(self) -> Selection:
        """Return the round that waits for its report."""
        if self.picked is None:
            raise RuntimeError("select first")
        return self.picked

    def round(self) -> Selection:
        """Go through one whole round."""
        self.probe()
        picked = self.select()
        self.observe()
        return picked

    def rounds(self, n_rounds: int) -> list[list[int]]:
        """Go through rounds and return who was picked in each, in order."""
        return [self.round().clients.tolist() for _ in range(n_rounds)]

    def until_pending(self, at_least: int) -> Selection:
        """Select until a round of `at_least` clients is pending."""
        for _ in range(200):
            self.probe()
            if len(self.select()) >= at_least:
                return self.pending()
        raise Broken(f"{at_least} clients must be picked when so many are eligible, got fewer")

    def continued(self, selector: Selector) -> World:
        """Return a world in the same place, around another selector."""
        other = World(selector, 0, self.n_features)
        other.available, other.answers, other.picked = self.available, self.answers, self.picked
        other.rng.bit_generator.state = self.rng.bit_generator.state
        return other
