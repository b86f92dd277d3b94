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
#: Of the dot of a client with the mean score, in square points.
AREA = 110


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

    Colour is the coalition, a ring marks picked clients, and the area is in proportion to the
    score v: where all scores are nearly equal, so are the dots. The next round of the selector
    is drawn.
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
    _weights(right, picked, selector.weights, selector.scores, colours)
    figure.suptitle(f"{title}, round {picked.round + 1}", fontsize=10)
    save(figure, path)


def _clients(
    axes: Axes, points: np.ndarray, picked: Any, scores: np.ndarray, colours: np.ndarray
) -> None:
    low, high = float(scores.min()), float(scores.max())
    areas = AREA * (scores / scores.mean() if low > 0 else np.ones(scores.size))
    axes.scatter(points[:, 0], points[:, 1], s=areas, c=colours, alpha=0.75, linewidths=0)
    chosen = picked.clients
    x, y = points[chosen].T
    axes.scatter(x, y, s=areas[chosen] + 60, facecolors="none", edgecolors="black", lw=1.4)
    named, ratio = "score v", ""
    if low > 0:
        named, ratio = "area: score v", f", largest / smallest {high / low:.3f}"
    title = (
        f"{len(points)} clients, {picked.coalitions.max() + 1} coalitions; ring: picked\n"
        f"{named}, {low:.4g} to {high:.4g}{ratio}"
    )
    plain(axes, xlabel="first component of similarity", ylabel="second component", title=title)
    axes.set_xticks([])
    axes.set_yticks([])


def _weights(
    axes: Axes, picked: Any, weights: np.ndarray, scores: np.ndarray, colours: np.ndarray
) -> None:
    shares = weights[picked.clients] / weights[picked.clients].sum()
    order = np.argsort(picked.coalitions[picked.clients])
    chosen = picked.clients[order]
    names = [f"client {k}, v {scores[k]:.4g}" for k in chosen]
    axes.barh(names, shares[order], color=colours[chosen])
    axes.invert_yaxis()
    plain(axes, title="weight in the next global model")
