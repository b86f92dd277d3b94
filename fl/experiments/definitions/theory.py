"""Theorem 1 on a federated quadratic: the measured side against the bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...store import write_json
from ..definition import Experiment, Request, measured
from ..drawing import PALETTE, new_figure, plain, save
from ..table import Row
from .quadratic import Quadratic, follow

STEPS = (0.01, 0.03, 0.1, 0.3)
DIM, N_SELECT, WARMUP = 8, 5, 30
#: Clients in each planted group: as many everywhere, or not.
GROUPS = {"equal groups": (20,) * 5, "unequal groups": (60, 20, 10, 6, 4)}
DATA_SEED = 20
TITLE = "Theorem 1 on a federated quadratic, S = 1"


def make(request: Request) -> Experiment:
    """Return a definition without cells: its runs take milliseconds and are not kept."""
    return Experiment("theory", TITLE, (), 1, metric="mse", draw=draw)


def examine(groups: str, step: float, rounds: int, seeds: int) -> tuple[Row, np.ndarray]:
    """Measure one step length on one federation, averaged over seeds.

    Returns
    -------
    verdict : dict
        ``mean_square`` is the running mean of ``|grad L|^2`` after the last round and
        ``bound`` the theorem's ``L M eta / 2 c``; ``finite_bound`` adds the term that
        vanishes with T. ``alignment`` is the c that the proof needs, the ratio of the sums
        of ``G . grad L`` and ``|grad L|^2`` over a run; ``worst_alignment`` is the least
        ratio of any single round, Assumption 2 to the letter. ``second_moment`` is M, the
        greatest of any round.
    running : ndarray of shape (rounds,)
        The running mean of squared gradient norms.
    """
    problem = Quadratic.planted(GROUPS[groups], DIM, np.random.default_rng(DATA_SEED))
    paths = [follow(problem, N_SELECT, step, rounds, WARMUP, seed) for seed in range(seeds)]
    squares = np.array([path.squares for path in paths])
    aligned = np.array([path.alignment for path in paths])
    running = np.cumsum(squares.mean(axis=0)) / np.arange(1, rounds + 1)
    alignment = float(aligned.sum() / squares.sum())
    largest = max(float(path.second_moment.max()) for path in paths)
    bound = problem.smoothness * largest * step / (2 * alignment)
    gap = float(np.mean([path.gap for path in paths]))
    verdict = {
        "groups": groups,
        "step": step,
        "smoothness": problem.smoothness,
        "second_moment": largest,
        "alignment": alignment,
        "worst_alignment": float((aligned / squares).min()),
        "mean_square": float(running[-1]),
        "bound": bound,
        "finite_bound": bound + gap / (step * alignment * rounds),
    }
    return verdict, running


def draw(folder: Path, request: Request) -> list[str]:
    """Measure every step length, write ``theory.json``, draw ``theory.png``."""
    rounds = request.rounds or (300 if request.quick else 3000)
    seeds = request.n_seeds(10)
    asked: dict[str, Any] = {"rounds": rounds, "seeds": seeds, "steps": list(STEPS)}
    if not measured(folder, "theory", asked):
        found = {name: [examine(name, step, rounds, seeds) for step in STEPS] for name in GROUPS}
        _picture(found, folder / "theory.png", " (quick)" * request.quick)
        verdicts = [verdict for pairs in found.values() for verdict, _ in pairs]
        values = {"asked": asked, "quick": request.quick, "verdicts": verdicts}
        write_json(folder / "theory.json", values)
    return ["theory.png"]


def _picture(found: dict[str, list[tuple[Row, np.ndarray]]], path: Path, label: str) -> None:
    figure = new_figure(9, 4)
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (name, pairs) in zip(panels, found.items(), strict=True):
        for (verdict, running), colour in zip(pairs, PALETTE, strict=False):
            step = f"$\\eta$ = {verdict['step']:g}"
            axes.loglog(np.arange(1, len(running) + 1), running, color=colour, label=step)
            axes.axhline(verdict["bound"], color=colour, lw=1, ls="--")
        least = min(verdict["alignment"] for verdict, _ in pairs)
        plain(axes, xlabel="main round T", title=f"{name}, c = {least:.2f} or more")
    panels[0].set_ylabel(r"running mean of $\|\nabla L\|^2$")
    panels[0].legend(loc="upper right", fontsize=8, title="dashed: $LM\\eta/2c$", title_fontsize=8)
    figure.suptitle(f"{TITLE}{label}", fontsize=10)
    save(figure, path)
