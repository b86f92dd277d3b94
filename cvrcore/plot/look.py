"""Axes in, axes with the look of all plots out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..integrations.extras import install_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE: Final = (
    "#3b7dc0", "#e08a3c", "#4f9d69", "#a05fa8", "#2a9d9d", "#b8912a",
    "#8c6d56", "#d0689a", "#6673c9", "#7f9a3c", "#5aa9d6", "#b0584a",
)  # fmt: skip
INK, MUTED, RULE, PAPER = "#22262b", "#6b7480", "#c5cbd3", "#f4f6f8"
ACCENT, WARMUP, FAILED = "#3b7dc0", "#9ea7b3", "#cf4a3f"


def colour(label: int) -> str:
    """Return the colour of a coalition."""
    return PALETTE[label % len(PALETTE)]


def new_axes(ax: Any, width: float = 6.4, height: float = 4.0) -> Axes:
    """Return `ax`, or the axes of a new figure."""
    if ax is not None:
        axes: Axes = ax
        return axes
    try:
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is missing: {install_line('report')}") from None
    _, made = plt.subplots(figsize=(width, height), layout="constrained")
    return made


def whole_ticks(axis: Any) -> None:
    """Let the ticks of an axis be whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def finish(axes: Axes, title: str, xlabel: str = "", ylabel: str = "") -> Axes:
    """Name the axes and quiet their frame."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=8.5, length=2)
    axes.set_axisbelow(True)
    axes.set_xlabel(xlabel, color=MUTED, fontsize=9)
    axes.set_ylabel(ylabel, color=MUTED, fontsize=9)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    return axes
