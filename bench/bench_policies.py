"""Select and observe of every policy, K=100 to 100,000: ``python -m bench.bench_policies``.

A round is probe, select and observe on the server; clients cost nothing. A row is the median
of steady rounds; the peer is the published form of `bench.peers_policies`, timed beside it.
A size that would take longer than the limit, or that the policy refuses, says so.
"""

import argparse
import inspect
import statistics
import time

import numpy as np

import cvrcore
from bench.peers_policies import PEERS
from cvrcore.selectors import BUILT_IN, policy_class
from cvrcore.selectors.needs import NEEDS

SIZES = ((100, 10), (1_000, 50), (10_000, 100), (100_000, 100))
N_FEATURES, N_CLASSES = 10, 10
#: Forms that are timed beside the default one.
FORMS = {
    "clustered": [{}, {"form": "similarity"}],
    "optimal": [{}, {"form": "approximate"}],
    "drift": [{}, {"design": "pivotal"}],
    "fedcvr-bolt": [{"warmup": 0}],
}


def cases():
    for name in BUILT_IN:
        for options in FORMS.get(name, [{}]):
            label = ", ".join([name, *(v for v in options.values() if isinstance(v, str))])
            yield label, name, options


class Round:
    """Rounds of one policy with random clients."""

    def __init__(self, name, options, n_clients, n_select, n_features, seed=0):
        self.rng = np.random.default_rng(seed)
        self.weights = np.ceil(self.rng.lognormal(4.0, 1.0, n_clients))
        centres = self.rng.normal(size=(10, n_features))
        group = self.rng.integers(0, 10, n_clients)
        self.rows = centres[group] + 0.3 * self.rng.normal(size=(n_clients, n_features))
        names = inspect.signature(policy_class(name)).parameters
        facts = {
            "n_features": n_features,
            "label_counts": self.rng.integers(1, 50, (n_clients, N_CLASSES)),
        }
        given = {key: value for key, value in facts.items() if key in names}
        self.selector = cvrcore.make_selector(
            name, n_clients, n_select, weights=self.weights, seed=seed, **given, **options
        )
        self.n_features = n_features
        learns = self.selector.needs & {"models", "updates", "norms", "losses", "utilities"}
        if learns and self.selector.any_size and self.selector.size_rule == "fixed":
            self(n=n_clients)  # a steady state: every client has been seen

    def __call__(self, **how):
        """Play one round; return its seconds on the server."""
        selector, rng = self.selector, self.rng
        sent = {"sent": rng.normal(size=self.n_features)} if "sent" in selector.needs else {}
        began = time.perf_counter()
        asked = selector.probe()
        losses = None if asked is None else np.linalg.norm(self.rows[asked], axis=1)
        picked = selector.select(losses=losses, **sent, **how)
        spent = time.perf_counter() - began
        rows = self.rows[picked.clients]
        told = {
            "models": rows,
            "updates": rows,
            "losses": np.linalg.norm(rows, axis=1),
            "norms": np.linalg.norm(rows, axis=1),
            "durations": np.ones(len(rows)),
            "utilities": rng.normal(size=len(rows)),
        }
        report = {key: told[key] for key in selector.needs & told.keys() & NEEDS.keys()}
        began = time.perf_counter()
        selector.observe(picked.clients, **report)
        return spent + time.perf_counter() - began


def measure_ours(case, size, n_rounds, limit, n_features):
    """Return the median of steady rounds in ms, or why there is none."""
    _, name, options = case
    try:
        play = Round(name, options, *size, n_features)
    except (ValueError, MemoryError) as error:
        return f"refused: {error}"
    play()
    play()
    times, began = [], time.perf_counter()
    while len(times) < n_rounds and (not times or time.perf_counter() - began < limit):
        times.append(play())
    return statistics.median(times) * 1e3


def measure_peer(label, size, n_rounds, limit, n_features):
    """Return the median of the published form in ms, or None."""
    peer, most = PEERS.get(label, (None, 0))
    n_clients, n_select = size
    if peer is None or n_clients > most:
        return None
    world = Round("uniform", {}, n_clients, n_select, n_features)
    rng, times, began = np.random.default_rng(1), [], time.perf_counter()
    while len(times) < n_rounds and (not times or time.perf_counter() - began < limit):
        start = time.perf_counter()
        peer(rng, world.weights, n_select, world.rows)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def text(value):
    return value if isinstance(value, str) else f"{value:.3g}"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench_policies", description=__doc__)
    parser.add_argument("policies", nargs="*", help="names; default: all")
    parser.add_argument("--most", type=int, default=100_000, help="largest K")
    parser.add_argument("--features", type=int, default=N_FEATURES)
    parser.add_argument("--rounds", type=int, default=7, help="rounds timed of each case")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of one case, about")
    options = parser.parse_args(arguments)
    print(f"| policy | K | P | ours, ms | published form, ms | ratio | D={options.features} |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for case in cases():
        if options.policies and case[1] not in options.policies:
            continue
        slow = 0.0
        for size in SIZES:
            if size[0] > options.most:
                break
            note = ""
            if slow > options.limit * 1e3 / 50:  # ten times the clients: often a hundred times
                print(f"| {case[0]} | {size[0]:,} | {size[1]} | | | | not run: above the limit |")
                break
            how = (options.rounds, options.limit, options.features)
            ours = measure_ours(case, size, *how)
            peer = measure_peer(case[0], size, *how)
            if isinstance(ours, str):
                note, ours = ours, None
            else:
                slow = ours
            ratio = f"{peer / ours:.2g}" if peer is not None and ours else ""
            row = ["" if v is None else text(v) for v in (ours, peer)]
            cells = [case[0], f"{size[0]:,}", size[1], *row, ratio, note]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if ours is None:
                break


if __name__ == "__main__":
    main()
