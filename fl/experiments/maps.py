"""Results in, maps of clients out: their samples, their selections, sizes of coalitions."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data import load_federation
from ..data.federation import DataError, Federation, Ids
from ..streams import Streams
from .drawing import (
    INK,
    MUTED,
    PALETTE,
    PAPER,
    RULE,
    Picture,
    by_round,
    grid,
    label_edges,
    new_figure,
    plain,
)
from .figures import Album, palette
from .page_tables import caption
from .results import CellResults, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_TICKS = 20
MAX_DRAWN = 20_000  # clients
MAX_DOTS = 4_000_000  # clients times rounds


def federation_of(run: Run) -> tuple[Federation | None, str]:
    """Generate the federation of a run again, from local files, or say why it cannot be."""
    config = run.history.config
    if config.data.n_clients > MAX_DRAWN:
        return None, f"{config.data.n_clients:,} clients are too many to draw"
    data = {**vars(config.data), "download": False, "options": dict(config.data.options)}
    found, reason = _load(json.dumps(data), Streams(config.seed).integer("partition"))
    # Through JSON, as the record was kept: a tuple comes back as a list.
    record = found and json.dumps(found.record, sort_keys=True)
    if record and record != json.dumps(run.history.facts.get("data"), sort_keys=True):
        return None, "the data at hand are not those of the run"
    return found, reason


@functools.lru_cache(maxsize=8)
def _load(data: str, seed: int) -> tuple[Federation | None, str]:
    """Load a federation, without its samples: they may take a gigabyte and are not drawn."""
    arguments = json.loads(data)
    try:
        found = load_federation(**arguments, seed=seed)
    except (DataError, ValueError):
        return None, f"the files of {arguments['dataset']} are not at hand"
    return dataclasses.replace(found, x=np.empty((len(found.y), 0))), ""


def partition_map(
    album: Album, row: str, seed: int, federation: Federation | None
) -> Picture | None:
    """Draw clients by classes, with their sizes."""
    if federation is None:
        return None
    sizes = federation.sizes
    span = {"least": sizes.min(), "most": sizes.max(), "median": np.median(sizes)}
    text = caption("partition", row=row, seed=seed, **span)
    if federation.n_classes:
        counts = federation.label_counts[sizes > 0]
        main = 100 * np.median(counts.max(axis=1) / counts.sum(axis=1))
        text += caption("shares", main=main)
    return album.publish(draw_partition(federation), "partition", "Partition", text, row)


def selection_map(
    album: Album, row: str, seed: int, federation: Federation | None
) -> Picture | None:
    """Draw the clients picked in each round, one panel per method, of one seed if possible."""
    runs = _examples(album, row, seed)
    runs = {c: run for c, run in runs.items() if any(r.get("picked") for r in run.history)}
    runs = {c: run for c, run in runs.items() if _n_clients(run) * len(run.history) <= MAX_DOTS}
    if not runs:
        return None
    order = None if federation is None else client_order(federation)
    figure, panels = grid(len(runs), 2.3, sharex=True, sharey=True)
    colour, reached = palette(album.results), []
    for axes, (column, run) in zip(panels, runs.items(), strict=True):
        history = run.history
        n_clients = _n_clients(run)
        picked = np.zeros((n_clients, len(history)), dtype=bool)
        for record in history:
            picked[record.get("picked", []), record["round"] - 1] = True
        sortable = order is not None and order.size == n_clients and run.seed == seed
        _dots(axes, picked[order] if sortable else picked, colour[column])
        warm = sum(bool(record.get("warmup")) for record in history)
        if warm:
            axes.axvline(warm + 0.5, color=INK, lw=0.8, ls=(0, (4, 3)))
        plain(axes, title=column, grid="")
        reached.append(f"{column} {int(picked.any(axis=1).sum())} of {n_clients}")
    label_edges(panels, "round", "client")
    by = "in the order of their numbers" if order is None else "sorted as in the partition map"
    text = caption("selection", row=row, seed=seed, by=by, reached=", ".join(reached))
    return album.publish(figure, "selection", "Who was picked", text, row)


def _n_clients(run: Run) -> int:
    return int(run.history.facts.get("n_clients", run.history.config.data.n_clients))


def coalition_sizes(album: Album, row: str, seed: int) -> Picture | None:
    """Draw the sizes of the coalitions, largest below, one seed of each method."""
    found = {column: _sizes(run) for column, run in _examples(album, row, seed).items()}
    found = {column: (rounds, sizes) for column, (rounds, sizes) in found.items() if sizes.size}
    if not found:
        return None
    figure, panels = grid(len(found), 2.2, sharey=True)
    colour, shares = palette(album.results), []
    for axes, (column, (rounds, sizes)) in zip(panels, found.items(), strict=True):
        ends = np.cumsum(sizes, axis=1)
        fades = np.linspace(0.95, 0.25, sizes.shape[1])
        for low, high, fade in zip((ends - sizes).T, ends.T, fades, strict=True):
            look = {"edgecolor": PAPER, "facecolor": colour[column], "alpha": fade, "lw": 0.4}
            axes.fill_between(rounds, low, high, step="mid", **look)
        by_round(axes)
        plain(axes, title=column)
        shares.append(f"{column} {100 * (sizes[:, 0] / sizes.sum(axis=1)).mean():.0f} %")
    label_edges(panels, "round", "clients")
    text = caption("coalition-sizes", row=row, seed=seed, shares=", ".join(shares))
    return album.publish(figure, "coalition-sizes", "Coalition sizes", text, row)


def _examples(album: Album, row: str, seed: int) -> dict[str, Run]:
    """Return each column's run of `seed`, or its first."""

    def example(cell: CellResults) -> Run:
        return next((run for run in cell.runs if run.seed == seed), cell.runs[0])

    return {cell.column: example(cell) for cell in album.results.rows[row] if cell.runs}


