"""Simulated clients: a selector in, rounds with missing, failed and silent clients out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..selection import Selection
from ..selectors.base import Selector
from ..validation import Float, Ids, Mask
from .assertions import CheckFailed, valid


class Simulation:
    """Runs rounds of one selector, with a random generator of its own.

    Two simulations of one seed make the same calls as long as their selectors make the same
    selections.

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
        self.losses: Float | None = None
        self.picked: Selection | None = None

    def eligible(self) -> Mask:
        """Return the mask of clients that can be selected now."""
        able: Mask = self.selector.weights > 0
        return able if self.available is None else able & self.available

    def probe(self) -> Ids | None:
        """Draw which clients are available, and the losses that the policy asks for."""
        self.available = None
        if self.rng.random() > 0.2:
            self.available = self.rng.random(self.selector.n_clients) < self.rng.random()
            always = self.rng.choice(np.flatnonzero(self.selector.weights > 0))
            self.available[always] = True
        asked = self.selector.probe(self.available)
        self.losses = None
        if asked is not None:
            silent = self.rng.random(asked.size) < 0.2
            self.losses = np.where(silent, np.nan, self.rng.gamma(2.0, size=asked.size))
        return asked

    def select(self) -> Selection:
        """Let the policy select."""
        self.picked = self.selector.select(self.available, losses=self.losses, **self.context())
        return self.picked

    def context(self) -> dict[str, Any]:
        """Return what `select` must be told besides availability and losses."""
        if "sent" not in self.selector.needs:
            return {}
        return {"sent": self.rng.normal(size=self.n_features)}

    def select_valid(self, n_select: int) -> Selection:
        """Let the policy select, and fail unless the selection is valid."""
        picked, selector = self.select(), self.selector
        valid(picked, self.eligible(), n_select, selector.round, selector.size_rule)
        return picked

    def observe(self) -> None:
        """Report the selected clients in any order; some fail, some do not reply."""
        clients = self.rng.permutation(self.pending().clients)
        n_reported, n_failed = self.rng.multinomial(clients.size, [0.7, 0.2, 0.1])[:2]
        failed = clients[n_reported : n_reported + n_failed]
        self.selector.observe(clients[:n_reported], failed=failed, **self.report(n_reported))

    def report(self, n_reported: int) -> dict[str, Any]:
        """Return a report of `n_reported` clients: models, losses if needed, durations at times."""
        losses = self.rng.gamma(2.0, size=n_reported)
        timed = self.rng.random() < 0.8 or "durations" in self.selector.needs
        return {
            "models": self.rng.normal(size=(n_reported, self.n_features)),
            "losses": losses if self.selector.loss_statistic is not None else None,
            "durations": self.rng.gamma(2.0, size=n_reported) if timed else None,
            **self.signals(n_reported),
        }

    def signals(self, n_reported: int) -> dict[str, Any]:
        """Return the signals that the policy needs; the stream does not move without them."""
        needs, told = self.selector.needs, {}
        if "norms" in needs:
            told["norms"] = self.rng.gamma(2.0, size=n_reported)
        if "updates" in needs:
            told["updates"] = self.rng.normal(size=(n_reported, self.n_features))
        if "utilities" in needs:
            told["utilities"] = self.rng.normal(size=n_reported)
        return told

    def pending(self) -> Selection:
        """Return the selection of the pending round."""
        if self.picked is None:
            raise RuntimeError("select first")
        return self.picked

    def round(self) -> Selection:
        """Run one whole round."""
        self.probe()
        picked = self.select()
        self.observe()
        return picked

    def rounds(self, n_rounds: int) -> list[list[int]]:
        """Run rounds and return the clients selected in each, in order."""
        return [self.round().clients.tolist() for _ in range(n_rounds)]

    def until_pending(self, at_least: int) -> Selection:
        """Select until a round of `at_least` clients is pending."""
        for _ in range(200):
            self.probe()
            if len(self.select()) >= at_least:
                return self.pending()
        raise CheckFailed(f"{at_least} clients must be picked when so many are eligible, got fewer")

    def continued(self, selector: Selector) -> Simulation:
        """Return a simulation at the same point, with another selector."""
        other = Simulation(selector, 0, self.n_features)
        other.available, other.losses, other.picked = self.available, self.losses, self.picked
        other.rng.bit_generator.state = self.rng.bit_generator.state
        return other
