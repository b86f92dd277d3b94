"""Scenarios at the sizes that take other code paths than the small golden files.

``python tests/golden/scenarios.py`` writes, once, what the released code did: the state after
some rounds where it is small enough to keep, and the clients of every round. Recorded files are
never made again: `test_golden.py` replays them.

Client models lie in well separated groups, so that rounding, which differs between BLAS builds,
decides no label.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

import cvrcore

HERE = Path(__file__).parent
AFTER = 50  # selections that follow the saved state
GUARDS = {"on_invalid": "skip", "max_norm": "median", "max_loss": "median"}
GUARDS |= {"max_share": 1.5, "min_share": 0.2}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A selector, the number of rounds before its state is saved, and whether the file is kept."""

    policy: str
    n_clients: int
    n_select: int
    n_features: int
    before: int
    options: dict = dataclasses.field(default_factory=dict)
    keep: bool = True

    def selector(self):
        """Return a new selector; every client's first row is already one of its group."""
        options = dict(self.options)
        if self.policy == "fedcvr-bolt":
            initial = self.rows(np.arange(self.n_clients), np.random.default_rng(1))
            options |= {"n_features": self.n_features, "initial": initial}
        if self.policy == "fedcbs":
            counts = np.arange(1, 1 + 5 * self.n_clients).reshape(self.n_clients, 5) % 7 + 1
            options["label_counts"] = counts
        weights = 1.0 + np.arange(self.n_clients) % 13
        size = (self.n_clients, self.n_select)
        return cvrcore.make_selector(self.policy, *size, weights=weights, seed=5, **options)

    def rows(self, clients, rng):
        """Return models of some clients: group centres plus noise."""
        centres = np.random.default_rng(0).normal(size=(self.n_select, self.n_features))
        noise = 0.2 * rng.normal(size=(len(clients), self.n_features))
        return centres[np.asarray(clients) % self.n_select] + noise

    def play(self, selector, rounds, rng):
        """Run some rounds; return the clients picked in each."""
        seen = []
        for number in range(rounds):
            available = rng.random(self.n_clients) < 0.9 if number % 3 == 2 else None
            asked = selector.probe(available)
            losses = None if asked is None else 1.0 + np.sin(asked + number)
            picked = selector.select(available, losses).clients
            models = self.rows(picked, rng)
            lost = picked[:1] if number % 7 == 6 else picked[:0]
            told = slice(lost.size, None)
            losses = 1.0 + np.cos(picked[told] + number)
            durations = 1.0 + picked[told] % 5
            selector.observe(picked[told], models[told], losses, durations, failed=lost)
            seen.append(picked.tolist())
        return seen


BOLT = "fedcvr-bolt"
SCENARIOS = {
    "exact-200": Scenario(BOLT, 200, 10, 16, 28, {"warmup": 3}),
    "nystrom-window": Scenario(
        BOLT,
        400,
        8,
        16,
        20,
        {
            "warmup": 1,
            "dtype": "float32",
            "clustering": "nystrom",
            "n_landmarks": 40,
            "window": 6,
            "recluster_every": 3,
        },
    ),
    "cosine-no-store": Scenario(BOLT, 200, 10, 24, 30, {"warmup": 2, "preset": "scripts"}),
    "dense-waiting": Scenario(BOLT, 120, 6, 10, 21, {"warmup": 0, "store": "dense"}),
    "dense-in-turns": Scenario(BOLT, 420, 10, 64, 23, {"warmup": 0, "store": "dense"}, keep=False),
    "factored-long": Scenario(BOLT, 170, 10, 8, 70, {"warmup": 0, "store": "factored"}),
    "becomes-dense": Scenario(BOLT, 60, 6, 12, 25, {"warmup": 0}),
    "counted-neyman": Scenario(
        BOLT, 150, 8, 12, 25, {"warmup": 2, "n_coalitions": "eigengap", "places": "neyman"}
    ),
    "neyman-within": Scenario(BOLT, 150, 8, 12, 25, {"warmup": 2, "within": "neyman"}),
    "guarded-fedcvr-bolt": Scenario(BOLT, 100, 10, 12, 30, {"warmup": 3, **GUARDS}),
    **{
        f"guarded-{name}": Scenario(name, 100, 10, 20, 30, GUARDS)
        for name in ("uniform", "power-of-choice", "active", "oort", "fedcbs")
    },
}


def main():
    """Record every scenario that has no record yet."""
    path = HERE / "scenarios.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    for name, scenario in SCENARIOS.items():
        if name in record:
            continue
        print(name, file=sys.stderr)
        selector, rng = scenario.selector(), np.random.default_rng(6)
        before = scenario.play(selector, scenario.before, rng)
        if scenario.keep:
            selector.save(HERE / f"scenario-{name}.npz")
        after = scenario.play(selector, AFTER, rng)
        record[name] = {"before": before, "after": after}
    path.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
