"""Run the benchmarks and print each number with its required value.

``python -m bench`` is short; ``--full`` runs every part, draws figures and updates the tables
of docs/performance.md. With ``--check`` the exit status is 1 if a number misses its "must";
without it, only if a part failed.
"""

import argparse
import sys

from bench import bench_scale, pages
from bench.rows import ROOT, Found, host, load, print_comparison, print_rows, run_part, save

PARTS = ("compiling", "roofline", "clusterings", "published", "quality", "growth")


def run_short():
    found = Found()
    found.add(run_part("core"))
    found.add(bench_scale.run_case("short"))
    found.add(run_part("compiling"))
    found.add(run_part("roofline", "--short"))
    return found


def run_full():
    found = Found()
    found.add(run_part("core"))
    found.add(bench_scale.measure())
    for part in PARTS:
        found.add(run_part(part))
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every part: about half an hour")
    parser.add_argument("--check", action="store_true", help="exit 1 when a must is missed")
    parser.add_argument("--json", help="save the rows here; default: bench/results/")
    parser.add_argument("--compare", metavar="OLD", help="a record to show the changes from")
    parser.add_argument(
        "--load",
        metavar="RECORD",
        action="append",
        help="do not run: take this record; given again, parts that were run apart are joined",
    )
    parser.add_argument(
        "--docs", action="store_true", help="draw figures and fill docs/performance.md"
    )
    options = parser.parse_args(arguments)
    try:
        old = None if options.compare is None else load(options.compare)[0]
        loaded = [load(path) for path in options.load or ()]
    except ValueError as error:
        parser.error(str(error))

    if loaded:
        found, about = Found(), loaded[0][1]
        for part, _ in loaded:
            found.add(part)
    else:
        about = host()
        found = run_full() if options.full else run_short()
    if options.json or not loaded:
        name = "full.json" if options.full else "short.json"
        save(options.json or ROOT / "bench" / "results" / name, found, about)
    print_rows(found.rows)
    if old is not None:
        print_comparison(old.rows, found.rows)
    if options.docs or (options.full and not loaded):
        pages.write(found, about, ROOT / "docs")
    for failure in found.failed:
        print(f"failed: {failure}", file=sys.stderr)
    short = [row.name for row in found.rows if row.verdict == "short"]
    if short:
        print(f"\n{len(short)} short of what they must reach")
    sys.exit(1 if found.failed or (short and options.check) else 0)


if __name__ == "__main__":
    main()
