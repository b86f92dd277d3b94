"""Maps of clients: who holds what, who was picked when, how large coalitions were."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data import load_federation
from ..data.federation import DataError, Federation, Ids
from ..data.picture import INK, client_order, draw_partition
from ..streams import Streams
from .collect import Cell, Experiment, Run
from .drawing import (
    PAPER,
    RULE,
    Picture,
    by_round,
    from_files,
    grid,
    label_edges,
    plain,
    publish,
    svg_settings,
)
from .figures import palette, run_cells
from .results import file_stem


@dataclasses.dataclass(frozen=True)
class Holdings:
    """The federation of a run, drawn again from its seed, or why it cannot be."""

    federation: Federation | None
    reason: str = ""

    @property
    def order(self) -> Ids | None:
        """Clients by dominant label, if the federation is known."""
        return None if self.federation is None else client_order(self.federation)


def holdings(run: Run) -> Holdings:
    """Draw the federation of a run again, from files at hand: a report fetches nothing."""
    config = run.history.config
    data: dict[str, Any] = {
        field.name: getattr(config.data, field.name) for field in dataclasses.fields(config.data)
    }
    data |= {"download": False, "options": dict(config.data.options)}
    seed = Streams(config.seed).integer("partition")
    try:
        federation = load_federation(seed=seed, **data)
    except (DataError, ValueError):  # what to fetch and where is no matter for a page
        return Holdings(None, f"the files of {config.data.dataset} are not at hand")
    # Through JSON, as the record was kept: a tuple comes back as a list.
    if json.dumps(federation.record, sort_keys=True) != json.dumps(
        run.history.facts.get("data"), sort_keys=True
    ):
        return Holdings(None, "the data at hand are not those of the run")
    # The samples themselves are not drawn: let go of what may be a gigabyte.
    return Holdings(dataclasses.replace(federation, x=np.empty((len(federation.y), 0))))


def partition_map(
    experiment: Experiment, row: str, run: Run, held: Holdings, folder: Path
) -> Picture | None:
    """Draw clients by classes, with their sizes."""
    federation = held.federation
    if federation is None:
        return None
    name = file_stem(experiment, "partition", row)
    with svg_settings(name):
        for suffix in ("png", "svg"):
            draw_partition(federation, folder / f"{name}.{suffix}")
    sizes = federation.sizes
    caption = (
        f"Who holds what, {row}, seed {run.seed}. Bars: training samples of each client, from "
        f"{sizes.min()} to {sizes.max():,}, median {np.median(sizes):g}."
    )
    if federation.n_classes:
        counts = federation.label_counts[sizes > 0]
        main = counts.max(axis=1) / counts.sum(axis=1)
        caption += (
            " Below: the share of each class in a client; empty is none. In half of the clients "
            f"one class makes up more than {100 * np.median(main):.0f} % of the samples."
        )
    return from_files(folder, name, f"Partition, {row}", caption, experiment.quick)


def selection_map(
    experiment: Experiment, row: str, seed: int, order: Ids | None, folder: Path
) -> Picture | None:
    """Draw who was picked in which round, one panel per method, all of one seed if they can."""
    cells = [c for c in run_cells(experiment.rows[row]) if _picked(example(c, seed))]
    if not cells:
        return None
    figure, panels = grid(len(cells), 2.3, sharex=True, sharey=True)
    colour, reached = palette(experiment), []
    for axes, cell in zip(panels, cells, strict=True):
        run = example(cell, seed)
        history = run.history
        n_clients = int(history.facts.get("n_clients", history.config.data.n_clients))
        picked = np.zeros((n_clients, len(history)), dtype=bool)
        for record in history:
            picked[record.get("picked", []), record["round"] - 1] = True
        sortable = order is not None and order.size == n_clients and run.seed == seed
        _dots(axes, picked[order] if sortable else picked, colour[cell.column])
        warm = sum(bool(record.get("warmup")) for record in history)
        if warm:
            axes.axvline(warm + 0.5, color=INK, lw=0.8, ls=(0, (4, 3)))
        plain(axes, title=cell.column)
        axes.grid(visible=False)
        reached.append(f"{cell.column} {int(picked.any(axis=1).sum())} of {n_clients}")
    label_edges(panels, "round", "client")
    by = "in the order of their numbers" if order is None else "sorted as in the partition map"
    caption = (
        f"A mark is a client (line, {by}) picked in a round (column), {row}, "
        f"seed {seed}. Dashed: the end of a method's own warm-up. "
        f"Picked at least once: {', '.join(reached)}."
    )
    name = file_stem(experiment, "selection", row)
    return publish(figure, folder, name, f"Who was picked, {row}", caption, experiment.quick)


def coalition_sizes(experiment: Experiment, row: str, seed: int, folder: Path) -> Picture | None:
    """Draw the sizes of the coalitions, largest below, one seed of each method."""
    cells = [c for c in run_cells(experiment.rows[row]) if _sizes(example(c, seed))[1].size]
    if not cells:
        return None
    figure, panels = grid(len(cells), 2.2, sharey=True)
    colour, shares = palette(experiment), []
    for axes, cell in zip(panels, cells, strict=True):
        rounds, sizes = _sizes(example(cell, seed))
        fades = np.linspace(0.95, 0.25, sizes.shape[1])
        floor = np.zeros(len(rounds))
        for column, fade in zip(sizes.T, fades, strict=True):
            axes.fill_between(
                rounds, floor, floor + column, step="mid", lw=0.4, edgecolor=PAPER,
                facecolor=colour[cell.column], alpha=fade,
            )  # fmt: skip
            floor = floor + column
        by_round(axes)
        plain(axes, title=cell.column)
        shares.append(f"{cell.column} {100 * (sizes[:, 0] / sizes.sum(axis=1)).mean():.0f} %")
    label_edges(panels, "round", "clients")
    caption = (
        f"Sizes of the coalitions by round, {row}, seed {seed}: one layer each, "
        f"the largest at the bottom. The largest holds on average {', '.join(shares)} of all "
        "clients."
    )
    name = file_stem(experiment, "coalition-sizes", row)
    return publish(figure, folder, name, f"Coalition sizes, {row}", caption, experiment.quick)


def _picked(run: Run) -> bool:
    return any(record.get("picked") for record in run.history)


def _sizes(run: Run) -> tuple[Ids, Ids]:
    """Return the rounds with coalitions, and their sizes in descending order."""
    found = [(r["round"], sorted(r["coalition_sizes"], reverse=True))
             for r in run.history if r.get("coalition_sizes")]  # fmt: skip
    most = max((len(sizes) for _, sizes in found), default=0)
    padded = [sizes + [0] * (most - len(sizes)) for _, sizes in found]
    rounds = np.array([at for at, _ in found], dtype=np.int64)
    return rounds, np.array(padded, dtype=np.int64).reshape(len(found), most)


def _dots(axes: Any, picked: np.ndarray, colour: str) -> None:
    """Paint true cells, leave others to the page."""
    from matplotlib.colors import to_rgba

    n_clients, n_rounds = picked.shape
    image = np.zeros((n_clients, n_rounds, 4))
    image[picked] = to_rgba(colour)
    axes.imshow(
        image, aspect="auto", interpolation="none",
        extent=(0.5, n_rounds + 0.5, n_clients - 0.5, -0.5),
    )  # fmt: skip
    axes.set_xlim(0.5, n_rounds + 0.5)
    by_round(axes)
    for spine in axes.spines.values():
        spine.set_color(RULE)


def first_run(cells: Sequence[Cell]) -> Run | None:
    """Return the first finished run of a row."""
    return next((cell.runs[0] for cell in cells if cell.runs), None)


def example(cell: Cell, seed: int) -> Run:
    """Return the cell's run of `seed`, or its first."""
    return next((run for run in cell.runs if run.seed == seed), cell.runs[0])
