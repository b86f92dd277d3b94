"""Results in, figures out: those of the page, and those in the folder of an experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import drawing
from .bands import TOGETHER, band_text, draw_bands, draw_lines, of_means
from .definition import Request, slug
from .drawing import MUTED, PALETTE, RED, WIDTH, Picture, grid, new_figure, plain, save
from .measures import measure
from .page_tables import caption, file_stem
from .results import CellResults, Results, read_results
from .statistics import Band, band, seeds_text
from .table import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rounds of the running mean in figures of an experiment's folder.
SMOOTH = 10


@dataclasses.dataclass(frozen=True)
class Album:
    """The figures of one experiment: its results and rows, and the folder of the files."""

    results: Results
    rows: Sequence[Row]
    folder: Path

    def publish(
        self, figure: Figure, kind: str, title: str, text: str, row: str | None = None
    ) -> Picture:
        """Write a figure of the experiment, or of one of its rows, with its caption."""
        name = file_stem(self.results, kind, row)
        title = title if row is None else f"{title}, {row}"
        return drawing.publish(figure, self.folder, name, title, text, self.results.quick)


def palette(results: Results) -> Mapping[str, str]:
    """Return a colour per column: by method where methods tell columns apart."""
    columns = list(dict.fromkeys(cell.column for cell in results.cells))
    methods = {cell.column: cell.method for cell in results.cells}
    if len(set(methods.values())) < len(columns):
        return drawing.colours(columns)
    by_method = drawing.colours([methods[column] for column in columns])
    return {column: by_method[methods[column]] for column in columns}


def bands_of(
    cells: Sequence[CellResults], name: str, scale: float = 1.0, width: int = 1
) -> dict[str, Band]:
    """Return a quantity by round for each column that has it."""
    bands = {c.column: band(list(c.by_seed.values()), name, scale, width) for c in cells}
    return {column: found for column, found in bands.items() if found.rounds.size}


def curves(album: Album, row: str) -> Picture | None:
    """Draw the metric by round, with bands."""
    results, rows = album.results, [r for r in album.rows if r["row"] == row]
    bands = bands_of(results.rows[row], results.metric, results.form[1])
    if not bands:
        return None
    reference, level = rows[0]["reference"], next((r["level"] for r in rows if "level" in r), None)
    what = "Accuracy" if results.accuracy else "Test error"
    figure = draw_bands(
        bands, palette(results), results.accuracy, reference=reference, target=level
    )
    counts = sorted({found.n for found in bands.values()})
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    seeds += " seeds" if counts[-1] > 1 else " seed"
    width = "standard errors of the mean" if of_means(bands) else "standard deviations"
    text = caption("curves", what=what, row=row, seeds=seeds, width=width)
    if level is not None:
        text += f" Dashed: the target, {level:.4g}{' %' if results.accuracy else ''}."
    if len(bands) > TOGETHER and reference in bands:
        text += f" The thin grey line is {reference}."
    return album.publish(figure, "curves", f"{what} by round", text, row)


def against_paper(album: Album) -> Picture | None:
    """Draw measured means and the paper's side by side, with two standard deviations."""
    rows: dict[str, list[Row]] = {}
    for row in album.rows:
        if row["seeds"] or row["paper"] is not None:
            rows.setdefault(row["row"], []).append(row)
    rows = {n: some for n, some in rows.items() if any(r["seeds"] and r["paper"] for r in some)}
    if not rows:
        return None
    figure, panels = grid(len(rows), 0.75 + 0.27 * max(map(len, rows.values())), most=2)
    colour, label = palette(album.results), f"last five, {album.results.form[0]}"
    for axes, (name, some) in zip(panels, rows.items(), strict=True):
        for i, row in enumerate(some):
            ours: dict[str, Any] = {"fmt": "o", "ms": 5.5, "color": colour[row["column"]]}
            paper: dict[str, Any] = {"fmt": "D", "ms": 4.5, "color": MUTED, "mfc": "none"}
            for key, shift, look in (("last_five", -0.13, ours), ("paper", 0.17, paper)):
                if row[key] is not None:
                    bar = row[f"{key}_2std"] or 0.0
                    axes.errorbar(row[key], i + shift, xerr=bar, elinewidth=1.3, **look)
        plain(axes, xlabel=label, title=name, grid="x")
        axes.set_yticks(range(len(some)), [row["column"] for row in some])
        axes.set_ylim(len(some) - 0.4, -0.6)
    missing = sum(row["last_five"] is None for some in rows.values() for row in some)
    text = caption("against-paper")
    text += f" {missing} method{'s' * (missing > 1)} without a circle: not run." if missing else ""
    return album.publish(figure, "against-paper", "Measured and paper", text)


def stability(album: Album, row: str) -> Picture | None:
    """Draw the agreement between the coalitions of neighbouring rounds."""
    name, title = "coalition-stability", "How stable coalitions are"
    return _by_round(album, row, "ari", "ARI with the previous round", name, title)


def uniformity(album: Album, row: str) -> Picture | None:
    """Draw the total variation distance between the Boltzmann law and the uniform one."""
    name, title = "uniformity", "How far Boltzmann is from uniform"
    return _by_round(album, row, "tv_mean", "distance from uniform (TV)", name, title)


