"""Rows of the experiment ``map`` in; a table of regimes by methods, and stable steps, out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from .statistics import seeds_text
from .table import Column, Row, Table

#: A longer step is stable if it costs no more than this, in points of the last five.
TOLERANCE = 1.0
_NAME = re.compile(r"(?:(.+), )?K=(\d+), (\d+) %, alpha ([\d.]+)(?:, step (\d+))?")


@dataclasses.dataclass(frozen=True, order=True)
class Regime:
    """One row of the map: clients, participation in percent, heterogeneity, server step."""

    n_clients: int
    percent: int
    alpha: float
    step: int = 1
    dataset: str = ""

    @classmethod
    def of(cls, name: str) -> Regime:
        """Return the regime that the name of a row says."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"row must be named as 'K=100, 1 %, alpha 0.1', got {name!r}")
        dataset, clients, percent, alpha, step = found.groups()
        return cls(int(clients), int(percent), float(alpha), int(step or 1), dataset or "")


def regime_table(rows: Sequence[Row]) -> Table:
    """Return the last five of every method by regime, and in brackets its gain on FedAvg.

    Regimes in which no method was run share the last line.
    """
    methods = list(dict.fromkeys(row["column"] for row in rows))
    started = {row["row"] for row in rows if row["seeds"]}
    lines: dict[str, Row] = {}
    for row in rows:
        if row["row"] in started:
            line = lines.setdefault(row["row"], {"row": row["row"]})
            line[row["column"]] = _cell(row)
    left = len({row["row"] for row in rows}) - len(started)
    if left:
        lines[""] = {"row": f"{left} other regimes", **dict.fromkeys(methods, "not run")}
    columns = [Column("last five, % (minus fedavg)", "row")]
    return Table([*columns, *(Column(m, m) for m in methods)], list(lines.values()))


def _cell(row: Row) -> str:
    if not row["seeds"] or row["last_five"] is None:
        return "not run"
    text = f"{row['last_five']:.1f}"
    if row["difference"] is not None:
        text += f" ({row['difference']:+.1f}{sure(row)})"
    return text if row["seeds"] >= 3 else f"{text}, {seeds_text(row['seeds'])}"


def sure(row: Row) -> str:
    """Return a star where the interval of the difference excludes 0."""
    return "*" if row["low"] is not None and row["low"] * row["high"] > 0 else ""


def stable_steps(rows: Sequence[Row]) -> dict[tuple[int, int, str], int]:
    """Return the largest stable server step by clients, participation and method.

    A step is stable if its last five are at most `TOLERANCE` points below those of step 1, and
    all shorter steps are stable too. Regimes without longer steps are left out.
    """
    found = {(Regime.of(r["row"]), r["column"]): r["last_five"] for r in rows if r["seeds"]}
    stable: dict[tuple[int, int, str], int] = {}
    for regime, method in sorted(found):
        first = dataclasses.replace(regime, step=1)
        key = (regime.n_clients, regime.percent, method)
        if regime.step == 1 or (first, method) not in found:
            continue
        before = stable.setdefault(key, 1)
        shorter = [r.step for r, m in found if m == method and r == _like(regime, r)]
        reached = before == max(step for step in shorter if step < regime.step)
        if reached and found[regime, method] >= found[first, method] - TOLERANCE:
            stable[key] = regime.step
    return stable


def _like(regime: Regime, other: Regime) -> Regime:
    return dataclasses.replace(regime, step=other.step)
