"""Write the golden files of the present state format: ``python tests/golden/make.py``.

Run it once when a format is new, with the code that is released, and keep what it wrote: a
golden file is never made again.
"""

import json
import sys
from pathlib import Path

import numpy as np

import cvrcore

POLICIES = ("uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt")

HERE = Path(__file__).parent
N_CLIENTS, N_SELECT, N_FEATURES = 12, 3, 4
OPTIONS = {
    "fedcbs": {"label_counts": np.arange(1, 37).reshape(N_CLIENTS, 3) % 7 + 1},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 2},
}


def play(selector, rounds, rng):
    """Go on for some rounds; return who was picked."""
    seen = []
    for _ in range(rounds):
        asked = selector.probe()
        losses = None if asked is None else 1.0 + np.sin(asked)
        picked = selector.select(losses=losses).clients
        selector.observe(picked, rng.normal(size=(picked.size, N_FEATURES)), 1.0 + np.cos(picked))
        seen.append(picked.tolist())
    return seen


def main(label, **guards):
    after = {}
    for name in POLICIES:
        weights = np.arange(1.0, N_CLIENTS + 1)
        selector = cvrcore.make_selector(
            name, N_CLIENTS, N_SELECT, weights=weights, seed=5, **OPTIONS.get(name, {}), **guards
        )
        rng = np.random.default_rng(6)
        play(selector, 9, rng)
        selector.save(HERE / f"{label}-{name}.npz")
        after[name] = play(selector, 6, rng)
    (HERE / f"{label}.json").write_text(json.dumps(after) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
