"""A picture of a federation: which client holds how much of what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .federation import Federation, Ids

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, BAR = "#22262b", "#6b7480", "#3b6ea5"
MAX_TICKS = 20


def client_order(federation: Federation) -> Ids:
    """Return clients sorted by dominant label, then by its share; those without data last.

    Clients of a regression are sorted by latent group, if recorded, then by size.
    """
    sizes, counts = federation.sizes, federation.label_counts
    if federation.n_classes == 0:
        groups = federation.record.get("groups", np.zeros(len(sizes)))
        return np.lexsort((-sizes, groups))
    share = counts.max(axis=1) / np.maximum(sizes, 1)
    dominant = np.where(sizes > 0, counts.argmax(axis=1), federation.n_classes)
    return np.lexsort((-share, dominant))


def draw_partition(federation: Federation, path: str | os.PathLike[str]) -> Path:
    """Draw clients by classes, with a bar of each client's size, into an image file.

    Parameters
    ----------
    federation : Federation
    path : path
        Its suffix decides the format: .png, .svg or .pdf.

    Returns
    -------
    path : Path
        The file written.
    """
    # A figure of its own, not pyplot's: no global state, no display.
    from matplotlib.figure import Figure

    path = Path(path)
    order = client_order(federation)
    figure = Figure(figsize=(10, 5.6 if federation.n_classes else 3.2), layout="constrained")
    if federation.n_classes:
        top, body = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2.6])
        _draw_sizes(top, federation, order)
        _draw_shares(figure, body, federation, order)
        body.set_xlabel("clients, by dominant label", color=MUTED)
    else:
        top = figure.subplots()
        _draw_sizes(top, federation, order)
        grouped = "groups" in federation.record
        top.set_xlabel("clients, by latent group" if grouped else "clients", color=MUTED)
    _caption(top, federation)
    figure.savefig(path, dpi=150)
    return path


def _draw_sizes(axes: Axes, federation: Federation, order: Ids) -> None:
    """One bar per client and the median as a line; logarithmic for heavy tails."""
    sizes = federation.sizes[order]
    if federation.n_classes == 0 and "groups" in federation.record:
        groups = np.asarray(federation.record["groups"])[order]
        colours: Any = [("#3b6ea5", "#e08a3c", "#4f9d69", "#a05195")[g % 4] for g in groups]
    else:
        colours = BAR
    axes.bar(np.arange(sizes.size), sizes, width=1.0, color=colours, edgecolor="white", lw=0.3)
    median = float(np.median(sizes))
    axes.axhline(median, color=INK, lw=0.8, ls=(0, (4, 3)))
    if median > 0 and sizes.max() > 30 * median:
        axes.set_yscale("log")
    axes.set_ylabel("train samples", color=MUTED)
    axes.set_xlim(-0.5, sizes.size - 0.5)
    axes.tick_params(colors=MUTED, labelsize=8, length=2)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.tick_params(which="minor", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c5cbd3")


def _draw_shares(figure: Any, axes: Axes, federation: Federation, order: Ids) -> None:
    """Shares of each class within each client; white is none at all."""
    counts = federation.label_counts[order].T.astype(float)
    sizes = counts.sum(axis=0)
    shares = np.divide(counts, sizes, out=np.zeros_like(counts), where=sizes > 0)
    masked = np.ma.masked_equal(shares, 0.0)
    mesh = axes.imshow(
        masked, aspect="auto", interpolation="nearest", cmap="YlGnBu", vmin=0.0, vmax=1.0
    )
    n_classes = federation.n_classes
    step = -(-n_classes // MAX_TICKS)
    axes.set_yticks(np.arange(0, n_classes, step))
    axes.set_ylabel("class", color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.set_xticks([])
    if n_classes <= MAX_TICKS:
        axes.hlines(np.arange(n_classes - 1) + 0.5, -0.5, len(order) - 0.5, color="#eef1f4", lw=0.8)
    for spine in axes.spines.values():
        spine.set_color("#c5cbd3")
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30)
    bar.set_label("share of the client's samples", color=MUTED, fontsize=8)
    bar.ax.tick_params(colors=MUTED, labelsize=8, length=2)
    bar.outline.set_visible(False)


def _caption(axes: Axes, federation: Federation) -> None:
    """Title left: what was drawn; right: how unequal it is."""
    record, sizes = federation.record, federation.sizes
    how = record.get("partition", "")
    if "alpha" in record:
        how = f"{how.capitalize()}({record['alpha']:g})"
    elif how == "natural":
        how = "as generated"
    elif how == "iid":
        how = "IID"
    elif "shards_per_client" in record:
        how = f"{record['shards_per_client']} shards each"
    axes.set_title(
        f"{federation.name}: {len(federation.y):,} samples over {federation.n_clients} clients"
        + (f", {how}" if how else ""),
        loc="left", fontsize=11, color=INK,
    )  # fmt: skip
    total = max(int(sizes.sum()), 1)
    effective = total**2 / max(int((sizes.astype(float) ** 2).sum()), 1)
    note = f"median size {np.median(sizes):g}, effective clients {effective:.0f}"
    empty = int((sizes == 0).sum())
    if empty:
        note += f", {empty} empty"
    axes.set_title(note, loc="right", fontsize=9, color=MUTED)
