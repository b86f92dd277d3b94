"""The paper's first figure from a live state: clients, coalitions, scores, picked clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import cvrcore
from cvrcore.state import load_state

from ...store import StoreError
from ..definition import Experiment, Request, grid
from ..drawing import PALETTE, new_figure, plain, save
from ..results import read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHOD = "fedcvr-bolt"


def make(request: Request) -> Experiment:
    """Return one run of FedCVR-Bolt, the classification table's; its last state is drawn."""
    cells = grid(request, "overview", {METHOD: METHOD}, shared=(METHOD,))
    title = "Clients by similarity, coalition and score"
    return Experiment("overview", title, cells, 1, draw=draw)


def draw(folder: Path, request: Request) -> list[str]:
    """Draw the selection that would follow the last round of each run's first seed."""
    results = read_results(folder)
    names = []
    for cell in (cell for cell in results.cells if cell.runs):
        selector = live_selector(cell.runs[0].folder)
        names.append(f"{cell.row}.png")
        draw_selection(selector, folder / names[-1], f"{results.heading}: {cell.row}")
    return names


def live_selector(run: Path) -> cvrcore.CoalitionSelector:
    """Return the selector as the last checkpoint of a run left it."""
    try:
        state = load_state(run / "checkpoint.npz")
        return cvrcore.CoalitionSelector.from_state_dict(state["policy"]["chosen"])
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{run} holds no state of FedCVR-Bolt: {error}") from None


def embed(affinity: np.ndarray) -> np.ndarray:
    """Return points in the plane whose inner products fit the centred affinity best.

    The points are the two leading principal components in the feature space of the kernel.
    Clients far from all others (in practice clients never seen, which still hold the initial
    model) would squeeze the rest into one point: they are put in a column on the right.
    """
    closeness = affinity.mean(axis=1)
    spread = np.median(np.abs(closeness - np.median(closeness)))
    far = closeness < np.median(closeness) - 10 * spread
    near = np.flatnonzero(~far)
    centring = np.eye(near.size) - 1.0 / near.size
    values, vectors = np.linalg.eigh(centring @ affinity[np.ix_(near, near)] @ centring)
    inside = (vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0)))[:, ::-1]
    points = np.empty((len(affinity), 2))
    points[near] = inside
    width, height = np.ptp(inside, axis=0)
    points[far, 0] = inside[:, 0].max() + 0.15 * width
    points[far, 1] = inside[:, 1].min() + height * np.linspace(0, 1, int(far.sum()) + 2)[1:-1]
    return points


def draw_selection(selector: cvrcore.CoalitionSelector, path: Path, title: str) -> None:
    """Draw the clients of a selector in the plane, and the weights of the picked ones.

    Colour is the coalition, area the score v between its least and its greatest value, a
    ring marks picked clients. The selector's next round is drawn from it.
    """
    picked = selector.select()
    if picked.coalitions is None:
        raise ValueError("rounds must exceed the warm-up: no coalitions exist before its end")
    affinity = cvrcore.influence(selector.rows, kernel=selector.kernel, gamma=selector.gamma)
    affinity /= affinity.diagonal()[:, None]  # the kernel before its rows were normalised
    figure = new_figure(9, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[2.2, 1])
    colours = np.array([PALETTE[int(p) % len(PALETTE)] for p in picked.coalitions])
    _clients(left, embed(affinity), picked, selector.scores, colours)
    _weights(right, picked, selector.weights, colours)
    figure.suptitle(f"{title}, round {picked.round + 1}", fontsize=10)
    save(figure, path)


def _clients(
    axes: Axes, points: np.ndarray, picked: Any, scores: np.ndarray, colours: np.ndarray
) -> None:
    spread = float(np.ptp(scores))
    areas = 25 + 175 * (scores - scores.min()) / (spread if spread > 0 else 1.0)
    axes.scatter(points[:, 0], points[:, 1], s=areas, c=colours, alpha=0.75, linewidths=0)
    chosen = picked.clients
    x, y = points[chosen].T
    axes.scatter(x, y, s=areas[chosen] + 60, facecolors="none", edgecolors="black", lw=1.4)
    title = (
        f"{len(points)} clients, {picked.coalitions.max() + 1} coalitions; "
        f"v from {scores.min():.4g} (small) to {scores.max():.4g} (large); ring: picked"
    )
    plain(axes, xlabel="first component of similarity", ylabel="second component", title=title)
    axes.set_xticks([])
    axes.set_yticks([])


def _weights(axes: Axes, picked: Any, weights: np.ndarray, colours: np.ndarray) -> None:
    shares = weights[picked.clients] / weights[picked.clients].sum()
    order = np.argsort(picked.coalitions[picked.clients])
    chosen = picked.clients[order]
    axes.barh([f"client {k}" for k in chosen], shares[order], color=colours[chosen])
    axes.invert_yaxis()
    plain(axes, title="weight in the next global model")
