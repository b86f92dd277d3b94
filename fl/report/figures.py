"""Figures of numbers by round and of results beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.picture import INK, MUTED
from .collect import Cell, Experiment
from .drawing import (
    RULE,
    WIDTH,
    Picture,
    by_round,
    colours,
    grid,
    label_edges,
    legend,
    new_figure,
    plain,
    publish,
)
from .results import baseline_of, file_stem, target_of, unit
from .statistics import Band, band, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More methods than this are drawn one by one: bands on top of each other hide all.
TOGETHER = 4


def run_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that have a finished run."""
    return [cell for cell in cells if cell.runs]


def palette(experiment: Experiment) -> Mapping[str, str]:
    """Return a colour per column: by method where that tells columns apart."""
    columns = list(dict.fromkeys(cell.column for cell in experiment.cells))
    methods = {cell.column: cell.method for cell in experiment.cells}
    if len(set(methods.values())) == len(columns):
        by_method = colours([methods[column] for column in columns])
        return {column: by_method[methods[column]] for column in columns}
    return {column: colours(columns)[column] for column in columns}


def curves(experiment: Experiment, row: str, folder: Path) -> Picture | None:
    """Draw the metric by round, with a band of two standard deviations."""
    cells = run_cells(experiment.rows[row])
    bands = {c.column: band(c.histories, experiment.metric) for c in cells}
    bands = {name: b for name, b in bands.items() if b.rounds.size}
    if not bands:
        return None
    symbol, scale, _ = unit(experiment)
    ylabel = "mean accuracy of clients, %" if symbol == "%" else "test MSE"
    colour, reference = palette(experiment), baseline_of(experiment, experiment.rows[row]).column
    if len(bands) <= TOGETHER:
        figure = new_figure(WIDTH, 4.3)
        axes = figure.subplots()
        for name, b in bands.items():
            _line(axes, b, scale, colour[name], name)
        panels = [axes]
        plain(axes, xlabel="round", ylabel=ylabel)
        legend(figure, axes)
    else:
        figure, panels = grid(len(bands), 1.9, sharex=True, sharey=True)
        for axes, (name, b) in zip(panels, bands.items(), strict=True):
            other = bands.get(reference)
            if other is not None and name != reference:
                axes.plot(other.rounds, scale * other.mean, color=MUTED, lw=0.9, alpha=0.8)
            _line(axes, b, scale, colour[name], name)
            plain(axes, title=name)
        label_edges(panels, "round")
        figure.supylabel(ylabel, color=MUTED, fontsize=9)
    if symbol == "%":
        # From the first steep rounds on: differences of a point are lost beside them.
        lowest = min(float(b.mean[b.mean.size // 10 :].min()) for b in bands.values())
        panels[0].set_ylim(max(0.0, scale * lowest - 5.0), 100.0)
    elif _decades(bands.values()) > 1:
        panels[0].set_yscale("log")
        panels[0].set_ylim(bottom=min(float(b.mean.min()) for b in bands.values()) / 3)
    target, _ = target_of(experiment, experiment.rows[row])
    if target is not None:
        for axes in panels:
            axes.axhline(scale * target, color=INK, lw=0.7, ls=(0, (4, 3)), alpha=0.7)
    seeds = sorted({b.n for b in bands.values()})
    last = {name: scale * b.mean[-5:].mean() for name, b in bands.items()}
    ranked = sorted(last, key=lambda name: last[name], reverse=symbol == "%")
    caption = (
        f"{'Accuracy' if symbol == '%' else 'Test error'} by round on {row}: the line is the "
        f"mean over {_seeds(seeds)}, the band two standard deviations"
        f"{' (none with a single seed)' if seeds[0] == 1 else ''}."
    )
    if any(scale * b.mean.min() < panels[0].get_ylim()[0] for b in bands.values()):
        caption += " The first rounds lie below the frame."
    if target is not None:
        caption += f" Dashed: the target, {scale * target:.4g}{' %' if symbol == '%' else ''}."
    if len(bands) > TOGETHER and reference in bands:
        caption += f" The thin grey line is {reference}."
    gap = abs(last[ranked[0]] - last[ranked[-1]])
    if gap > 0:
        caption += (
            f" Over the last five evaluations {ranked[0]} leads, {ranked[-1]} comes last, "
            f"{gap:.3g} {'points' if symbol == '%' else 'MSE'} apart."
        )
    title = "Accuracy by round" if symbol == "%" else "Test error by round"
    name = file_stem(experiment, "curves", row)
    return publish(figure, folder, name, f"{title}, {row}", caption, experiment.quick)


def against_paper(experiment: Experiment, folder: Path) -> Picture | None:
    """Draw measured means and the paper's side by side, with two standard deviations."""
    rows = {
        name: [c for c in cells if c.runs or c.paper]
        for name, cells in experiment.rows.items()
        if any(c.runs and c.paper for c in cells)
    }
    if not rows:
        return None
    symbol, scale, _ = unit(experiment)
    most = max(map(len, rows.values()))
    figure, panels = grid(len(rows), 0.75 + 0.27 * most, most=2)
    colour, missing = palette(experiment), 0
    for axes, (name, cells) in zip(panels, rows.items(), strict=True):
        for i, cell in enumerate(cells):
            measured = spread([h.last_five() for h in cell.histories])
            if measured.mean is not None:
                bar = scale * (measured.two_std or 0.0)
                axes.errorbar(
                    scale * measured.mean, i - 0.13, xerr=bar, fmt="o", ms=5.5,
                    color=colour[cell.column], elinewidth=1.6,
                )  # fmt: skip
            else:
                missing += 1
            if cell.paper:
                axes.errorbar(
                    scale * cell.paper[0], i + 0.17, xerr=scale * (cell.paper[1] or 0.0),
                    fmt="D", ms=4.5, color=MUTED, mfc="none", elinewidth=1.0,
                )  # fmt: skip
        plain(axes, xlabel=f"{'accuracy, %' if symbol == '%' else 'test MSE'}", title=name)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color=RULE, alpha=0.45, lw=0.6)
        axes.set_yticks(range(len(cells)), [c.column for c in cells])
        axes.set_ylim(len(cells) - 0.4, -0.6)
    caption = (
        "Filled circles: measured here, the last five evaluations. Open diamonds: the paper. Bars "
        "are two standard deviations over seeds, the paper's over its own runs."
    )
    if missing:
        caption += f" {missing} method{'s' * (missing > 1)} without a circle: not run."
    name = file_stem(experiment, "against-paper")
    return publish(figure, folder, name, "Measured and paper", caption, experiment.quick)


def stability(experiment: Experiment, row: str, folder: Path) -> Picture | None:
    """Draw how alike the coalitions of neighbouring rounds are."""
    caption = (
        f"Adjusted Rand index of each round's coalitions with those of the round before, {row}: "
        "1 means that nobody moved, 0 that the two have no more in common than chance."
    )
    return _by_round(
        experiment, row, folder, "ari", "ARI with the previous round", "coalition-stability",
        "How stable coalitions are", caption, "On average",
    )  # fmt: skip


def uniformity(experiment: Experiment, row: str, folder: Path) -> Picture | None:
    """Draw the total variation distance between the Boltzmann law and the uniform one."""
    caption = (
        f"Total variation distance between the law that picks within a coalition and the uniform "
        f"one, mean over coalitions, {row}: 0 means that the scores do not matter, 1 that one "
        "client is certain. Dotted: the coalition farthest from uniform."
    )
    return _by_round(
        experiment, row, folder, "tv_mean", "distance from uniform (TV)", "uniformity",
        "How far Boltzmann is from uniform", caption, "Over all rounds after the warm-up",
    )  # fmt: skip


def _by_round(
    experiment: Experiment,
    row: str,
    folder: Path,
    key: str,
    ylabel: str,
    kind: str,
    title: str,
    caption: str,
    lead: str,
) -> Picture | None:
    cells = run_cells(experiment.rows[row])
    bands = {c.column: band(c.histories, key) for c in cells}
    bands = {name: b for name, b in bands.items() if b.rounds.size}
    if not bands:
        return None
    colour = palette(experiment)
    figure = new_figure(WIDTH, 3.1)
    axes = figure.subplots()
    for name, b in bands.items():
        _line(axes, b, 1.0, colour[name], name)
    most = [band(c.histories, "tv_max") for c in cells] if key == "tv_mean" else []
    for cell, b in zip(cells, most, strict=False):
        axes.plot(b.rounds, b.mean, color=colour[cell.column], lw=1.0, ls=":")
    plain(axes, xlabel="round", ylabel=ylabel)
    drawn = [b.mean + b.two_std for b in bands.values()] + [b.mean for b in most]
    top = max(float(values.max()) for values in drawn if values.size)
    axes.set_ylim(min(0.0, *(float(b.mean.min()) for b in bands.values())), max(1.1 * top, 0.02))
    if key == "ari":
        axes.set_ylim(top=1.02)
    legend(figure, axes)
    means = ", ".join(f"{name} {b.mean.mean():.3f}" for name, b in bands.items())
    name = file_stem(experiment, kind, row)
    caption = f"{caption} {lead}: {means}."
    return publish(figure, folder, name, f"{title}, {row}", caption, experiment.quick)


def _line(axes: Axes, b: Band, scale: float, colour: str, name: str) -> None:
    mean, width = scale * b.mean, scale * b.two_std
    marker = "o" if b.rounds.size == 1 else None
    axes.plot(b.rounds, mean, color=colour, lw=1.6, label=name, marker=marker)
    by_round(axes)
    if np.any(width > 0):
        axes.fill_between(b.rounds, mean - width, mean + width, color=colour, alpha=0.16, lw=0)


def _decades(bands: Iterable[Band]) -> float:
    """Return how many powers of ten the means span; 0 if one is not positive."""
    means = np.concatenate([b.mean for b in bands])
    return float(np.log10(means.max() / means.min())) if means.min() > 0 else 0.0


def _seeds(counts: Sequence[int]) -> str:
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return f"{counts[0]} seed{'s' * (counts[0] > 1)}"
