"""The page in a few sentences, from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence

from .collect import Cell, Experiment
from .results import baseline_of, difference, unit
from .statistics import spread
from .tables import MINUS

OURS = "fedcvr-bolt"


def overview(experiments: Sequence[Experiment]) -> str:
    """Return one sentence on how much there is."""
    cells = [cell for experiment in experiments for cell in experiment.cells]
    done = sum(bool(cell.runs) for cell in cells)
    if not cells:
        return f"{_count(len(experiments), 'experiment')} without tables of runs."
    folders = {run.folder for e in experiments for run in e.runs if run.finished}
    text = (
        f"{_count(len(folders), 'finished run')} in {_count(len(experiments), 'experiment')}; "
        f"{done} of {_count(len(cells), 'table cell')} filled"
    )
    if done < len(cells):
        text += ", the others say “not run”"
    quick = [experiment.title for experiment in experiments if experiment.quick]
    if quick:
        which = "All" if len(quick) == len(experiments) else f"{len(quick)} of them"
        text += (
            f". {which} labelled quick: shortened runs show that the code works and say nothing "
            "about the paper"
        )
    return text + "."


def findings(experiment: Experiment) -> list[str]:
    """Return a sentence or two per row: who leads, ours against the reference, the paper."""
    sentences = []
    if not experiment.cells:
        sentences.append("No runs are kept: see its figure.")
    for row, cells in experiment.rows.items():
        done = [cell for cell in cells if cell.runs]
        if not done:
            sentences.append(f"{row}: not run.")
            continue
        parts = [_leader(experiment, done), _ours(experiment, cells), _agreement(cells)]
        sentences.append(f"{row}: " + " ".join(part for part in parts if part))
    return sentences


def _leader(experiment: Experiment, cells: Sequence[Cell]) -> str:
    symbol, scale, digits = unit(experiment)
    late = {c.column: spread([h.last_five() for h in c.histories]) for c in cells}
    known = {name: s for name, s in late.items() if s.mean is not None}
    if not known:
        return "no evaluation was made."
    pick = min if experiment.metric == "mse" else max
    best = pick(known, key=lambda name: known[name].mean or 0.0)
    s = known[best]
    noise = "" if s.two_std is None else f" ± {scale * s.two_std:.{digits}f}"
    value = f"{scale * (s.mean or 0.0):.{digits}f}{noise} {symbol}"
    seeds = ("" if s.two_std is None else "± 2 std, ") + _count(s.n, "seed")
    if len(known) == 1:
        return f"{best} ends at {value} (last five; {seeds})."
    return f"{best} has the best last five of {len(known)}, {value} ({seeds})."


def _ours(experiment: Experiment, cells: Sequence[Cell]) -> str:
    _, scale, digits = unit(experiment)
    reference = baseline_of(experiment, cells)
    found = [cell for cell in cells if cell.method == OURS]
    if len(found) != 1 or found[0] is reference:
        return ""
    ours = found[0]
    gap = difference(ours, reference, "last_five")
    if gap.mean is None:
        return ""
    unit_word = "points" if experiment.metric == "accuracy" else "MSE"
    text = f"{ours.column} differs from {reference.column} by {_signed(scale * gap.mean, digits)}"
    text += f" {unit_word}"
    if gap.low is None or gap.high is None:
        return f"{text} over {_count(gap.n, 'pair')} of seeds, too few for an interval."
    low, high = _signed(scale * gap.low, digits), _signed(scale * gap.high, digits)
    verdict = "0 lies outside" if gap.decided else "0 lies inside: no difference can be told"
    return f"{text} (95 % interval {low} to {high}, {gap.n} pairs; {verdict})."


def _agreement(cells: Sequence[Cell]) -> str:
    both = [c for c in cells if c.runs and c.paper and c.paper[1] is not None]
    gaps = []
    for cell in both:
        late = spread([h.last_five() for h in cell.histories]).mean
        if late is not None and cell.paper and cell.paper[1] is not None:
            gaps.append(abs(late - cell.paper[0]) <= cell.paper[1])
    if not gaps:
        return ""
    return (
        f"{sum(gaps)} of {len(gaps)} last fives lie within the paper's own two standard deviations."
    )


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", MINUS)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