def _by_round(
    album: Album, row: str, key: str, ylabel: str, kind: str, title: str
) -> Picture | None:
    """Draw a quantity that only some methods have."""
    cells, colour = album.results.rows[row], palette(album.results)
    bands = bands_of(cells, key)
    if not bands:
        return None
    figure = new_figure(WIDTH, 3.1)
    axes = figure.subplots()
    draw_lines(axes, bands, colour)
    most = bands_of(cells, "tv_max") if key == "tv_mean" else {}
    for name, found in most.items():
        axes.plot(found.rounds, found.mean, color=colour[name], lw=1.0, ls=":")
    plain(axes, xlabel="round", ylabel=ylabel)
    drawn = [b.mean + b.two_std for b in bands.values()] + [b.mean for b in most.values()]
    top = 1.02 if key == "ari" else max(1.1 * max(map(np.max, drawn)), 0.02)
    axes.set_ylim(min(0.0, *(float(b.mean.min()) for b in bands.values())), top)
    drawing.legend(figure, axes)
    means = ", ".join(f"{name} {b.mean.mean():.3f}" for name, b in bands.items())
    return album.publish(figure, kind, title, caption(kind, row=row, means=means), row)


# -- in the folder of an experiment: PNG files, named by row ----------------------


def draw_curves(folder: Path, request: Request) -> list[str]:
    """Draw the metric by round for each row that has runs; return names of the files."""
    results = read_results(folder)
    names = []
    for row, cells in results.rows.items():
        bands = bands_of(cells, results.metric, results.form[1], SMOOTH)
        if not bands:
            continue
        title = f"{results.heading}: {row}; running mean of {SMOOTH} rounds, {band_text(bands)}"
        figure = draw_bands(
            bands, palette(results), results.accuracy, reference=results.baseline, title=title
        )
        names.append(f"{slug(row)}-curves.png")
        save(figure, folder / names[-1])
    return names


def draw_ladder(folder: Path, request: Request) -> list[str]:
    """Draw accuracy and spread of every part, one picture per row, and the curves.

    A dot is the baseline's mean plus the paired difference of the row, so that dot and band
    belong together where a row has fewer seeds than the baseline; a row that cannot be paired
    has its dot at its own mean.
    """
    results = read_results(folder)
    rows = [row for row in measure(results) if row["seeds"]]
    names = []
    for name in dict.fromkeys(row["row"] for row in rows):
        parts = [row for row in rows if row["row"] == name]
        figure = new_figure(8, 1.2 + 0.32 * len(parts))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[2, 1])
        places = list(range(len(parts)))
        level = next((r["last_five"] for r in parts if r["column"] == results.baseline), None)
        if level is not None:
            left.axvline(level, color=MUTED, lw=1, ls="--")
        label, dots, n_bands = "last five, %", [], 0
        for place, row in zip(places, parts, strict=True):
            paired = level is not None and row["difference"] is not None
            dots.append(level + row["difference"] if paired else row["last_five"])
            if paired and row["low"] is not None:
                ends = [level + row["low"], level + row["high"]]
                left.plot(ends, [place, place], color=PALETTE[0], alpha=0.5, lw=5)
                n_bands += 1
        left.plot(dots, places, "o", color="black", ms=5)
        if level is not None:
            label += f": mean of {results.baseline} (dashed) + paired difference"
        if n_bands:
            label += ";\nband: 95 % interval of the difference"
        right.barh(places, [row["spread"] or 0.0 for row in parts], color=PALETTE[1])
        plain(left, xlabel=label, grid="x")
        plain(right, xlabel="spread of the last ten, points", grid="x")
        left.set_yticks(places, [row["column"] for row in parts])
        left.invert_yaxis()
        figure.suptitle(f"{results.heading}: {name}", fontsize=9)
        names.append(f"{slug(name)}-ladder.png")
        save(figure, folder / names[-1])
    return [*names, *draw_curves(folder, request)]


def draw_rates(folder: Path, request: Request) -> list[str]:
    """Draw accuracy against the participation rate, a panel for each data set, and the curves."""
    results = read_results(folder)
    rows = [row for row in measure(results) if row["seeds"]]
    datasets = list(dict.fromkeys(row["row"].split()[0] for row in rows))
    if not datasets:
        return draw_curves(folder, request)
    figure, panels = grid(len(datasets), 3.0, sharex=True)
    for axes, dataset in zip(panels, datasets, strict=True):
        of_panel = [row for row in rows if row["row"].split()[0] == dataset]
        names = list(dict.fromkeys(row["row"] for row in of_panel))
        for name, colour in zip(names, (RED, *PALETTE), strict=False):
            points = [row for row in of_panel if row["row"] == name]
            rates = [int(row["column"].split()[0]) for row in points]
            means = [row["last_five"] for row in points]
            bars = [row["last_five_2std"] or 0.0 for row in points]
            look: dict[str, Any] = {"color": colour, "marker": "o", "capsize": 3}
            axes.errorbar(rates, means, yerr=bars, label=name, **look)
        counts = sorted({row["seeds"] for row in of_panel})
        seeds = f"{counts[0]} to " * (len(counts) > 1) + seeds_text(counts[-1])
        plain(axes, title=f"{dataset}, {seeds}")
        axes.set_xticks(sorted({int(cell.column.split()[0]) for cell in results.cells}))
        if len(names) > 1:
            axes.legend(frameon=False, fontsize=8)
    drawing.label_edges(panels, "participation rate P/K, %", "accuracy, last five, %")
    figure.suptitle(f"{results.heading}: mean and 2 std", fontsize=9.5)
    save(figure, folder / "rates.png")
    return ["rates.png", *draw_curves(folder, request)]
