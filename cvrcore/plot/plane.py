"""Rows of clients and their coalitions in, a scatter plot in the plane out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..tracking.projection import directions, principal_plane
from .look import INK, WARMUP, colour, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def coalitions(
    rows: Any,
    labels: Selection | ArrayLike | None = None,
    *,
    picked: ArrayLike | None = None,
    ax: Any = None,
) -> Axes:
    """Draw clients in the plane of their first two principal components.

    Parameters
    ----------
    rows : selector or array-like of shape (n_clients, n_features)
        A `CoalitionSelector`, whose clients without a report are left out and whose rows are
        divided by their lengths, as its coalitions are; or watched coordinates, drawn as given.
    labels : Selection or array-like of shape (n_clients,), optional
        The coalition of each client gives its colour. A `Selection` also says who was picked.
    picked : array-like of int, optional
        Clients drawn with a ring.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(12, 3)) + 5 * np.eye(3)[np.arange(12) % 3]
    >>> ax = coalitions(rows, np.arange(12) % 3, picked=[0, 1, 2])
    >>> ax.get_title(loc="left")
    '12 clients, 3 coalitions'
    """
    if hasattr(rows, "rows_of"):
        clients = rows.seen()
        if len(clients) == 0:
            raise ValueError("rows must hold a report of some client, got a selector without any")
        values = directions(rows.rows_of(clients))
    else:
        values = np.asarray(rows, dtype=np.float64)
        if values.ndim != 2:
            raise ValueError(f"rows must have shape (n_clients, n_features), got {values.shape}")
        clients = np.arange(len(values))
    groups: Any = labels
    if isinstance(labels, Selection):
        picked = labels.clients if picked is None else picked
        groups = labels.coalitions
    if groups is not None:
        groups = np.asarray(groups)
        if groups.ndim != 1 or len(groups) <= clients.max():
            raise ValueError(
                f"labels must have one entry for each client, got shape {groups.shape}"
            )
        groups = groups[clients].astype(np.int64)
    points = principal_plane(values)
    axes = new_axes(ax)
    colours = [WARMUP] * len(clients) if groups is None else [colour(int(g)) for g in groups]
    axes.scatter(
        points[:, 0], points[:, 1], c=colours, s=26, alpha=0.7, linewidths=0, label="clients"
    )
    if picked is not None:
        ring = np.isin(clients, np.asarray(picked))
        x, y = points[ring].T
        axes.scatter(x, y, facecolors="none", edgecolors=INK, s=64, linewidths=1.4, label="picked")
        axes.legend(frameon=False, fontsize=8.5)
    found = "" if groups is None else f", {len(np.unique(groups))} coalitions"
    title = f"{len(clients)} clients{found}"
    return finish(axes, title, "first principal component", "second")
