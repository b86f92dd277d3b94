"""What chance costs on a federated quadratic, where the update of everybody is known.

Every pair of policy and aggregator goes through the same rounds; then its state is kept
and its next step drawn many times. The mean of those steps against the full-participation
update is the pair's bias, their scatter its variance; both beside FedAvg's, which is uniform
selection with an average by samples.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import cvrcore
from cvrcore.aggregators import Aggregator, make_aggregator

from ..store import read_json, write_json
from .experiment import Experiment, Plan
from .quadratic import Quadratic
from .results import Row

SIZES = (24, 16, 10, 6, 4)  # clients of each planted group
DIM, N_SELECT, WARMUP, ROUNDS, LR = 8, 8, 10, 30, 0.05
DATA_SEED = 21

_SIZE = {"within": "size"}
_NEYMAN = {"within": "neyman"}
_COUNTED = {"within": "neyman", "places": "neyman", "n_coalitions": "eigengap"}
#: Policies, by the name of `cvrcore.make_selector` and options.
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {}),
    "power-of-choice": ("power-of-choice", {}),
    "active, goetz": ("active", {"preset": "goetz"}),
    "fedcbs": ("fedcbs", {}),
    "oort": ("oort", {}),
    "fedcvr-bolt": ("fedcvr-bolt", {}),
    "coalitions, by size": ("fedcvr-bolt", _SIZE),
    "coalitions, neyman": ("fedcvr-bolt", _NEYMAN),
    "counted coalitions, neyman": ("fedcvr-bolt", _COUNTED),
}
AGGREGATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "sizes": ("sizes", {}),
    "coalition-mass": ("coalition-mass", {}),
    "importance": ("importance", {}),
    "importance, self-normalised": ("importance", {"form": "self-normalised"}),
    "memory": ("memory", {}),
    "memory, zero at first": ("memory", {"unseen": "zero"}),
    "memory, stratified": ("memory", {"form": "stratified"}),
    "memory, none (MIFA)": ("memory", {"form": "none"}),
    "coalition-memory": ("coalition-memory", {}),
}
#: Unbiased with every policy whose chances are exact and above 0 for everybody.
UNBIASED = ("importance", "memory", "memory, zero at first", "coalition-memory")
#: Chances by repeated draws, to 1 % or so; power-of-choice's also go by losses of earlier rounds.
ESTIMATED = ("fedcbs", "power-of-choice")
#: Chances that depend on who was asked are worked out for every draw, 16 ms each; of a fifth
#: as many draws.
ANEW = ("power-of-choice",)
#: Exact chances, but 0 for some: nothing that divides by them can stand for those.
EXCLUDING = ("oort",)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One pair: `bias` and `variance` of its step, and its squared error in all.

    ``bias`` is the distance of the mean step from the full-participation update over that
    update's length, ``errors`` the largest distance of a coordinate in standard errors of
    the mean. ``variance`` and ``mean_square`` (both together) are relative to FedAvg's.
    """

    policy: str
    aggregator: str
    unbiased: bool
    draws: int
    bias: float
    errors: float
    variance: float
    mean_square: float


def is_unbiased(policy: str, aggregator: str) -> bool:
    """Return whether the algebra says that the mean step is that of everybody."""
    if aggregator in UNBIASED:
        return policy not in (*ESTIMATED, *EXCLUDING)
    # One client of each coalition, drawn by size: then shares by mass are alpha / pi.
    return policy == "coalitions, by size" and aggregator in (
        "coalition-mass",
        "importance, self-normalised",
        "memory, stratified",
    )


def problem() -> tuple[Quadratic, np.ndarray, np.ndarray]:
    """Return losses, sample counts and class counts of the clients."""
    rng = np.random.default_rng(DATA_SEED)
    losses = Quadratic.planted(SIZES, DIM, rng)
    weights = np.ceil(rng.lognormal(4.0, 0.8, size=sum(SIZES)))
    group = np.repeat(np.arange(len(SIZES)), SIZES)
    counts = np.ones((group.size, len(SIZES)))
    counts[np.arange(group.size), group] += weights
    return losses, weights, counts


