"""One method against each of the others, paired by seed, in every measure of a ladder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..history import History
from .results import (
    Row,
    deviation,
    histories,
    interval,
    megabytes,
    read_experiment,
    same_protocol,
    scale_of,
)


def measures(target: float | None, scale: float) -> dict[str, Callable[[History], float | None]]:
    """Return what is compared, by name: a number of a run, or None where it has none."""

    def scaled(value: float | None) -> float | None:
        return None if value is None else scale * value

    def rounds(run: History) -> int | None:
        return None if target is None else run.rounds_to(target)

    return {
        "last_five": lambda run: scaled(run.last_five()),
        "spread": lambda run: deviation(run, 10, scale),
        "worst_decile": lambda run: scaled(run.last_five("worst_decile")),
        "rounds_to_target": rounds,
        "megabytes_to_target": lambda run: megabytes(run, rounds(run)),
    }


def versus(folder: Path, method: str) -> list[Row]:
    """Return differences of one method to each other one, with 95 % intervals.

    Parameters
    ----------
    folder : path
        Of an experiment.
    method : str
        The column that the others are taken from.

    Returns
    -------
    rows : list of dict
        One for each data set and other method: ``seeds`` in common, and for each of
        `measures` its mean difference, ``_low`` and ``_high`` (Student's t), over the
        ``_pairs`` of runs that both have it: a run that never got to the target has no rounds
        to it.
    """
    experiment = read_experiment(folder)
    scale = scale_of(experiment)
    rows: list[Row] = []
    for name in dict.fromkeys(cell["row"] for cell in experiment["cells"]):
        cells = {cell["column"]: cell for cell in experiment["cells"] if cell["row"] == name}
        if method not in cells:
            continue
        own = histories(folder, cells[method])
        compared = measures(cells[method].get("target"), scale)
        for other, cell in cells.items():
            runs = histories(folder, cell)
            common = same_protocol(own, runs)
            if other == method or not common:
                continue
            row: Row = {"row": name, "method": method, "against": other, "seeds": len(common)}
            for measure, read in compared.items():
                pairs = [(read(own[s]), read(runs[s])) for s in common]
                row |= _difference(measure, pairs)
            rows.append(row)
    return rows


def _difference(name: str, pairs: Sequence[tuple[float | None, float | None]]) -> Row:
    both = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    gaps = np.array([ours - theirs for ours, theirs in both])
    if not gaps.size:
        return {name: None, f"{name}_low": None, f"{name}_high": None, f"{name}_pairs": 0}
    low, high = interval(gaps)
    found: Row = {name: float(gaps.mean()), f"{name}_low": low, f"{name}_high": high}
    return {**found, f"{name}_pairs": int(gaps.size)}


def versus_table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown."""
    headings = ["", "minus", "seeds", "last five, points", "spread, points"]
    headings += ["worst tenth, points", "rounds to aim", "MB to aim"]
    lines = ["| " + " | ".join(headings) + " |", "|---|---|" + "---:|" * (len(headings) - 2)]
    digits = {"last_five": 2, "spread": 2, "worst_decile": 2}
    digits |= {"rounds_to_target": 0, "megabytes_to_target": 0}
    for row in rows:
        cells = [f"{row['row']}: {row['method']}", row["against"], str(row["seeds"])]
        cells += [_cell(row, name, places) for name, places in digits.items()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _cell(row: Row, name: str, digits: int) -> str:
    if row[name] is None:
        return "-"
    text = f"{row[name]:+.{digits}f}"
    if row[f"{name}_low"] is not None:
        text += f" [{row[f'{name}_low']:+.{digits}f}, {row[f'{name}_high']:+.{digits}f}]"
    pairs = row[f"{name}_pairs"]
    return text if pairs == row["seeds"] else f"{text} ({pairs} pairs)"
