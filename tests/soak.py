"""A server's long life: ``python tests/soak.py`` (``make soak``) goes 20,000 rounds at K=200.

Clients come and go, fail and send nonsense; newcomers join in the first thousand rounds; the
state is saved and loaded now and then. Nothing may grow, nothing may stop being a number.
The suite runs a short version of the same: `test_soak.py`.
"""

import argparse
import ctypes
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from first_policies import FIRST_POLICIES

import cvrcore

N_FEATURES, N_CLASSES = 40, 4


def resident():
    """Return the memory held by this process, in bytes, less what the allocator only keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make(policy, n_clients, n_select):
    options = {
        "fedcbs": {"label_counts": np.ones((n_clients, N_CLASSES))},
        "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 30},
    }.get(policy, {})
    guards = {"on_invalid": "skip", "max_norm": "median", "max_loss": "median"}
    shares = {"max_share": 1.5, "min_share": 0.1}
    return cvrcore.make_selector(policy, n_clients, n_select, seed=0, **options, **guards, **shares)


def soak(policy, rounds, n_clients, joining, settled, tell=lambda text: None):
    """Go `rounds` rounds; return how much the memory grew after round `settled`, as a share.

    Medians of the thousand rounds (say) that follow and of the last tenth: a save needs room
    for a moment, and what the allocator keeps of it comes and goes.
    """
    n_select = max(n_clients // 20, 2)
    start = n_clients * 3 // 4
    selector, rng = make(policy, start, n_select), np.random.default_rng(1)
    here = np.ones(n_clients, dtype=bool)
    centre, held, began = np.ones(N_FEATURES), [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        for t in range(rounds):
            k = selector.n_clients
            if k < n_clients and t % max(joining // (n_clients - start + 1), 1) == 0:
                more = {"label_counts": np.ones((1, N_CLASSES))} if policy == "fedcbs" else {}
                selector.resize(k + 1, [1.0], **more)
                k += 1
            here ^= rng.random(n_clients) < 0.05  # leaving, and coming back
            here[rng.integers(k)] = True
            one_round(selector, here[:k], rng, centre)
            centre += 0.01 * rng.normal(size=N_FEATURES)
            if t % max(rounds // 40, 1) == 0:
                if policy == "fedcvr-bolt":  # elsewhere NaN stands for "never told"
                    assert_numbers(selector.state_dict())
                selector.save(path)
                selector = cvrcore.Selector.load(path)
                tell(f"{policy}: round {t}, {resident() / 1e6:.1f} MB")
            if t % 20 == 0:
                held.append((t, resident()))
        assert selector.round == rounds
    early = np.median([size for t, size in held if settled <= t < 2 * settled])
    growth = np.median([size for t, size in held if t >= 0.9 * rounds]) / early - 1.0
    speed = (time.perf_counter() - began) / rounds * 1e3
    tell(f"{policy}: {rounds} rounds, {speed:.2f} ms each, memory {growth:+.2%} since {settled}")
    return growth


def assert_numbers(value):
    """Fail if there is a number anywhere in a state that is not one."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, np.ndarray | float):
        assert np.isfinite(value).all()
    elif not isinstance(value, str | int | None):
        for item in value:
            assert_numbers(item)


def one_round(selector, here, rng, centre):
    asked = selector.probe(here)
    losses = None if asked is None else rng.gamma(2.0, size=asked.size)
    picked = selector.select(here, losses)
    assert here[picked.clients].all()
    assert np.unique(picked.clients).size == min(selector.n_select, here.sum())
    laws = [picked.probabilities, None if picked.coalitions is None else picked.scores]
    if selector.round % 50 == 0:  # takes time
        laws.append(picked.inclusion)
    for law in laws:
        assert law is None or np.isfinite(law).all()
    back = rng.random(len(picked)) < 0.9
    clients = picked.clients[back]
    models = centre + 0.1 * rng.normal(size=(clients.size, N_FEATURES))
    models[rng.random(models.shape) < 0.001] = rng.choice([np.nan, np.inf, 1e30, 5e-324])
    selector.observe(
        clients,
        models,
        rng.gamma(2.0, size=clients.size),
        rng.gamma(2.0, size=clients.size),
        failed=picked.clients[~back],
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("policies", nargs="*", default=list(FIRST_POLICIES))
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=200)
    arguments = parser.parse_args()
    for policy in arguments.policies:
        growth = soak(policy, arguments.rounds, arguments.clients, 1000, 1000, print)
        assert growth < 0.05, f"{policy}: memory grew by {growth:.1%}"


if __name__ == "__main__":
    main()
