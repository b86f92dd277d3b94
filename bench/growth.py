"""Growth of time with the clients K and with the coordinates D: fitted exponents.

All sizes keep the same number of residuals, so that only the size differs. Each line of the
log-log figure is fitted by least squares.
"""

import gc

import numpy as np

from bench.bench_scale import Drive, dense_peer
from bench.rows import Found, Row, part_main

PART = "growth"
WINDOW = 8


def exponent(sizes, seconds):
    """Return the slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def steady(size, n_timed=4, **options):
    """Return seconds of a re-clustering round and of another round, with a full window."""
    drive = Drive("planted", size, window=WINDOW, memory_limit=6e9, **options)
    drive.rounds(2, recluster=1)
    drive.rounds(WINDOW, recluster=1 << 30)
    other = min(drive.round() for _ in range(n_timed))
    drive.rounds(1, recluster=1)
    whole = min(drive.round() for _ in range(n_timed))
    drive.close()
    gc.collect()
    return whole, other


def line(sizes, **options):
    """Return both times of each size."""
    return [steady(size, **options) for size in sizes]


def measure(short=False):
    many = [12_500, 25_000, 50_000] if short else [12_500, 25_000, 50_000, 100_000, 200_000]
    few = [250, 500, 1000] if short else [500, 1000, 2000, 4000]
    widths = [50, 100, 200] if short else [50, 100, 200, 400, 800]
    dense = [125, 250] if short else [125, 250, 500, 1000]
    n_select = 50
    landmark = line([(k, 100, n_select) for k in many], clustering="nystrom", n_landmarks=500)
    exact = line([(k, 100, n_select) for k in few], clustering="exact")
    wide = line([(many[0], d, n_select) for d in widths], clustering="nystrom", n_landmarks=500)
    peer = [min(dense_peer("planted", (k, 100, n_select), n_rounds=2)) for k in dense]
    curves = {
        "nystrom, re-clustering": (many, [a for a, _ in landmark]),
        "nystrom, other rounds": (many, [b for _, b in landmark]),
        "exact": (few, [a for a, _ in exact]),
        "dense peer": (dense, peer),
        "D, re-clustering": (widths, [a for a, _ in wide]),
        "D, other rounds": (widths, [b for _, b in wide]),
    }
    bounds = {
        "nystrom, re-clustering": 1.1,
        "nystrom, other rounds": 1.1,
        "exact": 2.0,
        "D, re-clustering": 1.1,
        "D, other rounds": 1.1,
    }
    rows = []
    for name, (sizes, seconds) in curves.items():
        against = "D" if name.startswith("D,") else "K"
        label = f"exponent in {against}: {name.removeprefix('D, ')}"
        note = f"{against} = {sizes[0]:,} to {sizes[-1]:,}: {seconds[0]:.3g} to {seconds[-1]:.3g} s"
        slope = exponent(sizes, seconds)
        rows.append(Row(PART, label, slope, "", "<=", bounds.get(name), note=note))
    return Found(rows, {"growth": {name: list(pair) for name, pair in curves.items()}})


if __name__ == "__main__":
    part_main(measure, __doc__)
