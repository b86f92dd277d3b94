"""Results and their rows in, the page in a few sentences out, from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from .credit import merging, picking, warmup_note
from .results import CellResults, Results
from .table import MINUS, Row

OURS = "fedcvr-bolt"


def overview(experiments: Sequence[Results]) -> str:
    """Return one sentence on how much there is."""
    cells = [cell for results in experiments for cell in results.cells]
    done = sum(bool(cell.runs) for cell in cells)
    if not cells:
        return f"{_count(len(experiments), 'experiment')} without tables of runs."
    folders = {run.folder for cell in cells for run in cell.runs}
    text = (
        f"{_count(len(folders), 'finished run')} in {_count(len(experiments), 'experiment')}; "
        f"{done} of {_count(len(cells), 'table cell')} filled"
    )
    if done < len(cells):
        text += ", the others say “not run”"
    quick = sum(results.quick for results in experiments)
    if quick:
        which = "All" if quick == len(experiments) else f"{quick} of them"
        text += (
            f". {which} labelled quick: shortened runs show that the code works and say nothing "
            "about the paper"
        )
    return text + "."


def findings(results: Results, rows: Sequence[Row]) -> list[str]:
    """Return a sentence or two per row: the leader, ours against the reference, the paper."""
    if not rows:
        return ["No runs are kept: see its figure."]
    sentences = []
    for name in results.rows:
        done = [row for row in rows if row["row"] == name and row["seeds"]]
        parts = [_leader(results, done), _ours(results, done), _agreement(done)]
        parts += _phases(results.rows[name])
        sentences.append(f"{name}: {' '.join(filter(None, parts)) if done else 'not run.'}")
    return sentences


def _leader(results: Results, rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["last_five"] is not None]
    if not known:
        return "no evaluation was made."
    best = (min if results.metric == "mse" else max)(known, key=lambda row: row["last_five"])
    two_std, digits = best["last_five_2std"], results.form[2]
    noise = "" if two_std is None else f" ± {two_std:.{digits}f}"
    value = f"{best['last_five']:.{digits}f}{noise} {results.form[0]}"
    seeds = ("" if two_std is None else "± 2 std, ") + _count(best["seeds"], "seed")
    if len(known) == 1:
        return f"{best['column']} ends at {value} (last five; {seeds})."
    return f"{best['column']} has the best last five of {len(known)}, {value} ({seeds})."


def _ours(results: Results, rows: Sequence[Row]) -> str:
    found = [row for row in rows if row["method"] == OURS]
    if len(found) != 1 or found[0]["difference"] is None:
        return ""
    row, low, high = found[0], found[0]["low"], found[0]["high"]

    def signed(value: float) -> str:
        return f"{value:+.{results.form[2]}f}".replace("-", MINUS)

    unit = "points" if results.accuracy else "MSE"
    text = f"{row['column']} differs from {row['reference']} by {signed(row['difference'])} {unit}"
    if low is None:
        return f"{text} over {_count(row['pairs'], 'pair')} of seeds, too few for an interval."
    verdict = "0 lies outside" if low * high > 0 else "0 lies inside: no difference can be told"
    ends = f"{signed(low)} to {signed(high)}"
    return f"{text} (95 % interval {ends}, {row['pairs']} pairs; {verdict})."


def _phases(cells: Sequence[CellResults]) -> list[str]:
    """Return what was not selection: rounds of warm-up, and merging that differs too."""
    parts = []
    found = {cell.column: [run.history for run in cell.runs] for cell in cells if cell.runs}
    warm = {column: note for column, some in found.items() if (note := warmup_note(some))}
    parts += [f"{column}: {note}." for column, note in warm.items()]
    if len(found) > 1:
        reference = next(iter(found.values()))[0].config
        both = [
            column
            for column, (first, *_) in found.items()
            if merging(first.config) != merging(reference)
            and picking(first.config) != picking(reference)
        ]
        if both:
            parts.append(
                f"{', '.join(both)}: picked and merged otherwise than {next(iter(found))}, so a "
                "gain is not one of selection alone."
            )
    return parts


def _agreement(rows: Sequence[Row]) -> str:
    within = [
        abs(row["last_five"] - row["paper"]) <= row["paper_2std"]
        for row in rows
        if None not in (row["last_five"], row["paper_2std"])
    ]
    if not within:
        return ""
    return (
        f"{sum(within)} of {len(within)} last fives lie within the paper's own two standard "
        "deviations."
    )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
