"""Run the benchmarks and print each ratio beside what it must reach.

``python -m bench [--json FILE]``; exits 1 when a ratio falls short of its "must".
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: Name, group, which of ours, must, aim: how many times faster than the best peer.
RATIOS = [
    ("round, K=100 D=300 P=10, planted", "round K=100 planted", "ours", 20, 30),
    ("round, K=100 D=300 P=10, flat", "round K=100 flat", "ours", 20, 30),
    ("round, K=1000 P=50, planted, t=40", "round K=1000 planted", "40 main", 50, 80),
    ("round, K=1000 P=50, planted, t=200", "round K=1000 planted", "200 main", 50, 80),
    ("round, K=1000 P=50, flat, t=40", "round K=1000 flat", "40 main", 30, 50),
    ("round, K=1000 P=50, flat, t=200", "round K=1000 flat", "200 main", 30, 50),
    ("covariance step, K=100", "covariance step K=100", "ours", 10, 14),
    ("score, K=100", "score K=100", "ours", 30, 70),
]


def measure(json_path):
    """Run pytest-benchmark and return its records."""
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent / "bench_core.py")]
    command += ["-q", "-p", "no:xdist", "-o", "timeout=900", f"--benchmark-json={json_path}"]
    command += ["--benchmark-disable-gc", "--benchmark-columns=mean,median,stddev,rounds"]
    if subprocess.run(command, check=False).returncode:
        sys.exit("bench: a benchmark failed")
    return json.loads(Path(json_path).read_text())["benchmarks"]


def rows_of(records):
    """Yield (name, ours in ms, peer in ms, ratio, must, aim)."""
    for name, group, ours, must, aim in RATIOS:
        timed = [r for r in records if r["group"] == group]
        mine = next(r for r in timed if ours in r["name"] and "peer" not in r["name"])
        best = min(r["stats"]["mean"] for r in timed if "peer" in r["name"])
        mean = mine["stats"]["mean"]
        yield name, 1e3 * mean, 1e3 * best, best / mean, must, aim


def main():
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--json", help="keep the raw records in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = measure(arguments.json or Path(folder) / "bench.json")

    short = False
    print(f"\n{'work':38} {'ours ms':>9} {'peer ms':>9} {'ratio':>7} {'must':>6} {'aim':>6}")
    for name, ours, peer, ratio, must, aim in rows_of(records):
        verdict = "short" if ratio < must else ("aim met" if ratio >= aim else "ok")
        short |= ratio < must
        print(f"{name:38} {ours:9.3f} {peer:9.2f} {ratio:6.0f}x {must:5}x {aim:5}x  {verdict}")

    inside = {r["name"]: r["extra_info"]["inside"] for r in records if "inside" in r["extra_info"]}
    heavier = inside["cvrcore"] / inside["numpy"]
    short |= heavier >= 2 or inside["first select"] >= 1
    print(f"\nimport cvrcore: {heavier:.2f} x import numpy (must stay under 2)")
    print(f"first select of a fresh process: {inside['first select']:.2f} s (must 1, aim 0.5)")
    sys.exit(1 if short else 0)


if __name__ == "__main__":
    main()
