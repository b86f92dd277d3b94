"""Rounds in, an image of who was picked out: clients by rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..selection import Selection
from ..tracking.records import Pick, RoundRecord, describe_picks
from ..tracking.views import PickHistory
from .look import ACCENT, FAILED, PAPER, WARMUP, finish, new_axes, whole_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def selection_heatmap(
    rounds: Iterable[Any], n_clients: int | None = None, *, ax: Any = None
) -> Axes:
    """Draw who was picked: a row per client, a column per round.

    Picks of the policy, picks of its warm-up and failed picks have a colour each. Beyond a
    thousand clients or rounds, several share a cell.

    Parameters
    ----------
    rounds : iterable
        A `Selection`, the ids of the picked clients, or a record with ``"picked"`` for each
        round; an ``fl.History`` is such an iterable.
    n_clients : int, optional
        Number of clients. Default: as many as the rounds show.
    ax : matplotlib Axes, optional

    Returns
    -------
    Axes

    Examples
    --------
    >>> ax = selection_heatmap([[0, 3], [1, 3], [2, 3]], n_clients=5)
    >>> ax.get_title(loc="left")
    'who was picked: 4 of 5 clients in 3 rounds'
    """
    history = PickHistory(_record(i, one, n_clients) for i, one in enumerate(rounds, start=1))
    if not history.rounds:
        raise ValueError("rounds must hold at least one round, got none")
    cells = history.cells()
    axes = new_axes(ax)
    from matplotlib.colors import ListedColormap

    extent = (0.5, len(history.rounds) + 0.5, history.n_clients - 0.5, -0.5)
    axes.imshow(
        cells,
        cmap=ListedColormap([PAPER, WARMUP, ACCENT, FAILED]),
        vmin=-0.5,
        vmax=3.5,
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    for axis in (axes.xaxis, axes.yaxis):
        whole_ticks(axis)
    reached = int(np.count_nonzero(history.counts))
    title = (
        f"who was picked: {reached} of {history.n_clients} clients in {len(history.rounds)} rounds"
    )
    return finish(axes, title, "round", "client")


def _record(number: int, one: Any, n_clients: int | None) -> RoundRecord:
    """Return one round in any of the accepted forms."""
    n_known, warmup = n_clients or 0, False
    if isinstance(one, RoundRecord):
        return one
    if isinstance(one, Selection):
        warmup, picks = one.warmup, describe_picks(one)
        if one.probabilities is not None:
            n_known = max(n_known, len(one.probabilities))
    elif isinstance(one, Mapping):
        warmup, failed = bool(one.get("warmup")), set(one.get("failed", ()))
        picks = [Pick(int(k), str(k), reported=k not in failed) for k in one.get("picked", ())]
    else:
        ids = np.asarray(one)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"rounds must hold selections or lists of ids, got {one!r:.40}")
        picks = [Pick(k, str(k)) for k in ids.tolist()]
    if any(pick.client < 0 or (n_clients and pick.client >= n_clients) for pick in picks):
        raise ValueError(
            f"rounds must hold ids in 0..{(n_clients or 0) - 1}, round {number} does not"
        )
    return RoundRecord(number, n_known, warmup=warmup, picks=picks)
