"""Histories of runs in; means, paired differences and curves over seeds out.

One rule for intervals: Student's 95 % interval of the mean of differences paired by seed, over
runs of the same protocol, and none for fewer than three pairs. The protocol is everything but the
method: data, model, training and rounds. Selection, algorithm, aggregator and the server's step
belong to the method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..history import History
from .manifest import protocol

Floats = NDArray[np.float64]
Histories = Mapping[int, History]  # by seed
#: A number of one run, or None where the run has no such number.
Reader = Callable[[History], float | None]

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
    """Mean of `n` paired differences; its interval and two standard errors, from three on."""

    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    two_se: float | None = None


@dataclasses.dataclass(frozen=True)
class Band:
    """A quantity by round: the mean over `n` runs, and two standard deviations."""

    rounds: NDArray[np.int64]
    mean: Floats
    two_std: Floats
    n: int


def seeds_text(n: int) -> str:
    """Return the number of seeds in words.

    Examples
    --------
    >>> seeds_text(1), seeds_text(3)
    ('1 seed', '3 seeds')
    """
    return f"{n} seed" if n == 1 else f"{n} seeds"


def readers(scale: float, target: float | None = None) -> dict[str, Reader]:
    """Return the numbers that tables show of a run, by name.

    Metrics are multiplied by `scale`; `target`, not scaled, is the metric whose first round
    is looked for. ``weighted`` counts clients by their test samples; ``sent``
    is the last five of the model itself where its average is deployed; ``samples`` are millions of
    training samples, all epochs counted. ``swing`` and ``spread`` are standard deviations of the
    last fifty and ten evaluations; ``worst_decile`` is over the last five; ``memory_megabytes``
    is the most that the aggregator kept; ``server_ms`` are selection and merge together.
    """

    def scaled(read: Reader) -> Reader:
        return lambda run: None if (value := read(run)) is None else scale * value

    def deviation(count: int) -> Reader:
        def read(run: History) -> float | None:
            tail = run.column(run.metric)[1][-count:]
            return float(np.std(tail, ddof=1)) if len(tail) > 1 else None

        return scaled(read)

    def rounds(run: History) -> int | None:
        return None if target is None else run.rounds_to(target)

    def megabytes(run: History, until: int | None) -> float | None:
        sent = (r.get("uplink", 0) + r.get("downlink", 0) for r in run.rounds[:until])
        return None if until is None else sum(sent) / 1e6

    def simulated(run: History) -> float | None:  # None without simulated devices
        return None if target is None else run.seconds_to(target)

    def milliseconds(*names: str) -> Reader:  # None in runs that are older than a timer
        def read(run: History) -> float | None:
            parts = [run.seconds(name) for name in names]
            return 1e3 * sum(parts) / len(run) if all(parts) else None

        return read

    def samples(run: History) -> float | None:
        processed = run.samples()
        return None if processed is None else float(processed[-1]) / 1e6

    return {
        "last_five": scaled(lambda run: run.last_five()),
        "weighted": scaled(lambda run: run.last_five(f"{run.metric}_weighted")),
        "sent": scaled(lambda run: run.last_five(f"sent_{run.metric}")),
        "final": scaled(lambda run: run.final()),
        "best": scaled(lambda run: run.best()),
        "swing": deviation(50),
        "spread": deviation(10),
        "worst_decile": scaled(lambda run: run.last_five("worst_decile")),
        "final_worst_decile": scaled(lambda run: run.final("worst_decile")),
        "consensus": scaled(lambda run: run.last_five("consensus_accuracy")),
        "tv_mean": lambda run: run.mean("tv_mean"),
        "rounds_to_target": rounds,
        "megabytes": lambda run: megabytes(run, len(run)),
        "megabytes_to_target": lambda run: megabytes(run, rounds(run)),
        "seconds": lambda run: run.seconds("round"),
        "simulated_seconds": lambda run: run.final("simulated_clock"),
        "simulated_seconds_to_target": simulated,
        "memory_megabytes": lambda run: run.most("memory_bytes") / 1e6,
        "select_ms": milliseconds("select"),
        "merge_ms": milliseconds("merge"),
        "server_ms": milliseconds("select", "merge"),
        "samples": samples,
    }


def spread(values: Iterable[float | None]) -> Spread:
    """Return mean and twice the sample standard deviation of the known values."""
    known = [value for value in values if value is not None]
    if not known:
        return Spread(0, None, None)
    two_std = 2 * float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Spread(len(known), float(np.mean(known)), two_std)


def spreads(
    runs: Iterable[History], scale: float, target: float | None = None
) -> dict[str, Spread]:
    """Return the spread over runs of each of `readers`."""
    runs = list(runs)
    return {name: spread(map(read, runs)) for name, read in readers(scale, target).items()}


def interval(differences: ArrayLike) -> Difference:
    """Return the mean of differences with its 95 % confidence interval by Student's t.

    Examples
    --------
    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    from scipy.special import stdtrit

    gaps = np.asarray(differences, dtype=np.float64)
    mean = float(gaps.mean()) if gaps.size else None
    if mean is None or gaps.size < FEWEST_PAIRS:
        return Difference(gaps.size, mean)
    error = float(gaps.std(ddof=1)) / math.sqrt(gaps.size)
    half = float(stdtrit(gaps.size - 1, (1 + CONFIDENCE) / 2)) * error
    return Difference(gaps.size, mean, mean - half, mean + half, 2 * error)


