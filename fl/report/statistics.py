"""Numbers over seeds: spread, paired differences, curves, and the cost of a target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..history import History

Floats = NDArray[np.float64]

#: Below this many pairs an interval says nothing: t with one degree of freedom is 12.7.
FEWEST_PAIRS = 3
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean over `n` values and two standard deviations (None for a single value)."""

    n: int
    mean: float | None
    two_std: float | None


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean of `n` paired differences and its confidence interval, where one can be given."""

    n: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0


@dataclasses.dataclass(frozen=True)
class Reach:
    """What reaching a target took: means over the `reached` of `n` runs that got there."""

    n: int
    reached: int
    rounds: float | None
    megabytes: float | None


@dataclasses.dataclass(frozen=True)
class Band:
    """A quantity by round: the mean over runs, and two standard deviations."""

    rounds: NDArray[np.int64]
    mean: Floats
    two_std: Floats
    n: int


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and twice the sample standard deviation of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(0, None, None)
    two_std = 2 * float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(len(known), float(np.mean(known)), two_std)


def paired_difference(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Difference:
    """Return the mean difference over common seeds with Student's interval.

    Parameters
    ----------
    ours, theirs : mapping from seed to value
    confidence : float
        Of the two-sided interval.

    Returns
    -------
    Difference
        Without an interval for fewer than three pairs.
    """
    pairs = ((ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys()))
    gaps = np.array([a - b for a, b in pairs if a is not None and b is not None])
    if not gaps.size:
        return Difference(0, None, None, None)
    mean = float(gaps.mean())
    if gaps.size < FEWEST_PAIRS:
        return Difference(gaps.size, mean, None, None)
    from scipy.stats import t

    quantile = float(t.ppf(0.5 + confidence / 2, gaps.size - 1))
    half = quantile * float(gaps.std(ddof=1)) / math.sqrt(gaps.size)
    return Difference(gaps.size, mean, mean - half, mean + half)


def reach(histories: Sequence[History], target: float) -> Reach:
    """Return rounds and megabytes (both ways, probes included) until `target` was met."""
    rounds, megabytes = [], []
    for history in histories:
        first = history.rounds_to(target)
        if first is None:
            continue
        sent = [r.get("uplink", 0) + r.get("downlink", 0) for r in history if r["round"] <= first]
        rounds.append(first)
        megabytes.append(sum(sent) / 1e6)
    return Reach(
        len(histories), len(rounds), spread(rounds).mean, spread(megabytes).mean
    )  # None where nobody arrived


def band(histories: Sequence[History], name: str) -> Band:
    """Return `name` by round over all `histories`, for the rounds that all of them have."""
    columns = [history.column(name) for history in histories]
    columns = [column for column in columns if column[0].size]
    if not columns:
        empty = np.zeros(0)
        return Band(np.zeros(0, dtype=np.int64), empty, empty, 0)
    rounds = columns[0][0]
    for other, _ in columns[1:]:  # a model that diverged has gaps
        rounds = np.intersect1d(rounds, other)
    values = np.stack([column[np.isin(at, rounds)] for at, column in columns])
    spreads = 2 * values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(rounds.size)
    return Band(rounds, values.mean(axis=0), spreads, len(values))


def default_target(baseline: Sequence[History], metric: str) -> float | None:
    """Return a level that the baseline reached: a rule for runs that name no target.

    The highest multiple of 5 % accuracy not above its mean last five; in regression 1.1
    times its mean last five, to two digits.
    """
    level = spread([history.last_five() for history in baseline]).mean
    if level is None:
        return None
    if metric == "mse":
        return float(f"{1.1 * level:.2g}")
    return math.floor(20 * level + 1e-9) / 20 or None