def _sizes(run: Run) -> tuple[Ids, Ids]:
    """Return the rounds with coalitions, and their sizes in descending order."""
    found = {r["round"]: sorted(r["coalition_sizes"], reverse=True)
             for r in run.history if r.get("coalition_sizes")}  # fmt: skip
    most = max(map(len, found.values()), default=0)
    padded = [sizes + [0] * (most - len(sizes)) for sizes in found.values()]
    sizes = np.array(padded, dtype=np.int64).reshape(len(found), most)
    return np.array(list(found), dtype=np.int64), sizes


def _dots(axes: Axes, picked: np.ndarray, colour: str) -> None:
    """Paint the true cells and leave the others transparent."""
    from matplotlib.colors import to_rgba

    n_clients, n_rounds = picked.shape
    image = np.zeros((n_clients, n_rounds, 4))
    image[picked] = to_rgba(colour)
    extent = (0.5, n_rounds + 0.5, n_clients - 0.5, -0.5)
    axes.imshow(image, aspect="auto", interpolation="none", extent=extent)
    by_round(axes)
    for spine in axes.spines.values():
        spine.set_color(RULE)


def client_order(federation: Federation) -> Ids:
    """Return clients sorted by dominant label, then by its share; clients without data last.

    Clients of a regression are sorted by latent group, if recorded, then by size.
    """
    sizes, counts = federation.sizes, federation.label_counts
    if federation.n_classes == 0:
        groups = federation.record.get("groups", np.zeros(len(sizes)))
        return np.lexsort((-sizes, groups))
    share = counts.max(axis=1) / np.maximum(sizes, 1)
    dominant = np.where(sizes > 0, counts.argmax(axis=1), federation.n_classes)
    return np.lexsort((-share, dominant))


def draw_partition(federation: Federation) -> Figure:
    """Draw clients by classes, with a bar of each client's size."""
    order = client_order(federation)
    figure = new_figure(10, 5.6 if federation.n_classes else 3.2)
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
    sizes = federation.sizes.astype(float)
    effective = sizes.sum() ** 2 / max((sizes**2).sum(), 1.0)
    title = (
        f"{federation.name}: {len(federation.y):,} samples over {federation.n_clients} clients, "
        f"{effective:.0f} of them effective, {int((sizes == 0).sum())} empty"
    )
    top.set_title(title, loc="left", fontsize=9.5, color=INK)
    return figure


def _draw_sizes(axes: Axes, federation: Federation, order: Ids) -> None:
    """Draw one bar per client and the median as a line; logarithmic for heavy tails."""
    sizes = federation.sizes[order]
    groups = np.asarray(federation.record.get("groups", np.zeros(len(sizes), np.int64)))[order]
    colours = [PALETTE[group % 4] for group in groups]
    axes.bar(np.arange(sizes.size), sizes, width=1.0, color=colours, edgecolor="white", lw=0.3)
    median = float(np.median(sizes))
    axes.axhline(median, color=INK, lw=0.8, ls=(0, (4, 3)))
    if median > 0 and sizes.max() > 30 * median:
        axes.set_yscale("log")
    plain(axes, ylabel="train samples", grid="")
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.5, sizes.size - 0.5)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.tick_params(which="minor", length=0)


def _draw_shares(figure: Figure, axes: Axes, federation: Federation, order: Ids) -> None:
    """Draw the share of each class within each client; white is a share of 0."""
    counts = federation.label_counts[order].T.astype(float)
    shares = np.ma.masked_equal(counts / np.maximum(counts.sum(axis=0), 1), 0.0)
    mesh = axes.imshow(
        shares, aspect="auto", interpolation="nearest", cmap="YlGnBu", vmin=0.0, vmax=1.0
    )
    n_classes = federation.n_classes
    axes.set_yticks(np.arange(0, n_classes, -(-n_classes // MAX_TICKS)))
    axes.set_ylabel("class", color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    axes.set_xticks([])
    if n_classes <= MAX_TICKS:
        axes.hlines(np.arange(n_classes - 1) + 0.5, -0.5, len(order) - 0.5, color="#eef1f4", lw=0.8)
    for spine in axes.spines.values():
        spine.set_color(RULE)
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30)
    bar.set_label("share of the client's samples", color=MUTED, fontsize=8)
    bar.ax.tick_params(colors=MUTED, labelsize=8, length=2)
    outline: Any = bar.outline
    outline.set_visible(False)