def paired_difference(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> Difference:
    """Return the mean difference over the seeds whose values both sides know."""
    pairs = ((ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys()))
    return interval([a - b for a, b in pairs if a is not None and b is not None])


def comparable(ours: Histories, theirs: Histories) -> list[int]:
    """Return the seeds that both sides have run under the same protocol."""
    shared = sorted(ours.keys() & theirs.keys())
    return [s for s in shared if protocol(ours[s].config) == protocol(theirs[s].config)]


def difference(ours: Histories, theirs: Histories, read: Reader) -> Difference:
    """Return the paired difference of a number of runs, over comparable seeds."""
    seeds = comparable(ours, theirs)
    return paired_difference({s: read(ours[s]) for s in seeds}, {s: read(theirs[s]) for s in seeds})


def band(runs: Sequence[History], name: str, scale: float = 1.0, width: int = 1) -> Band:
    """Return `name` by round, for the rounds that all `runs` have: a mean over `width` rounds.

    Runs that were not evaluated in every round have fewer evaluations in a mean; see `smooth`.
    """
    columns = [column for run in runs if (column := run.column(name))[0].size]
    if not columns:
        return Band(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), 0)
    rounds = columns[0][0]
    for other, _ in columns[1:]:  # a model that diverged has gaps
        rounds = np.intersect1d(rounds, other)
    if rounds.size > 1:
        width = max(width // int(np.median(np.diff(rounds))), 1)
    values = scale * np.stack([smooth(v[np.isin(at, rounds)], width) for at, v in columns])
    two_std = 2 * values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(rounds.size)
    return Band(rounds, values.mean(axis=0), two_std, len(values))


def smooth(values: Floats, width: int) -> Floats:
    """Return the mean of each value and up to ``width - 1`` before it.

    Examples
    --------
    >>> smooth(np.array([1.0, 3.0, 5.0]), width=2).tolist()
    [1.0, 2.0, 4.0]
    """
    starts = np.maximum(np.arange(1, len(values) + 1) - width, 0)
    return np.array([values[a : i + 1].mean() for i, a in enumerate(starts)])


def default_target(baseline: Iterable[History], metric: str) -> float | None:
    """Return a level that the baseline reached: a rule for runs that name no target.

    The highest multiple of 5 % accuracy not above its mean last five; in regression 1.1
    times its mean last five, to two digits.
    """
    level = spread(run.last_five() for run in baseline).mean
    if level is None:
        return None
    if metric == "mse":
        return float(f"{1.1 * level:.2g}")
    return math.floor(20 * level + 1e-9) / 20 or None
