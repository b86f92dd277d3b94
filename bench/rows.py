"""Results of benchmarks: rows with bounds in, records, tables and comparisons out.

Every part of the suite is a module whose ``measure`` returns a `Found`. A part runs alone
(``python -m bench.roofline``) or in a separate process under ``python -m bench``.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOVED = 0.10  # relative change that gets a mark


@dataclasses.dataclass(frozen=True)
class Row:
    """One number, its required bound `must` and its `aim`.

    `sense` is "<=" if less is better and ">=" if more is better; `note` says what was timed.
    """

    part: str
    name: str
    value: float
    unit: str = "x"
    sense: str = "<="
    must: float | None = None
    aim: float | None = None
    note: str = ""

    @property
    def verdict(self):
        if self.must is None:
            return ""
        if not self._reaches(self.must):
            return "short"
        return "aim met" if self.aim is not None and self._reaches(self.aim) else "ok"

    def _reaches(self, bound):
        return self.value <= bound if self.sense == "<=" else self.value >= bound


@dataclasses.dataclass
class Found:
    """Rows of a part, and the curves that figures are drawn from."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    curves: dict = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)

    def add(self, other):
        self.rows += other.rows
        self.curves |= other.curves
        self.failed += other.failed


def show(number):
    """Return a number as text with three or four digits."""
    if not math.isfinite(number):
        return str(number)
    size = abs(number)
    return f"{number:.0f}" if size >= 100 else f"{number:.3g}"


def print_rows(rows):
    part = None
    for row in rows:
        if row.part != part:
            part = row.part
            print(f"\n{part}\n{'-' * len(part)}")
        must = "" if row.must is None else f"must {row.sense} {show(row.must)}"
        aim = "" if row.aim is None else f"aim {show(row.aim)}"
        value = f"{show(row.value)} {row.unit}"
        print(f"{row.name:58} {value:>12}  {must:14} {aim:8} {row.verdict:8} {row.note}".rstrip())


def host():
    """Return a description of this host."""
    import numpy as np

    import cvrcore

    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cvrcore": cvrcore.__version__,
        "date": datetime.date.today().isoformat(),
    }


def save(path, found, about):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(row) | {"verdict": row.verdict} for row in found.rows]
    record = {"host": about, "rows": rows, "curves": found.curves, "failed": found.failed}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def load(path):
    """Return the results of a record, and its host."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        names = {field.name for field in dataclasses.fields(Row)}
        rows = [Row(**{k: v for k, v in row.items() if k in names}) for row in record["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a record of this bench: {error}") from error
    return Found(rows, record.get("curves", {}), record.get("failed", [])), record.get("host", {})


def compare(old, new):
    """Yield (new row, old value or None, change, mark) for every row, rows not run last."""
    before = {(row.part, row.name): row for row in old}
    for row in new:
        was = before.pop((row.part, row.name), None)
        if was is None:
            yield row, None, math.nan, "new"
            continue
        change = row.value / was.value if was.value else math.nan
        mark = ""
        if abs(change - 1) > MOVED:
            mark = "better" if (change < 1) == (row.sense == "<=") else "WORSE"
        yield row, was.value, change, mark
    for was in before.values():
        yield was, was.value, math.nan, "not run"


def print_comparison(old, new):
    print(f"\n{'what moved (marks: over 10 %)':58} {'then':>9} {'now':>9} {'change':>8}")
    for row, then, change, mark in compare(old, new):
        now = "" if mark == "not run" else show(row.value)
        moved = "" if math.isnan(change) else f"{100 * (change - 1):+.0f} %"
        was = "" if then is None else show(then)
        print(f"{row.name[:58]:58} {was:>9} {now:>9} {moved:>8}  {mark}".rstrip())


def run_part(module, *arguments, timeout=3000):
    """Run a part in a separate process, so that its peak memory is separate."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.json"
        command = [sys.executable, "-m", f"bench.{module}", *arguments, "--json", str(path)]
        name = " ".join([module, *arguments])
        print(f"bench: {name}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                command, check=False, timeout=timeout, stdout=subprocess.DEVNULL, cwd=ROOT
            )
        except subprocess.TimeoutExpired:
            return Found(failed=[f"{name}: took over {timeout} s"])
        if done.returncode or not path.exists():
            return Found(failed=[f"{name}: exit code {done.returncode}"])
        return load(path)[0]


def part_main(measure, description, cases=None):
    """Run ``python -m bench.<part>``; `cases` are names for its option ``--case``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", help="save rows and curves in this file")
    parser.add_argument("--short", action="store_true", help="small sizes, under a minute")
    if cases:
        parser.add_argument("--case", choices=sorted(cases), help="one case alone")
    arguments = parser.parse_args()
    found = measure(arguments.case) if cases else measure(arguments.short)
    print_rows(found.rows)
    for failure in found.failed:
        print(f"failed: {failure}", file=sys.stderr)
    if arguments.json:
        save(arguments.json, found, host())
    sys.exit(1 if found.failed else 0)
