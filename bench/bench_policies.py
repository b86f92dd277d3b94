"""Select and observe of every policy, K=100 to 100,000: ``python -m bench.bench_policies``.

A round is select and observe on the server, and probe where the policy asks for losses; clients
cost nothing, all are available. Ours and the peer play by turns in one process; a number is the
least processor time of a steady round, so that other programs on the machine do not count.
There are two peers, see `bench.peers_policies`: the published draw alone, a few lines of NumPy
without state, availability or checks; and the same draw "served", with a mask of available
clients, a check of what is received, and a state for each client. The ratio is that of the
served peer to ours: above 1 ours is faster. A size that would take longer than the limit, or
that the policy refuses, says so.
"""

import argparse
import inspect
import time

import numpy as np

import cvrcore
from bench.peers_policies import PEERS, Served
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
        self.asks = bool(self.selector.needs & {"probe", "probed_norms"})
        learns = self.selector.needs & {"models", "updates", "norms", "losses", "utilities"}
        if learns and self.selector.any_size and self.selector.size_rule == "fixed":
            self(n=n_clients)  # a steady state: every client has been seen

    def __call__(self, **how):
        """Play one round; return its seconds of processor time on the server."""
        selector, rng = self.selector, self.rng
        sent = {"sent": rng.normal(size=self.n_features)} if "sent" in selector.needs else {}
        began = time.process_time()
        asked = selector.probe() if self.asks else None
        losses = None if asked is None else np.linalg.norm(self.rows[asked], axis=1)
        picked = selector.select(losses=losses, **sent, **how)
        spent = time.process_time() - began
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
        began = time.process_time()
        selector.observe(picked.clients, **report)
        return spent + time.process_time() - began


class PeerRound:
    """Rounds of the served peer with the same clients."""

    def __init__(self, draw, play, n_select):
        self.peer = Served(draw, play.weights, n_select, play.rows)
        self.available = np.ones(play.weights.size, dtype=bool)
        self.needs = play.selector.needs

    def __call__(self):
        """Play one round; return its seconds of processor time."""
        began = time.process_time()
        clients = self.peer.select(self.available)
        spent = time.process_time() - began
        rows = self.peer.rows[clients]
        norms = np.linalg.norm(rows, axis=1)
        told = {"updates": rows, "models": rows} | dict.fromkeys(
            ("norms", "losses", "utilities"), norms
        )
        report = {name: told[name] for name in self.needs & told.keys()}
        began = time.process_time()
        self.peer.observe(clients, **report)
        return spent + time.process_time() - began

    def bare(self):
        """Return the seconds of the published draw alone."""
        peer = self.peer
        began = time.process_time()
        peer.draw(peer.rng, peer.weights, peer.n_select, peer.rows)
        return time.process_time() - began


def measure(case, size, n_rounds, limit, n_features):
    """Return the least ms of ours, of the served peer and of its draw, or why there are none."""
    label, name, options = case
    try:
        play = Round(name, options, *size, n_features)
    except (ValueError, MemoryError) as error:
        return f"refused: {error}"
    turns = [play]
    draw, most = PEERS.get(label, (None, 0))
    if draw is not None and size[0] <= most:
        other = PeerRound(draw, play, size[1])
        turns += [other, other.bare]
    play()
    play()
    times, began = [], time.perf_counter()
    while len(times) < n_rounds and (not times or time.perf_counter() - began < limit):
        times.append([turn() for turn in turns])
    least = np.min(times, axis=0) * 1e3
    return [*least, *[None] * (3 - len(turns))]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench_policies", description=__doc__)
    parser.add_argument("policies", nargs="*", help="names; default: all")
    parser.add_argument("--most", type=int, default=100_000, help="largest K")
    parser.add_argument("--features", type=int, default=N_FEATURES)
    parser.add_argument(
        "--rounds", type=int, default=200, help="rounds timed of each case, at most"
    )
    parser.add_argument("--limit", type=float, default=2.0, help="seconds of one case, about")
    options = parser.parse_args(arguments)
    head = "| policy | K | P | ours, ms | served peer, ms | its draw alone, ms | ratio |"
    print(f"{head} D={options.features} |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for case in cases():
        if options.policies and case[1] not in options.policies:
            continue
        slow = 0.0
        for size in SIZES:
            if size[0] > options.most:
                break
            note = ""
            if slow > options.limit * 1e3 / 10:  # ten times the clients: often a hundred times
                print(f"| {case[0]} | {size[0]:,} | {size[1]} | | | | | not run: above the limit |")
                break
            found = measure(case, size, options.rounds, options.limit, options.features)
            if isinstance(found, str):
                note, found = found, [None] * 3
            ours, peer, _ = found
            slow = ours or 0.0
            ratio = f"{peer / ours:.2g}" if peer and ours else ""
            row = ["" if v is None else f"{v:.3g}" for v in found]
            cells = [case[0], f"{size[0]:,}", size[1], *row, ratio, note]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if ours is None:
                break


if __name__ == "__main__":
    main()
