"""The paper's first figure from a live state: clients, coalitions, scores, the picked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

import cvrcore
from cvrcore.state import load_state

from ..store import StoreError
from .drawing import COLOURS, new_figure, save
from .experiment import Cell, Experiment, Plan
from .results import read_experiment

DATASET = "mnist"


def make(plan: Plan) -> Experiment:
    """Return one run of FedCVR-Bolt, the classification table's; its last state is drawn."""
    dataset = plan.dataset or DATASET
    cell = Cell(
        dataset,
        "fedcvr-bolt",
        plan.config(dataset, "fedcvr-bolt"),
        home=f"classification/{dataset}/fedcvr-bolt",
    )
    return Experiment("overview", "Clients by similarity, coalition and score", (cell,), 1)


def draw(folder: Path, plan: Plan) -> list[str]:
    """Draw the selection that would follow the last round of each run's first seed."""
    experiment = read_experiment(folder)
    names = []
    for cell in experiment["cells"]:
        if cell["runs"]:
            selector = live_selector(folder / cell["runs"][0])
            names.append(f"{cell['row']}.png")
            draw_selection(selector, folder / names[-1], f"{experiment['title']}: {cell['row']}")
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

    Clients far from all others (in practice those never seen, which still hold the initial
    model) would squeeze the rest into one point: they are put in a column on the right.

    Parameters
    ----------
    affinity : array of shape (n_clients, n_clients)
        Symmetric.

    Returns
    -------
    points : ndarray of shape (n_clients, 2)
        Two leading principal components in the feature space of the kernel.
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
    """Draw the clients of a selector in the plane, and the weights of those it picks.

    Colour is the coalition, area the score v between its least and its greatest value, a
    ring marks the picked. The selector's next round is drawn from it.
    """
    picked = selector.select()
    if picked.coalitions is None:
        raise ValueError("rounds must exceed the warm-up: no coalitions exist before its end")
    affinity = cvrcore.influence(selector.rows, kernel=selector.kernel, gamma=selector.gamma)
    affinity /= affinity.diagonal()[:, None]  # the kernel before its rows were normalised
    points = embed(affinity)
    figure = new_figure(9, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=[2.2, 1])
    _clients(left, points, picked, selector.scores)
    _weights(right, picked, selector.weights)
    figure.suptitle(f"{title}, round {picked.round + 1}", fontsize=10)
    save(figure, path)


def _clients(axes: Axes, points: np.ndarray, picked: Any, scores: np.ndarray) -> None:
    spread = float(np.ptp(scores))
    areas = 25 + 175 * (scores - scores.min()) / (spread if spread > 0 else 1.0)
    colours = [_colour(p) for p in picked.coalitions]
    axes.scatter(points[:, 0], points[:, 1], s=areas, c=colours, alpha=0.75, linewidths=0)
    chosen = picked.clients
    x, y = points[chosen].T
    axes.scatter(x, y, s=areas[chosen] + 60, facecolors="none", edgecolors="black", lw=1.4)
    axes.set_title(
        f"{len(points)} clients, {picked.coalitions.max() + 1} coalitions; "
        f"v from {scores.min():.4g} (small) to {scores.max():.4g} (large); ring: picked",
        fontsize=8,
    )
    axes.set_xlabel("first component of similarity", fontsize=8)
    axes.set_ylabel("second component", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])


def _weights(axes: Axes, picked: Any, weights: np.ndarray) -> None:
    shares = weights[picked.clients] / weights[picked.clients].sum()
    order = np.argsort(picked.coalitions[picked.clients])
    labels = [f"client {k}" for k in picked.clients[order]]
    colours = [_colour(p) for p in picked.coalitions[picked.clients[order]]]
    axes.barh(labels, shares[order], color=colours)
    axes.invert_yaxis()
    axes.tick_params(labelsize=8)
    axes.set_title("weight in the next global model", fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colour(coalition: int) -> str:
    return COLOURS[int(coalition) % len(COLOURS)]
