"""Cost of a framework's client ids on the server: ``python -m bench.bench_adapters``.

The measured code is single-threaded Python over ids, with the uniform policy. Times are CPU
seconds, so that other processes on the host do not count.
"""

import resource
import time

import cvrcore
from cvrcore.integrations.roster import Answer, Newcomer, Roster

SIZES = ((10_000, 100), (1_000_000, 1_000))


def seconds(function, repeats=3):
    times = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return min(times)


def main():
    print("| clients | picked | meet all, s | one round, s | `IdMap.mask`, s | peak, MB |")
    print("|---:|---:|---:|---:|---:|---:|")
    for n_clients, n_select in SIZES:
        names = [f"client-{k:07d}" for k in range(n_clients)]
        ids = cvrcore.IdMap(names)
        roster = Roster("uniform", n_select=n_select, seed=0)
        newcomers = {name: Newcomer(10.0) for name in names}
        met = seconds(lambda r=roster, n=newcomers: r.welcome(n), repeats=1)

        def play(roster=roster, names=names):
            roster.report({name: Answer() for name in roster.choose(names)})

        one, mask = seconds(play), seconds(lambda i=ids, n=names: i.mask(n))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures = f"{met:.2f} | {one:.2f} | {mask:.3f} | {peak:.0f}"
        print(f"| {n_clients:,} | {n_select:,} | {figures} |")


if __name__ == "__main__":
    main()
