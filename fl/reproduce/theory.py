"""Theorem 1 on a federated quadratic: the measured side against the bound."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ..store import read_json, write_json
from .experiment import Experiment, Plan
from .quadratic import Quadratic, follow

STEPS = (0.01, 0.03, 0.1, 0.3)
DIM, N_SELECT, WARMUP = 8, 5, 30
#: Clients in each planted group: as many everywhere, or not.
GROUPS = {"equal groups": (20,) * 5, "unequal groups": (60, 20, 10, 6, 4)}
DATA_SEED = 20


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One step length on one federation, averaged over seeds.

    ``mean_square`` is the running mean of ``|grad L|^2`` after the last round and ``bound``
    the theorem's ``L M eta / 2 c``; ``finite_bound`` adds the term that vanishes with T.
    ``alignment`` is the c that the proof needs, the ratio of the sums of ``G . grad L`` and
    ``|grad L|^2`` over a run; ``worst_alignment`` is the least ratio of any single round,
    Assumption 2 to the letter. `second_moment` is M, the greatest of any round.
    """

    groups: str
    step: float
    smoothness: float
    second_moment: float
    alignment: float
    worst_alignment: float
    mean_square: float
    bound: float
    finite_bound: float


def make(plan: Plan) -> Experiment:
    """Return an experiment without cells: its runs take milliseconds and are not kept."""
    return Experiment("theory", "Theorem 1 on a federated quadratic, S = 1", (), 1, metric="mse")


def examine(groups: str, step: float, rounds: int, seeds: int) -> tuple[Verdict, np.ndarray]:
    """Measure one step length on one federation.

    Returns
    -------
    verdict : Verdict
    running : ndarray of shape (rounds,)
        The running mean of squared gradient norms, averaged over seeds.
    """
    problem = Quadratic.planted(GROUPS[groups], DIM, np.random.default_rng(DATA_SEED))
    paths = [follow(problem, N_SELECT, step, rounds, WARMUP, seed) for seed in range(seeds)]
    squares = np.mean([path.squares for path in paths], axis=0)
    running = np.cumsum(squares) / np.arange(1, rounds + 1)
    alignment = float(
        np.sum([path.alignment for path in paths]) / np.sum([path.squares for path in paths])
    )
    worst = min(float((path.alignment / path.squares).min()) for path in paths)
    largest = max(float(path.second_moment.max()) for path in paths)
    bound = problem.smoothness * largest * step / (2 * alignment)
    gap = float(np.mean([path.gap for path in paths]))
    verdict = Verdict(
        groups,
        step,
        problem.smoothness,
        largest,
        alignment,
        worst,
        float(running[-1]),
        bound,
        bound + gap / (step * alignment * rounds),
    )
    return verdict, running


def draw(folder: Path, plan: Plan) -> list[str]:
    """Measure every step length, write ``theory.json``, draw ``theory.png``."""
    rounds = plan.rounds or (300 if plan.quick else 3000)
    seeds = plan.n_seeds(10)
    path, picture = folder / "theory.json", folder / "theory.png"
    asked: dict[str, Any] = {"rounds": rounds, "seeds": seeds, "steps": list(STEPS)}
    known = read_json(path) if path.exists() and picture.exists() else {}
    if known.get("asked") != asked:
        found = {name: [examine(name, step, rounds, seeds) for step in STEPS] for name in GROUPS}
        _picture(found, picture, plan.quick)
        verdicts = [dataclasses.asdict(v) for pairs in found.values() for v, _ in pairs]
        write_json(path, {"asked": asked, "quick": plan.quick, "verdicts": verdicts})
    return ["theory.png"]


def _picture(found: dict[str, list[tuple[Verdict, np.ndarray]]], path: Path, quick: bool) -> None:
    from .drawing import COLOURS, new_figure, save

    figure = new_figure(9, 4)
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (name, pairs) in zip(panels, found.items(), strict=True):
        for (verdict, running), colour in zip(pairs, COLOURS, strict=False):
            rounds = np.arange(1, len(running) + 1)
            axes.loglog(rounds, running, color=colour, lw=1.4, label=f"$\\eta$ = {verdict.step:g}")
            axes.axhline(verdict.bound, color=colour, lw=1, ls="--")
        axes.set_title(f"{name}, c = {min(v.alignment for v, _ in pairs):.2f} or more", fontsize=9)
        axes.set_xlabel("main round T")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(r"running mean of $\|\nabla L\|^2$")
    panels[0].legend(loc="upper right", fontsize=8, title="dashed: $LM\\eta/2c$", title_fontsize=8)
    label = " (quick)" if quick else ""
    figure.suptitle(f"Theorem 1 on a federated quadratic, S = 1{label}", fontsize=10)
    save(figure, path)
