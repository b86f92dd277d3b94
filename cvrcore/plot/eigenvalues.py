"""Rows of clients in, the eigenvalues that suggest a number of coalitions out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import check_count
from .look import ACCENT, FAILED, MUTED, RULE, finish, new_axes, whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CLIENTS = 2_000  # all eigenvalues of a dense matrix are computed


def gap(
    rows: Any, most: int = 20, *, kernel: str = "rbf", gamma: Any = 1.0, ax: Any = None
) -> Axes:
    """Draw the largest eigenvalues of the random walk among clients, and their largest gap.

    Clients in P clear coalitions give P eigenvalues near 1, and a gap after them: see
    ``n_coalitions="eigengap"``.

    Parameters
    ----------
    rows : selector or array-like of shape (n_clients, n_features)
        A `CoalitionSelector`, whose kernel is taken and whose clients without a report are left
        out, or watched coordinates; at most 2,000 clients.
    most : int
        Eigenvalues to draw, the largest number of coalitions.
    kernel, gamma
        As in `cvrcore.influence`; for arrays.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(30, 4)) + 9 * np.eye(4)[np.arange(30) % 3]
    >>> ax = gap(rows, most=8)
    >>> ax.get_title(loc="left")
    'largest gap after 3 eigenvalues: 3 coalitions'
    """
    from ..algorithm import influence
    from ..clustering.coalition_count import eigengap

    most = check_count(most, "most", minimum=2)
    if hasattr(rows, "rows_of"):
        kernel, gamma = rows.kernel, rows.gamma
        clients = rows.seen()
        _check_size(len(clients))
        rows = rows.rows_of(clients)
    values = np.asarray(rows, dtype=np.float64)
    _check_size(len(values))
    walk = influence(values, kernel=kernel, gamma=gamma)
    found = np.sort(np.linalg.eigvals(walk).real)[::-1][:most]  # real: it is a reversible walk
    count = eigengap(found[1:], min(most, len(found)))
    axes = new_axes(ax)
    places = np.arange(1, len(found) + 1)
    colours = [ACCENT if i <= count else MUTED for i in places]
    axes.vlines(places, 0, found, color=RULE, lw=1.2)
    axes.scatter(places, found, c=colours, s=30, zorder=3)
    axes.axvline(count + 0.5, color=FAILED, lw=1.2, ls=(0, (4, 3)))
    whole_ticks(axes.xaxis)
    title = f"largest gap after {count} eigenvalues: {count} coalitions"
    return finish(axes, title, "number of the eigenvalue", "eigenvalue of the random walk")


def _check_size(n_clients: int) -> None:
    if not 3 <= n_clients <= MAX_CLIENTS:
        raise ValueError(f"rows must be those of 3 to {MAX_CLIENTS} clients, got {n_clients}")
