"""Bands by column in, the figure of a metric by round out: one panel, or a panel for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import drawing
from .drawing import INK, MUTED, WIDTH, grid, new_figure, plain
from .statistics import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More methods than this are drawn one by one: bands on top of each other hide all.
TOGETHER = 4
#: With more methods than this in one panel, bands are those of the mean, which are narrower.
WIDE = 2


def band_text(bands: Mapping[str, Band]) -> str:
    """Return what the bands of a figure are, in the words of its title."""
    if all(found.n < 2 for found in bands.values()):
        return "one seed, no band"
    return f"band of 2 {'standard errors' if of_means(bands) else 'std'}"


def of_means(bands: Mapping[str, Band]) -> bool:
    """Return whether the bands of a figure are those of the mean."""
    return WIDE < len(bands) <= TOGETHER


def draw_bands(
    bands: Mapping[str, Band],
    colour: Mapping[str, str],
    accuracy: bool,
    *,
    reference: str = "",
    target: float | None = None,
    title: str = "",
    xlabel: str = "round",
) -> Figure:
    """Draw the metric by round: lines in one panel, or a panel for each of many methods.

    Accuracies are in percent; the line of `reference` is in every panel. The title says which
    line is the reference's and which is the `target`.
    """
    several = len(bands) > TOGETHER
    keys = [f"thin grey line: {reference}"] if several and reference in bands else []
    if target is not None:
        keys.append(f"dashed: target {target:g}{' %' if accuracy else ''}")
    title = "\n".join(filter(None, [title, "; ".join(keys)]))
    ylabel = "mean accuracy of clients, %" if accuracy else "test MSE"
    if not several:
        figure = new_figure(WIDTH, 4.3)
        panels = [figure.subplots()]
        draw_lines(panels[0], bands, colour)
        plain(panels[0], xlabel=xlabel, ylabel=ylabel, title=title)
        drawing.legend(figure, panels[0])
    else:
        figure, panels = grid(len(bands), 1.9, sharex=True, sharey=True)
        for axes, (name, found) in zip(panels, bands.items(), strict=True):
            other = bands.get(reference)
            if other is not None and name != reference:
                axes.plot(other.rounds, other.mean, color=MUTED, lw=0.9, alpha=0.8)
            draw_lines(axes, {name: found}, colour)
            plain(axes, title=name)
        drawing.label_edges(panels, xlabel)
        figure.supylabel(ylabel, color=MUTED, fontsize=9)
        figure.suptitle(title, color=INK, fontsize=9.5)
    means = [found.mean for found in bands.values()]
    if accuracy:
        # From the first steep rounds on: differences of a point are lost beside them.
        lowest = min(float(mean[mean.size // 5 :].min()) for mean in means)
        highest = max(float(mean.max()) for mean in means)
        if target is not None:
            lowest, highest = min(lowest, target), max(highest, target)
        panels[0].set_ylim(max(0.0, lowest - 2.0), min(100.0, highest + 2.0))
    elif 0 < 10 * (least := min(map(np.min, means))) < max(map(np.max, means)):
        panels[0].set_yscale("log")
        panels[0].set_ylim(bottom=least / 3)
    for axes in panels:
        if target is not None:
            axes.axhline(target, color=INK, lw=0.7, ls=(0, (4, 3)), alpha=0.7)
    return figure


def draw_lines(axes: Axes, bands: Mapping[str, Band], colour: Mapping[str, str]) -> None:
    """Draw lines and bands; where a line lies on an earlier one it is dashed, so both show."""
    drawn: list[Band] = []
    for name, found in bands.items():
        marker = "o" if found.rounds.size == 1 else None
        apart, hidden = _told_apart(found, drawn)
        line: dict[str, Any] = {"color": colour[name], "lw": 1.6}
        axes.plot(found.rounds, apart, label=name, marker=marker, **line)
        if np.isfinite(hidden).any():
            axes.plot(found.rounds, hidden, ls=(0, (2, 2)), **line)
        drawn.append(found)
        half = found.two_std / np.sqrt(found.n) if of_means(bands) else found.two_std
        if np.any(half > 0):
            low, high = found.mean - half, found.mean + half
            axes.fill_between(found.rounds, low, high, color=colour[name], alpha=0.13, lw=0)
    drawing.by_round(axes)


def _told_apart(found: Band, drawn: Sequence[Band]) -> tuple[np.ndarray, np.ndarray]:
    """Return the line where no earlier line hides it, and where one does; NaN elsewhere."""
    hidden = np.zeros(found.rounds.size, dtype=bool)
    for other in drawn:
        _, mine, theirs = np.intersect1d(found.rounds, other.rounds, return_indices=True)
        hidden[mine[found.mean[mine] == other.mean[theirs]]] = True
    inside = hidden.copy()  # a solid line reaches into the first and last hidden round
    inside[:-1] &= hidden[1:]
    inside[1:] &= hidden[:-1]
    return np.where(inside, np.nan, found.mean), np.where(hidden, found.mean, np.nan)
