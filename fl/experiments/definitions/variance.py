"""The cost of chance on a federated quadratic, where the full-participation update is known.

Every pair of policy and aggregator goes through the same rounds; then its state is frozen
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

from ...store import write_json
from ..definition import Experiment, Request, measured
from ..drawing import PALETTE, new_figure, plain, save
from ..table import Row
from .quadratic import Quadratic

SIZES = (24, 16, 10, 6, 4)  # clients of each planted group
DIM, N_SELECT, WARMUP, ROUNDS, LR = 8, 8, 10, 30, 0.05
DATA_SEED = 21
TITLE = "Steps against the full-participation update, on a quadratic"

_COUNTED = {"within": "neyman", "places": "neyman", "n_coalitions": "eigengap"}
#: Policies, by the name of `cvrcore.make_selector` and options.
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "uniform": ("uniform", {}),
    "power-of-choice": ("power-of-choice", {}),
    "active, goetz": ("active", {"preset": "goetz"}),
    "fedcbs": ("fedcbs", {}),
    "oort": ("oort", {}),
    "fedcvr-bolt": ("fedcvr-bolt", {}),
    "coalitions, by size": ("fedcvr-bolt", {"within": "size"}),
    "coalitions, neyman": ("fedcvr-bolt", {"within": "neyman"}),
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
#: Unbiased with every policy whose chances are exact and above 0 for every client.
UNBIASED = ("importance", "memory", "memory, zero at first", "coalition-memory")
#: Chances by repeated draws, to 1 % or so; power-of-choice's also go by losses of earlier rounds.
ESTIMATED = ("fedcbs", "power-of-choice")
#: Chances that depend on the probed clients are computed for every draw, 16 ms each; these
#: policies make a fifth as many draws.
ANEW = ("power-of-choice",)
#: Exact chances, but 0 for some clients: an aggregator that divides by chances misses them.
EXCLUDING = ("oort",)


def is_unbiased(policy: str, aggregator: str) -> bool:
    """Return whether the algebra says that the mean step is the full-participation update."""
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
    """Return the steps of `n_draws` next rounds under each aggregator, and the full update.

    Steps have the shape (n_draws, DIM), the full-participation update (DIM,).
    """
    losses, weights, counts = problem()
    name, options = POLICIES[policy]
    if name == "fedcvr-bolt":
        options = {"n_features": DIM, "warmup": WARMUP, **options}
    if name == "fedcbs":
        options = {"label_counts": counts}
    selector = cvrcore.make_selector(
        name, weights.size, N_SELECT, weights=weights, seed=seed, **options
    )
    live = {
        name: make_aggregator(AGGREGATORS[name][0], **AGGREGATORS[name][1]) for name in aggregators
    }

    def select(x: np.ndarray) -> cvrcore.Selection:
        probed = selector.probe()
        return selector.select(losses=None if probed is None else losses.losses(x)[probed])

    def step(aggregator: Aggregator, picked: cvrcore.Selection, x: np.ndarray) -> np.ndarray:
        models = [[x + changes[k]] for k in picked.clients]
        (after,) = aggregator.aggregate([x], models, picked.clients, weights, picked)
        moved: np.ndarray = after - x
        return moved

    share = weights / weights.sum()
    x = np.zeros(DIM)
    for _ in range(ROUNDS):
        changes = -LR * losses.gradients(x)
        picked = select(x)
        for aggregator in live.values():
            step(aggregator, picked, x)
        reported = np.abs(changes[picked.clients]).sum(axis=1)
        selector.observe(picked.clients, changes[picked.clients], reported)
        x = x + share @ changes
    changes = -LR * losses.gradients(x)
    steps = {name: np.empty((n_draws, DIM)) for name in live}
    inclusion, state = None, selector.state_dict()
    for i in range(n_draws):
        if policy in ANEW:  # the probe changed its state: restore all but the random stream
            inclusion = None
            before = {**state, "rng": selector.state_dict()["rng"]}
            selector = type(selector).from_state_dict(before)
        picked = select(x)
        if inclusion is None:
            inclusion = picked.inclusion
        # The state is the same, and so are the chances: compute them once.
        picked = dataclasses.replace(picked, inclusion=inclusion)
        for name, aggregator in live.items():
            # An aggregator with memory works on a copy: its memory stays as it was.
            twin = copy.deepcopy(aggregator) if aggregator.nbytes else aggregator
            steps[name][i] = step(twin, picked, x)
    return steps, share @ changes


def examine(n_draws: int, seed: int = 0) -> list[Row]:
    """Measure every pair; FedAvg, the first, is the unit.

    ``bias`` is the distance of the mean step from the full-participation update over that
    update's length, ``errors`` the largest distance of a coordinate in standard errors of
    the mean. ``variance`` and ``mean_square`` (both together) are relative to FedAvg's.
    """
    found: list[Row] = []
    for policy in POLICIES:
        count = n_draws // 5 if policy in ANEW else n_draws
        steps, full = draws(policy, count, seed)
        for aggregator, drawn in steps.items():
            away = drawn.mean(axis=0) - full
            error = drawn.std(axis=0, ddof=1) / np.sqrt(count)
            variance = float(drawn.var(axis=0, ddof=1).sum())
            row: Row = {"policy": policy, "aggregator": aggregator}
            row |= {"unbiased": is_unbiased(policy, aggregator), "draws": count}
            row["bias"] = float(np.linalg.norm(away) / np.linalg.norm(full))
            row["errors"] = float((np.abs(away) / np.maximum(error, 1e-300)).max())
            row |= {"variance": variance, "mean_square": variance + float(away @ away)}
            found.append(row)
    units = {name: found[0][name] for name in ("variance", "mean_square")}
    return [{**row, **{name: row[name] / unit for name, unit in units.items()}} for row in found]


def make(request: Request) -> Experiment:
    """Return a definition without cells: its draws are not kept."""
    return Experiment("variance", TITLE, (), 1, draw=draw)


def draw(folder: Path, request: Request) -> list[str]:
    """Measure every pair, write ``variance.json``, draw ``variance.png``."""
    n_draws = 500 if request.quick else 10_000
    asked = {
        "draws": n_draws,
        "policies": list(POLICIES),
        "aggregators": list(AGGREGATORS),
        "version": cvrcore.__version__,
    }
    if not measured(folder, "variance", asked):
        found = examine(n_draws)
        _picture(found, folder / "variance.png")
        values = {"asked": asked, "quick": request.quick, "outcomes": found}
        write_json(folder / "variance.json", values)
    return ["variance.png"]


def _picture(found: list[Row], path: Path) -> None:
    figure = new_figure(11, 4.2)
    axes = figure.subplots()
    width = 0.8 / len(AGGREGATORS)
    for i, (aggregator, colour) in enumerate(zip(AGGREGATORS, PALETTE, strict=False)):
        heights = [row["mean_square"] for row in found if row["aggregator"] == aggregator]
        places = np.arange(len(heights)) + i * width
        axes.bar(places, heights, width, color=colour, label=aggregator)
    axes.set_yscale("log")
    plain(axes, ylabel="mean squared error of the step / FedAvg's", title=TITLE)
    names = [name.replace(", ", ",\n") for name in POLICIES]
    axes.set_xticks(np.arange(len(POLICIES)) + 0.4, names, fontsize=7)
    axes.legend(frameon=False, fontsize=7, ncols=3)
    save(figure, path)
