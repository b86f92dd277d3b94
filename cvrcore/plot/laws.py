"""A selection in, bars of the law that it was drawn by out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from .look import ACCENT, INK, colour, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def law(
    selection: Selection | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    picked: ArrayLike | None = None,
    ax: Any = None,
) -> Axes:
    """Draw the probability of every client in its coalition, the likeliest first.

    Horizontal marks show the even probability in each coalition, dots the clients picked.

    Parameters
    ----------
    selection : Selection or array-like of shape (n_clients,)
        With its probabilities, or the probabilities themselves.
    labels : array-like of shape (n_clients,), optional
        Coalitions, with probabilities given as an array.
    picked : array-like of int, optional
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> ax = law([0.7, 0.3, 0.5, 0.5], labels=[0, 0, 1, 1], picked=[0, 3])
    >>> [round(float(bar.get_height()), 1) for bar in ax.patches]
    [0.7, 0.3, 0.5, 0.5]
    """
    probabilities: Any = selection
    if isinstance(selection, Selection):
        if selection.probabilities is None:
            raise ValueError("selection must have probabilities; this policy states none")
        probabilities = selection.probabilities
        labels = selection.coalitions if labels is None else labels
        picked = selection.clients if picked is None else picked
    values = np.asarray(probabilities, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"selection must be a Selection or shape (n_clients,), got {values.shape}")
    groups = np.zeros(len(values), np.int64) if labels is None else np.asarray(labels)
    if groups.shape != values.shape:
        raise ValueError(f"labels must have shape {values.shape}, got {groups.shape}")
    order = np.lexsort((-values, groups))
    axes = new_axes(ax)
    colours = [ACCENT if labels is None else colour(int(groups[k])) for k in order]
    axes.bar(np.arange(len(order)), values[order], width=0.9, color=colours)
    for group in np.unique(groups):
        (places,) = np.nonzero(groups[order] == group)
        eligible = int(np.count_nonzero(values[groups == group] > 0))
        if eligible:
            even = 1.0 / eligible
            axes.hlines(even, places[0] - 0.5, places[-1] + 0.5, color=INK, lw=1.1)
    if picked is not None:
        (places,) = np.nonzero(np.isin(order, np.asarray(picked)))
        heights = values[order][places]
        axes.plot(places, heights, "o", color=INK, ms=4.5, label="picked")
        axes.legend(frameon=False, fontsize=8.5)
    axes.set_xticks([])
    axes.set_ylim(0, None)
    inside = "" if labels is None else " by coalition, inside it"
    title = "law of the draw; the line is an even chance"
    return finish(axes, title, f"clients{inside} the likeliest first", "probability")
