"""The server's round against the dense peer: records of `bench_core` in, rows out."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from bench.rows import ROOT, Found, Row, part_main

PART = "core"
#: Row name, benchmark group, benchmark of ours, must and aim of the speed-up over the best peer.
RATIOS = [
    ("round, K=100 D=300 P=10, planted", "round K=100 planted", "ours", 15, 20),
    ("round, K=100 D=300 P=10, flat", "round K=100 flat", "ours", 15, 20),
    ("round, K=1000 P=50, planted, t=40", "round K=1000 planted", "40 main", 50, 80),
    ("round, K=1000 P=50, planted, t=200", "round K=1000 planted", "200 main", 50, 80),
    ("round, K=1000 P=50, flat, t=40", "round K=1000 flat", "40 main", 30, 50),
    ("round, K=1000 P=50, flat, t=200", "round K=1000 flat", "200 main", 30, 50),
    ("covariance step, K=100", "covariance step K=100", "ours", 10, 14),
    ("score, K=100", "score K=100", "ours", 30, 70),
]


def records():
    """Run pytest-benchmark and return its records, or None if a benchmark failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "core.json"
        command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / "bench_core.py")]
        command += ["-q", "-p", "no:xdist", "-o", "timeout=900", f"--benchmark-json={path}"]
        command += ["--benchmark-disable-gc", "--benchmark-columns=mean,median,stddev,rounds"]
        if subprocess.run(command, check=False, stdout=sys.stderr, cwd=ROOT).returncode:
            return None
        return json.loads(path.read_text())["benchmarks"]


def rows_of(records):
    """Return a row for each ratio, for the import and for the first select."""
    rows = []
    for name, group, ours, must, aim in RATIOS:
        turns = {}  # benchmark name: mean seconds of a round in each turn
        for record in records:
            if record["group"] == group:
                turns.setdefault(record["name"], []).append(record["stats"]["mean"])
        mine = next(t for who, t in turns.items() if ours in who and "peer" not in who)
        mean, best = fmean(mine), min(fmean(t) for who, t in turns.items() if "peer" in who)
        note = f"ours {1e3 * mean:.3f} ms, peer {1e3 * best:.2f} ms"
        if len(mine) > 1:
            note += f", turns of ours {1e3 * min(mine):.2f} to {1e3 * max(mine):.2f} ms"
        rows.append(Row(PART, name, best / mean, "x", ">=", must, aim, note))
    inside = {r["name"]: r["extra_info"]["inside"] for r in records if "inside" in r["extra_info"]}
    heavier = inside["cvrcore"] / inside["numpy"]
    rows.append(Row(PART, "import cvrcore / import numpy", heavier, "x", "<=", 2))
    whole = inside["CoalitionSelector"] / inside["numpy"]
    rows.append(Row(PART, "import with CoalitionSelector / import numpy", whole, "x"))
    first = inside["first select"]
    rows.append(Row(PART, "first select of a fresh process", first, "s", "<=", 1, 0.5))
    return rows


def measure(short=False):
    found = records()
    return (
        Found(failed=["bench_core: a benchmark failed"]) if found is None else Found(rows_of(found))
    )


if __name__ == "__main__":
    part_main(measure, __doc__)
