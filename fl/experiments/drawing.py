"""Axes and figures in; the look of all figures, and their PNG, SVG and inline forms out.

No pyplot: figures, backend and settings of the caller are left alone.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches of a figure as wide as the page.
WIDTH = 9.0
INK, MUTED, RULE, PAPER = "#22262b", "#6b7480", "#c5cbd3", "#ffffff"
#: Colours that hold on light and on dark; the reference is grey, our method red.
GREY, RED = "#7a8594", "#cf4a3f"
PALETTE = (
    "#3b7dc0", "#e08a3c", "#4f9d69", "#a05fa8", "#2a9d9d", "#b8912a",
    "#8c6d56", "#d0689a", "#6673c9", "#7f9a3c", "#5aa9d6", "#b0584a",
)  # fmt: skip
#: Colours of a drawn figure that follow the theme of the page once inside it.
_THEMED = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure of the page: `markup` is inline SVG or an image element, `files` lie beside it."""

    name: str
    title: str
    caption: str
    markup: str
    files: Sequence[str]
    quick: bool = False


def colours(methods: Sequence[str]) -> Mapping[str, str]:
    """Return a colour for each name, the same wherever the same names are drawn."""
    fixed = {"fedavg": GREY, "fedcvr-bolt": RED}
    rest = [name for name in methods if name not in fixed]
    return fixed | {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(rest)}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of that many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def grid(n_panels: int, height: float, most: int = 3, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of `n_panels` axes, at most `most` in a row."""
    n_columns = 2 if n_panels == 4 else min(n_panels, most)
    n_rows = math.ceil(n_panels / n_columns)
    figure = new_figure(WIDTH if n_columns > 1 else 6.4, 0.35 + height * n_rows)
    axes = list(figure.subplots(n_rows, n_columns, squeeze=False, **options).flat)
    for empty in axes[n_panels:]:
        empty.set_visible(False)
    if options.get("sharex"):  # the lowest panel of each column keeps its ticks
        for axis in axes[max(0, n_panels - n_columns) : n_panels]:
            axis.tick_params(labelbottom=True)
    return figure, axes[:n_panels]


def label_edges(panels: Sequence[Axes], xlabel: str, ylabel: str = "") -> None:
    """Name the axes of a grid once: below its lowest panels, left of its first column."""
    for i, axes in enumerate(panels):
        place = axes.get_subplotspec()
        n_columns = place.get_gridspec().ncols if place else 1
        if i % n_columns == 0:
            axes.set_ylabel(ylabel)
        if i >= len(panels) - n_columns:
            axes.set_xlabel(xlabel)


def plain(
    axes: Axes, *, xlabel: str = "", ylabel: str = "", title: str = "", grid: str = "y"
) -> None:
    """Give axes the look of all figures: two spines, a faint `grid`, muted words."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=2)
    if grid:
        axes.grid(axis="x" if grid == "x" else "y", color=RULE, alpha=0.45, lw=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, color=MUTED, fontsize=9)
    axes.set_ylabel(ylabel, color=MUTED, fontsize=9)
    if title:
        axes.set_title(title, loc="left", fontsize=9.5, color=INK)


def by_round(axes: Axes) -> None:
    """Let the rounds on the horizontal axis be whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def legend(figure: Figure, axes: Axes) -> None:
    """Put the legend above the axes, in as many columns as fit."""
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, min(len(names), 5, int(110 / (max(map(len, names), default=1) + 6))))
    figure.legend(
        handles, names, loc="outside upper left", ncols=columns, frameon=False,
        fontsize=9, labelcolor=INK, handlelength=1.6, columnspacing=1.6,
    )  # fmt: skip


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG under another name, then rename the file."""
    part = path.with_name(path.name + ".part")
    try:
        figure.savefig(part, dpi=110, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def publish(
    figure: Figure, folder: Path, name: str, title: str, caption: str, quick: bool
) -> Picture:
    """Write a figure as PNG and SVG into `folder` and return it for the page.

    The text of the SVG stays text, and the same figure gives the same bytes.
    """
    import matplotlib

    if quick:
        figure.text(0.995, 0.995, "quick", ha="right", va="top", fontsize=9, color=RED)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.png", dpi=150)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    figure.clear()
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    files = (f"{name}.png", f"{name}.svg")
    return Picture(name, title, caption, inline_svg(svg, name), files, quick)


def inline_svg(svg: str, name: str) -> str:
    """Return an SVG file as an element of a page that follows the page's colours.

    Identifiers inside it get `name` as a prefix: all figures of a page share one name space.
    """
    start = svg.index("<svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    wide = re.search(r'width="([\d.]+)pt"', head)
    share = min(1.0, float(wide.group(1)) / (72 * WIDTH)) if wide else 1.0
    body = re.sub(r'\bid="', f'id="{name}--', body)
    body = re.sub(r"url\(#", f"url(#{name}--", body)
    body = re.sub(r'xlink:href="#', f'href="#{name}--', body)
    body = body.replace("xlink:href=", "href=")
    for colour, variable in _THEMED.items():
        body = re.sub(rf"{colour}\b", f"var({variable})", body, flags=re.IGNORECASE)
    opening = f'<svg {box.group(0) if box else ""} style="width:{100 * share:.0f}%"'
    return f'{opening} aria-hidden="true" focusable="false">{body.strip()}'
