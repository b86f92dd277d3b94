"""Gain and cost of each part side by side: the table and the figure of ``beyond``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .results import Row, measure, read_experiment
from .tables import commands_of, difference, number, pair, rounds_to

#: Experiments whose table is this one.
LADDERS = ("beyond", "holdout")
#: What the server pays for a part: what its policy and its aggregator hold, and their time.
COSTS = ("selector_megabytes", "memory_megabytes", "select_ms", "merge_ms")


def ladder_table(experiment: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return the table in Markdown: what a part gains, then what it costs."""
    headings = [
        "", "", "seeds", "last five, %", f"minus {experiment['baseline']} [95 %]", "spread",
        "swing", "worst tenth, %", "rounds to aim", "MB to aim", "select, MB", "merge, MB",
        "select, ms", "merge, ms",
    ]  # fmt: skip
    lines = ["| " + " | ".join(headings) + " |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for row in rows:
        aim = "" if row["target"] is None else f" ({100 * row['target']:.0f} %)"
        cells = [
            row["row"] + aim,
            row["column"],
            str(row["seeds"]),
            pair(row["last_five"], row["last_five_2std"]),
            difference(row),
            *[number(row[name], 2) for name in ("spread", "swing", "worst_decile")],
            rounds_to(row),
            number(row["megabytes_to_target"], 0),
            *[number(row[name], 1) for name in COSTS],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *commands_of(rows)])


def variance_table(rows: Sequence[Row]) -> str:
    """Return the table of `fl.reproduce.variance` in Markdown."""
    headings = ["policy", "aggregator", "unbiased", "bias", "in standard errors"]
    headings += ["variance / FedAvg's", "squared error / FedAvg's"]
    lines = ["| " + " | ".join(headings) + " |", "|---|---|---|" + "---:|" * 4]
    for row in rows:
        cells = [row["policy"], row["aggregator"], "yes" if row["unbiased"] else "no"]
        cells += [f"{row['bias']:.3f}", f"{row['errors']:.1f}"]
        cells += [f"{row[name]:.3f}" for name in ("variance", "mean_square")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def draw_ladder(folder: Path, baseline: str) -> list[str]:
    """Draw accuracy and spread of every part, one picture per row, and the curves."""
    try:
        from .drawing import draw_curves, new_figure, save
        from .experiment import slug
    except ModuleNotFoundError:  # a table needs no matplotlib
        return []
    title = read_experiment(folder)["title"]
    rows = [row for row in measure(folder) if row["seeds"]]
    names = []
    for name in dict.fromkeys(row["row"] for row in rows):
        parts = [row for row in rows if row["row"] == name]
        figure = new_figure(8, 1.2 + 0.32 * len(parts))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
        places = range(len(parts))
        base = next((row for row in parts if row["column"] == baseline), None)
        for place, row in zip(places, parts, strict=True):
            low, high = row["low"], row["high"]
            if low is not None and base is not None:
                level = base["last_five"]
                left.plot([level + low, level + high], [place, place], color="#56B4E9", lw=5)
        left.plot([row["last_five"] for row in parts], places, "o", color="black", ms=5)
        if base is not None:
            left.axvline(base["last_five"], color="#7F7F7F", lw=1, ls="--")
        left.set_yticks(list(places), [row["column"] for row in parts], fontsize=8)
        left.invert_yaxis()
        left.set_xlabel("last five, %; band: 95 % interval of the paired difference", fontsize=8)
        right.barh(list(places), [row["spread"] or 0.0 for row in parts], color="#E69F00")
        right.set_xlabel("spread of the last ten, points", fontsize=8)
        for axes in (left, right):
            axes.grid(alpha=0.3, axis="x")
            axes.tick_params(axis="x", labelsize=8)
        figure.suptitle(f"{title}: {name}", fontsize=9)
        names.append(f"{slug(name)}-ladder.png")
        save(figure, folder / names[-1])
    return [*names, *draw_curves(folder)]
