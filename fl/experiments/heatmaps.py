"""Rows of the experiment ``map`` in, heat maps out: accuracy, gain, rounds, stable steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .definition import Request
from .drawing import INK, MUTED, RULE, new_figure, save
from .measures import measure
from .regimes import Regime, stable_steps, sure
from .results import read_results
from .table import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE = "fedavg"


def draw_regimes(folder: Path, request: Request) -> list[str]:
    """Draw heat maps of tail accuracy, gain, rounds to target and largest stable step."""
    results = read_results(folder)
    rows = [row for row in measure(results) if row["seeds"]]
    if not rows:
        return []
    return draw_maps(rows, folder, results.heading)


def draw_maps(rows: Sequence[Row], folder: Path, heading: str) -> list[str]:
    """Draw every heat map that the rows allow into `folder`; return names of the files."""
    figures = {
        "accuracy": _panels(rows, "last_five", f"{heading}: last five evaluations, %", ".0f"),
        "gain": _panels(
            [row for row in rows if row["column"] != BASELINE],
            "difference",
            f"{heading}: last five minus FedAvg's, points (bold: 95 % interval excludes 0)",
            "+.1f",
            centred=True,
            strong=sure,
        ),
        "rounds": _panels(
            rows, "rounds_to_target", f"{heading}: rounds to {_target(rows)}", ".0f", reverse=True
        ),
        "steps": _steps(rows, f"{heading}: largest stable server step, alpha 0.1"),
    }
    names = []
    for name, figure in figures.items():
        if figure is not None:
            names.append(f"{name}.png")
            save(figure, folder / names[-1])
    return names


def _target(rows: Sequence[Row]) -> str:
    target = next((row["target"] for row in rows if row["target"] is not None), None)
    return "the target" if target is None else f"{100 * target:.0f} % accuracy"


def _panels(
    rows: Sequence[Row],
    key: str,
    title: str,
    form: str,
    *,
    centred: bool = False,
    reverse: bool = False,
    strong: Callable[[Row], str] | None = None,
) -> Figure | None:
    """Draw one panel per method: a line per clients and alpha, a column per participation."""
    cells = {(Regime.of(r["row"]), r["column"]): r for r in rows if Regime.of(r["row"]).step == 1}
    values = [row[key] for row in cells.values() if row[key] is not None]
    if not values:
        return None
    regimes = sorted({regime for regime, _ in cells})
    lines = sorted({(r.n_clients, r.alpha, r.dataset) for r in regimes})
    percents = sorted({r.percent for r in regimes})
    methods = list(dict.fromkeys(method for _, method in cells))
    figure, panels = _layout(len(methods), len(percents), len(lines))
    reach = max(map(abs, values)) or 1.0
    limits = (-reach, reach) if centred else (min(values), max(values))
    for i, (axes, method) in enumerate(zip(panels, methods, strict=False)):
        table = np.full((len(lines), len(percents)), np.nan)
        for (regime, column), row in cells.items():
            if column == method:
                place = lines.index((regime.n_clients, regime.alpha, regime.dataset))
                at = (place, percents.index(regime.percent))
                table[at] = np.nan if row[key] is None else row[key]
                text = _text(row, key, form)
                weight = "bold" if strong is not None and strong(row) else "normal"
                axes.text(at[1], at[0], text, ha="center", va="center", size=7.5, weight=weight)
        maps = "RdBu" if centred else "YlGnBu_r" if reverse else "YlGnBu"
        _heat(axes, table, limits, maps, method)
        axes.set_xticks(range(len(percents)), [f"{p} %" for p in percents])
        named = [f"{d + ', ' if d else ''}K={k}, α {a:g}" for k, a, d in lines]
        axes.set_yticks(range(len(lines)), named if i % 3 == 0 else [""] * len(lines))
    figure.suptitle(title, color=INK, fontsize=10)
    figure.supxlabel("clients picked in a round", color=MUTED, fontsize=9)
    return figure


def _text(row: Row, key: str, form: str) -> str:
    if row[key] is not None:
        return f"{row[key]:{form}}"
    return "never" if key == "rounds_to_target" and row["seeds"] else ""


def _steps(rows: Sequence[Row], title: str) -> Figure | None:
    """Draw one panel per number of clients: a line per method, a column per participation."""
    stable = stable_steps(rows)
    if not stable:
        return None
    clients = sorted({k for k, _, _ in stable})
    percents = sorted({p for _, p, _ in stable})
    order = list(dict.fromkeys(row["column"] for row in rows))
    methods = [m for m in order if any(m == method for _, _, method in stable)]
    figure = new_figure(max(1.6 + 3.0 * len(clients), 6.0), 1.2 + 0.33 * len(methods))
    panels = np.atleast_1d(figure.subplots(1, len(clients), sharey=True))
    for axes, n_clients in zip(panels, clients, strict=True):
        table = np.full((len(methods), len(percents)), np.nan)
        for (k, percent, method), step in stable.items():
            if k == n_clients:
                at = (methods.index(method), percents.index(percent))
                table[at] = np.log2(step)
                axes.text(at[1], at[0], str(step), ha="center", va="center", size=8)
        _heat(axes, table, (0.0, 2.6), "YlGnBu", f"K={n_clients}")
        axes.set_xticks(range(len(percents)), [f"{p} %" for p in percents])
        axes.set_yticks(range(len(methods)), methods)
    figure.suptitle(title, color=INK, fontsize=10)
    figure.supxlabel("clients picked in a round", color=MUTED, fontsize=9)
    return figure


def _layout(n_panels: int, width: int, height: int) -> tuple[Figure, list[Axes]]:
    across = min(n_panels, 3)
    down = -(-n_panels // across)
    wide = 1.3 + max(0.52 * width, 1.8) * across
    figure = new_figure(max(wide, 7.0), 1.0 + (0.55 + 0.3 * height) * down)
    panels = np.atleast_2d(figure.subplots(down, across, squeeze=False)).ravel().tolist()
    for axes in panels[n_panels:]:
        axes.set_visible(False)
    return figure, panels[:n_panels]


def _heat(axes: Axes, table: Any, limits: tuple[float, float], colours: str, title: str) -> None:
    import matplotlib

    low, high = limits
    colour = matplotlib.colormaps[colours].with_extremes(bad="#f2f2f2")
    # The dark end would hide the numbers.
    span = high - low or 1.0
    room = {"YlGnBu": (0.0, 0.5), "YlGnBu_r": (0.5, 0.0)}.get(colours, (0.25, 0.25))
    shown = (low - room[0] * span, high + room[1] * span)
    axes.imshow(table, aspect="auto", cmap=colour, vmin=shown[0], vmax=shown[1])
    axes.set_title(title, loc="left", fontsize=9, color=INK)
    axes.tick_params(colors=MUTED, labelsize=8, length=0)
    for spine in axes.spines.values():
        spine.set_color(RULE)
