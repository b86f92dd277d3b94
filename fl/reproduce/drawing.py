"""Figures of the experiments; no pyplot, so that the caller's figures stay alone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .experiment import slug
from .results import histories, read_experiment

#: Colours that stay apart in print and for colour-blind eyes (Okabe and Ito), then greys.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9",
    "#D55E00", "#8C6D31", "#7F7F7F", "#000000", "#B8B800",
)  # fmt: skip
STROKES = ("-", "--", ":")

SMOOTH = 10  # rounds
MOST_BANDS = 5  # more of them hide one another


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that many inches that can be saved as it is."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write the figure beside its place, then rename it."""
    part = path.with_name(path.name + ".part")
    try:
        figure.savefig(part, dpi=dpi, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def draw_curves(folder: Path) -> list[str]:
    """Draw the metric by round for each row of an experiment that has runs.

    Returns
    -------
    figures : list of str
        Names of the pictures, relative to `folder`.
    """
    experiment = read_experiment(folder)
    names = []
    for row in dict.fromkeys(cell["row"] for cell in experiment["cells"]):
        cells = [c for c in experiment["cells"] if c["row"] == row and c["runs"]]
        if not cells:
            continue
        many = len(cells) > len(COLOURS)  # their names would hide the lines
        figure = new_figure(9.5 if many else 7, 4.2)
        axes = figure.add_subplot()
        band = len(cells) <= MOST_BANDS
        looks = itertools.product(STROKES, COLOURS)  # once round the colours, the next stroke
        lows = [
            _curve(axes, folder, cell, look, band) for cell, look in zip(cells, looks, strict=False)
        ]
        _label(axes, experiment, row + ", band of 2 std" * band, min(lows))
        axes.set_xlabel("round")
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if many else {"ncols": 2}
        axes.legend(frameon=False, fontsize=8, **beside)
        names.append(f"{slug(row)}-curves.png")
        save(figure, folder / names[-1])
    return names


def _curve(
    axes: Axes, folder: Path, cell: dict[str, Any], look: tuple[str, str], band: bool
) -> float:
    """Draw one cell, smoothed; return the least value that the figure should show."""
    columns = [h.column(h.metric) for h in histories(folder, cell).values()]
    rounds = columns[0][0]
    values = np.stack([smooth(v) for at, v in columns if np.array_equal(at, rounds)])
    mean = values.mean(axis=0)
    main = cell["method"] == "fedcvr-bolt"
    label = f"{cell['column']} ({len(values)})"
    stroke, colour = look
    width = 2.2 if main else 1.2
    axes.plot(rounds, mean, label=label, linewidth=width, color=colour, linestyle=stroke)
    if band and len(values) > 1:
        spread = 2 * values.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.10, lw=0)
    return float(mean[len(mean) // 8 :].min())


def smooth(values: np.ndarray, width: int = SMOOTH) -> np.ndarray:
    """Return the mean of each value and up to ``width - 1`` before it.

    Examples
    --------
    >>> smooth(np.array([1.0, 3.0, 5.0]), width=2).tolist()
    [1.0, 2.0, 4.0]
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - width, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _label(axes: Axes, experiment: dict[str, Any], row: str, low: float) -> None:
    accuracy = experiment["metric"] == "accuracy"
    axes.set_ylabel("mean accuracy of clients" if accuracy else "test MSE")
    if accuracy:
        axes.set_ylim(bottom=max(low - 0.03, 0.0))
    else:
        axes.set_yscale("log")
    axes.set_title(
        f"{experiment['title']}: {row}\nrunning mean of {SMOOTH} rounds; in brackets: seeds",
        fontsize=9,
    )
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