def draws(
    policy: str, n_draws: int, seed: int = 0, aggregators: Iterable[str] = AGGREGATORS
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the steps of `n_draws` next rounds under each aggregator, and everybody's.

    Returns
    -------
    steps : dict of ndarray, shape (n_draws, DIM)
    full : ndarray of shape (DIM,)
    """
    losses, weights, counts = problem()
    selector = _selector(policy, weights, counts, seed)
    live = {
        name: make_aggregator(AGGREGATORS[name][0], **AGGREGATORS[name][1]) for name in aggregators
    }
    share = weights / weights.sum()
    x = np.zeros(DIM)
    for _ in range(ROUNDS):
        changes = -LR * losses.gradients(x)
        picked = _ask(selector, losses, x)
        for aggregator in live.values():
            _step(aggregator, picked, changes, x, weights)
        told = np.abs(changes[picked.clients]).sum(axis=1)
        selector.observe(picked.clients, changes[picked.clients], told)
        x = x + share @ changes
    changes = -LR * losses.gradients(x)
    steps = {name: np.empty((n_draws, DIM)) for name in live}
    inclusion = None
    state = selector.state_dict()
    for i in range(n_draws):
        if policy in ANEW:  # asking told it losses: back to what it knew, its stream goes on
            inclusion = None
            before = {**state, "rng": selector.state_dict()["rng"]}
            selector = type(selector).from_state_dict(before)
        picked = _ask(selector, losses, x)
        if inclusion is None:
            inclusion = picked.inclusion
        # The state is the same, and so are the chances: they need no second working out.
        picked = dataclasses.replace(picked, inclusion=inclusion)
        for name, aggregator in live.items():
            # What it would remember is not kept.
            twin = copy.deepcopy(aggregator) if aggregator.nbytes else aggregator
            steps[name][i] = _step(twin, picked, changes, x, weights)
    return steps, share @ changes


def _selector(policy: str, weights: np.ndarray, counts: np.ndarray, seed: int) -> cvrcore.Selector:
    name, options = POLICIES[policy]
    more: dict[str, Any] = {"label_counts": counts} if name == "fedcbs" else {}
    if name == "fedcvr-bolt":
        more = {"n_features": DIM, "warmup": WARMUP}
    return cvrcore.make_selector(
        name, weights.size, N_SELECT, weights=weights, seed=seed, **more, **options
    )


def _ask(selector: cvrcore.Selector, losses: Quadratic, x: np.ndarray) -> cvrcore.Selection:
    asked = selector.probe()
    if asked is None:
        return selector.select()
    away = x - losses.centre[asked]
    told = np.einsum("ki,kij,kj->k", away, losses.curvature[asked], away) / 2
    return selector.select(losses=told)


def _step(
    aggregator: Aggregator,
    picked: cvrcore.Selection,
    changes: np.ndarray,
    x: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    back = [[x + changes[k]] for k in picked.clients]
    (after,) = aggregator.aggregate([x], back, picked.clients, weights, picked)
    step: np.ndarray = after - x
    return step


def examine(n_draws: int, seed: int = 0) -> list[Outcome]:
    """Measure every pair; FedAvg, the first, is the unit."""
    found: list[Outcome] = []
    unit_variance = unit_square = 0.0
    for policy in POLICIES:
        count = n_draws // 5 if policy in ANEW else n_draws
        steps, full = draws(policy, count, seed)
        for aggregator, drawn in steps.items():
            away = drawn.mean(axis=0) - full
            error = drawn.std(axis=0, ddof=1) / np.sqrt(count)
            variance = float(drawn.var(axis=0, ddof=1).sum())
            square = variance + float(away @ away)
            if not found:
                unit_variance, unit_square = variance, square
            found.append(
                Outcome(
                    policy,
                    aggregator,
                    is_unbiased(policy, aggregator),
                    count,
                    float(np.linalg.norm(away) / np.linalg.norm(full)),
                    float((np.abs(away) / np.maximum(error, 1e-300)).max()),
                    variance / unit_variance,
                    square / unit_square,
                )
            )
    return found


def make(plan: Plan) -> Experiment:
    """Return an experiment without cells: its draws are not kept."""
    return Experiment("variance", "Steps against those of everybody, on a quadratic", (), 1)


def draw(folder: Path, plan: Plan) -> list[str]:
    """Measure every pair, write ``variance.json``, draw ``variance.png``."""
    n_draws = 500 if plan.quick else 10_000
    asked = {
        "draws": n_draws,
        "policies": list(POLICIES),
        "aggregators": list(AGGREGATORS),
        "version": cvrcore.__version__,
    }
    path, picture = folder / "variance.json", folder / "variance.png"
    known = read_json(path) if path.exists() and picture.exists() else {}
    if known.get("asked") != asked:
        found = examine(n_draws)
        _picture(found, picture)
        outcomes = [dataclasses.asdict(outcome) for outcome in found]
        write_json(path, {"asked": asked, "quick": plan.quick, "outcomes": outcomes})
    return ["variance.png"]


def rows(folder: Path) -> list[Row]:
    """Return what `draw` measured, one row for each pair, as plain values."""
    found: list[Row] = read_json(folder / "variance.json")["outcomes"]
    return found


def _picture(found: list[Outcome], path: Path) -> None:
    from .drawing import COLOURS, new_figure, save

    figure = new_figure(11, 4.2)
    axes = figure.add_subplot()
    width = 0.8 / len(AGGREGATORS)
    for i, (aggregator, colour) in enumerate(zip(AGGREGATORS, COLOURS, strict=False)):
        heights = [outcome.mean_square for outcome in found if outcome.aggregator == aggregator]
        places = np.arange(len(heights)) + i * width
        axes.bar(places, heights, width, color=colour, label=aggregator)
    axes.set_yscale("log")
    names = [name.replace(", ", ",\n") for name in POLICIES]
    axes.set_xticks(np.arange(len(POLICIES)) + 0.4, names, fontsize=7)
    axes.set_ylabel("mean squared error of the step / FedAvg's")
    axes.set_title("Steps against the full-participation update, on a quadratic", fontsize=9)
    axes.legend(frameon=False, fontsize=7, ncols=3)
    axes.grid(alpha=0.3, axis="y")
    save(figure, path)
