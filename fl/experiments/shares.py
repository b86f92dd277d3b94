"""Runs of a row in; how much of the gap to full participation is closed, at what cost, out.

The gap of a row is that between FedAvg and FedAvg with full participation, P = K, at the best of
its server steps. FedAvg is the row's baseline, in tables of best steps at its own best one. All
three sides are read after the same number of rounds, with averaged models or without as FedAvg,
and paired by seed. The
interval of the share is Fieller's, which treats numerator and denominator as what they are: two
means over the same seeds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from ..config import RunConfig
from ..history import History
from .manifest import MANIFEST, protocol
from .results import CellResults, read_results
from .statistics import CONFIDENCE, FEWEST_PAIRS, Histories, interval, spread

#: The experiment whose runs are the ceiling of tables that have none of their own.
CEILING = "ceiling"


@dataclasses.dataclass(frozen=True)
class Share:
    """Share of a gap that is closed, 1 for all of it, over `n` seeds, and its interval."""

    n: int
    share: float | None = None
    low: float | None = None
    high: float | None = None


def ratio_of_means(numerators: ArrayLike, denominators: ArrayLike) -> Share:
    """Return the ratio of two paired means with Fieller's 95 % interval.

    None is given for fewer than three pairs, and where the interval of the denominator's mean
    includes 0: then the ratio may be anything.

    Examples
    --------
    >>> found = ratio_of_means([1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
    >>> found.share, round(found.low, 3), round(found.high, 3)
    (0.5, -0.121, 1.121)
    """
    from scipy.special import stdtrit

    a = np.asarray(numerators, dtype=np.float64)
    b = np.asarray(denominators, dtype=np.float64)
    below = interval(b)
    if a.size < FEWEST_PAIRS or below.low is None or below.high is None:
        return Share(a.size)
    if below.low <= 0.0 <= below.high:
        return Share(a.size)
    # |mean(a - x b)| <= t * error(a - x b), solved for x: a quadratic that opens upwards,
    # since the interval of b excludes 0.
    t2 = float(stdtrit(a.size - 1, (1 + CONFIDENCE) / 2)) ** 2 / a.size
    (va, vab), (_, vb) = np.cov(a, b, ddof=1)
    lead = float(b.mean() ** 2 - t2 * vb)
    middle = float(a.mean() * b.mean() - t2 * vab)
    last = float(a.mean() ** 2 - t2 * va)
    root = math.sqrt(max(middle**2 - lead * last, 0.0))
    share = float(a.mean() / b.mean())
    return Share(a.size, share, (middle - root) / lead, (middle + root) / lead)


def is_fedavg(config: RunConfig) -> bool:
    """Return whether a run is FedAvg: uniform draws, a mean by samples, any plain server step."""
    plain = config.server.optimiser == "sgd" and not config.server.momentum
    named = (config.selection.policy, config.aggregator, config.algorithm.name)
    return plain and named == ("uniform", "sizes", "fedavg")


def is_full(config: RunConfig) -> bool:
    """Return whether a run is FedAvg with full participation."""
    return is_fedavg(config) and config.selection.n_select == config.data.n_clients


def is_part(config: RunConfig) -> bool:
    """Return whether a run is FedAvg with a part of the clients."""
    return is_fedavg(config) and not is_full(config)


def is_plain(config: RunConfig) -> bool:
    """Return whether a run is FedAvg as it is usually meant: a part of the clients, step 1."""
    return is_part(config) and config.server.lr in (None, 1.0)


def plain_runs(cells: Sequence[CellResults], baseline: str = "") -> Histories:
    """Return the runs of the FedAvg of a row, by seed: of the column `baseline`, or at step 1."""
    ran = [(cell, cell.runs[0].history.config) for cell in cells if cell.runs]
    named = [c.by_seed for c, config in ran if c.column == baseline and is_part(config)]
    return next(iter([*named, *(c.by_seed for c, config in ran if is_plain(config))]), {})


def full_runs(cells: Sequence[CellResults], folder: Path | None) -> Sequence[Histories]:
    """Return the runs with full participation that belong to a row, one entry per server step.

    They are the row's own, or those of the experiment ``ceiling`` beside the folder of this
    one, as far as they share the row's protocol; they may have more rounds.
    """
    own = [c.by_seed for c in cells if c.runs and is_full(c.runs[0].history.config)]
    if own or folder is None or not (folder.parent / CEILING / MANIFEST).is_file():
        return own
    base = plain_runs(cells)
    if not base:
        return []
    wanted = _timeless(next(iter(base.values())).config)
    others = read_results(folder.parent / CEILING).cells
    runs = [cell.by_seed for cell in others if cell.runs]
    firsts = [next(iter(some.values())).config for some in runs]
    return [
        some
        for some, config in zip(runs, firsts, strict=True)
        if is_full(config) and _timeless(config) == wanted
    ]


def _timeless(config: RunConfig) -> dict[str, object]:
    """Return what two runs must share to be compared after the same number of rounds."""
    aside = ("rounds", "preset")
    return {k: v for k, v in protocol(config).items() if k not in aside}


def share_closed(ours: Histories, base: Histories, ceilings: Sequence[Histories]) -> Share:
    """Return (method - FedAvg) / (full - FedAvg) after equal rounds, paired by seed.

    Of the `ceilings` with most seeds in common the one with the best mean counts. There is no
    share where full participation is no better than FedAvg.
    """
    best: tuple[int, float, Share] | None = None
    for full in ceilings:
        seeds = sorted(ours.keys() & base.keys() & full.keys())
        values = [_at_equal_rounds(ours[s], base[s], full[s]) for s in seeds]
        known = [v for v in values if v is not None]
        if not known:
            continue
        mine, low, high = np.array(known).T
        sign = 1.0 if next(iter(full.values())).higher_is_better else -1.0
        level = len(known), sign * float(high.mean())
        if best is None or level > best[:2]:
            gains = sign * float((high - low).mean()) > 0
            share = ratio_of_means(mine - low, high - low) if gains else Share(len(known))
            best = *level, share
    return Share(0) if best is None else best[2]


def _at_equal_rounds(*runs: History) -> tuple[float, ...] | None:
    if len({str(sorted(_timeless(run.config).items(), key=str)) for run in runs}) > 1:
        return None
    rounds = min(map(len, runs))
    plain = not all(run.config.server.average for run in runs)
    values = [_last_five(run.until(rounds), plain) for run in runs]
    return None if None in values else tuple(v for v in values if v is not None)


def _last_five(run: History, plain: bool) -> float | None:
    """Return the mean of the last five evaluations; `plain`: of models that are not averaged."""
    averaged = plain and run.config.server.average
    return run.last_five(f"sent_{run.metric}" if averaged else None)


def at_equal_samples(ours: Histories, base: Histories) -> dict[int, float | None]:
    """Return the last five evaluations by the time FedAvg's total of samples was processed.

    A run that processes fewer samples in all counts with its end; None where the number of
    samples was not recorded.
    """
    found: dict[int, float | None] = {}
    for seed in sorted(ours.keys() & base.keys()):
        mine, theirs = ours[seed].samples(), base[seed].samples()
        if mine is None or theirs is None:
            found[seed] = None
            continue
        rounds = int(np.searchsorted(mine, theirs[-1], side="right"))
        found[seed] = ours[seed].until(rounds).last_five()
    return found


def extra_megabytes(ours: Histories, base: Histories) -> float | None:
    """Return what was sent more than in FedAvg's runs, as the mean over the shared seeds."""

    def sent(run: History) -> float:
        return (run.total("uplink") + run.total("downlink")) / 1e6

    return spread(sent(ours[s]) - sent(base[s]) for s in sorted(ours.keys() & base.keys())).mean


def costs(
    ours: Histories, base: Histories, ceilings: Sequence[Histories], scale: float
) -> Mapping[str, float | int | None]:
    """Return the columns that compare a cell with FedAvg and with the ceiling of its row.

    The two ends of the gap, the runs of `base` themselves and full participation, have no share.
    """
    ends = any(run is base.get(s) or is_full(run.config) for s, run in ours.items())
    share = Share(0) if ends else share_closed(ours, base, ceilings)
    equal = spread(at_equal_samples(ours, base).values()).mean
    return {
        "gap_share": None if share.share is None else 100 * share.share,
        "gap_low": None if share.low is None else 100 * share.low,
        "gap_high": None if share.high is None else 100 * share.high,
        "gap_pairs": share.n,
        "at_equal_samples": None if equal is None else scale * equal,
        "extra_megabytes": extra_megabytes(ours, base) if base else None,
    }
