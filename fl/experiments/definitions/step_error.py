"""Error of the estimated step, offline: the updates of all clients along the same path.

The path is a run with full participation, recorded once (`recorded`). On it, every draw and
every estimator of the step goes through the rounds as a server would, with `N_SELECT` reports
a round, and its step is compared with the full one. Two numbers for each part of the run:

- ``error``: the squared error of a step over the squared length of the full step;
- ``lasting``: the squared error of the *sum* of the part's steps over the squared length of the
  sum of the full steps, times the number of rounds. Errors that are independent from round to
  round leave it as large as ``error``, as far as full steps have one direction; errors that
  repeat themselves make it larger.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cvrcore
from cvrcore.aggregators import Aggregator, make_aggregator
from cvrcore.draws.designs import draw_by_design
from cvrcore.draws.pps import capped_inclusion

from ...store import read_json, write_json
from ..definition import DATASET, Experiment, Request
from ..drawing import PALETTE, new_figure, plain, save
from ..table import Row
from .blended import Blended
from .kriging import CorrectedKriging, Kriging
from .recorded import WIDTH, Recording, record

TITLE = "Error of the estimated step along a full-participation run"
N_SELECT, ROUNDS, REPEATS = 10, 20, 8
#: Clients of each recorded federation; 100 in others. 1,000 with a convolutional network take
#: hours.
CLIENTS = {"mnist": (100, 1000), "digits": (50,)}

#: Estimators of the step, given the label shares of the clients.
ESTIMATORS: dict[str, Callable[[np.ndarray], Aggregator]] = {
    "sizes": lambda labels: make_aggregator("sizes"),
    "mean": lambda labels: make_aggregator("mean"),
    "memory": lambda labels: make_aggregator("memory"),
    "factor memory": lambda labels: make_aggregator("factor-memory"),
    "factor memory, labels known": lambda labels: make_aggregator("factor-memory", features=labels),
    "kriging": lambda labels: Kriging(),
    "kriging, corrected": lambda labels: CorrectedKriging(),
    "blended": lambda labels: Blended(),
}


class Draw:
    """One of the draws `DRAWS`: a selection for each round, and what the draw learns of it."""

    def __init__(self, name: str, recording: Recording, seed: int) -> None:
        sizes = recording.sizes
        self._rng = np.random.default_rng([seed, 1])
        self._inclusion = capped_inclusion(sizes, N_SELECT)
        self._selector: cvrcore.Selector | None = None
        common: dict[str, Any] = {"weights": sizes, "seed": seed}
        count = sizes.size, N_SELECT
        if name == "uniform":
            self._selector = cvrcore.make_selector("uniform", *count, **common)
        elif name == "pivotal, by size":
            width = recording.heads.shape[2]
            self._selector = cvrcore.make_selector("pivotal", *count, n_features=width, **common)
        elif name == "pivotal, labels known":
            labels = label_shares(recording)
            self._selector = cvrcore.make_selector("pivotal", *count, features=labels, **common)
        self._reachable = sizes > 0

    def select(self, t: int) -> cvrcore.Selection:
        """Return the clients of round `t`."""
        if self._selector is None:
            return draw_by_design("systematic", self._inclusion, self._rng, round=t)
        return self._selector.select(self._reachable)

    def observe(self, clients: np.ndarray, directions: np.ndarray) -> None:
        """Show the draw the head updates of the clients that reported."""
        if self._selector is not None:
            needs = "models" in self._selector.needs
            self._selector.observe(clients, models=directions if needs else None)


DRAWS = ("uniform", "by size", "pivotal, by size", "pivotal, labels known")


def label_shares(recording: Recording) -> np.ndarray:
    """Return the share of each class among the samples of each client."""
    counts = recording.label_counts.astype(np.float64)
    shares: np.ndarray = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    return shares


def parts(n_rounds: int) -> dict[str, slice]:
    """Return the rounds that are compared: the second quarter and the last one."""
    quarter = n_rounds / 4
    return {
        "early-middle": slice(round(quarter), round(2 * quarter)),
        "late": slice(round(3 * quarter), n_rounds),
    }


def replay(recording: Recording, draw: str, seed: int) -> dict[str, np.ndarray]:
    """Return the errors of the steps of each estimator, of shape (n_rounds, WIDTH)."""
    n_rounds, _, n_classes = recording.heads.shape
    share = recording.sizes / recording.sizes.sum()
    live = {name: make(label_shares(recording)) for name, make in ESTIMATORS.items()}
    errors = {name: np.zeros((n_rounds, WIDTH)) for name in live}
    picker = Draw(draw, recording, seed)
    shape = n_classes, WIDTH // n_classes
    used = shape[0] * shape[1]  # the sketch as the weights of a layer, the head as its bias
    sent = [np.zeros(shape, dtype=np.float32), np.zeros(n_classes, dtype=np.float32)]
    for t in range(n_rounds):
        selection = picker.select(t)
        clients = selection.clients
        sketches, heads = recording.sketches[t, clients], recording.heads[t, clients]
        back = [[s[:used].reshape(shape), h] for s, h in zip(sketches, heads, strict=True)]
        full = share @ recording.sketches[t]
        for name, aggregator in live.items():
            after = aggregator.aggregate(sent, back, clients, recording.sizes, selection)
            errors[name][t, :used] = after[0].ravel() - full[:used]
        lengths = np.maximum(np.linalg.norm(heads, axis=1, keepdims=True), 1e-30)
        picker.observe(clients, (heads / lengths).astype(np.float64))
    return errors


def examine(recording: Recording, seed: int, repeats: int = REPEATS) -> list[Row]:
    """Return a row for each draw, estimator and part of the run; means over `repeats` draws."""
    share = recording.sizes / recording.sizes.sum()
    full = np.einsum("k,tkd->td", share, recording.sketches, dtype=np.float64)
    found: list[Row] = []
    for draw in DRAWS:
        runs = [replay(recording, draw, 1000 * seed + i) for i in range(repeats)]
        for name in ESTIMATORS:
            for part, where in parts(len(full)).items():
                steps, rounds = full[where], len(full[where])
                single = [_squares(run[name][where]) / _squares(steps) for run in runs]
                sums = [_squares(run[name][where].sum(axis=0)) for run in runs]
                lasting = rounds * np.array(sums) / _squares(steps.sum(axis=0))
                row: Row = {"draw": draw, "estimator": name, "rounds": part}
                row |= {"error": float(np.mean(single)), "lasting": float(lasting.mean())}
                found.append(row)
    return found


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray((rows**2).sum(axis=-1))


def make(request: Request) -> Experiment:
    """Return a definition without cells: recordings are no runs."""
    return Experiment("step-error", TITLE, (), 1, draw=draw)


def draw(folder: Path, request: Request) -> list[str]:
    """Record and measure what is missing, write ``step-error.json``, draw ``step-error.png``.

    A later command with another data set or more seeds adds to the file.
    """
    dataset = request.dataset or DATASET
    n_rounds = request.rounds or (8 if request.quick else ROUNDS)
    repeats = 2 if request.quick else REPEATS
    for seed in range(request.n_seeds(3)):
        for n_clients in CLIENTS.get(dataset, (100,)):
            name = f"{dataset}-{n_clients}-seed-{seed}"
            path = folder / f"{name}.json"
            asked = {
                "rounds": n_rounds,
                "repeats": repeats,
                "estimators": list(ESTIMATORS),
                "draws": list(DRAWS),
                "version": cvrcore.__version__,
            }
            if path.exists() and read_json(path)["asked"] == asked:
                continue
            config = request.config(
                dataset, "fedavg", data__n_clients=n_clients, selection__n_select=n_clients
            ).replace(rounds=n_rounds, seed=seed)
            place = folder / "recorded" / f"{name}-rounds-{n_rounds}"
            rows = examine(record(config, place), seed, repeats)
            values = {"dataset": dataset, "clients": n_clients, "seed": seed}
            write_json(path, {**values, "asked": asked, "rows": rows})
    found = summarise(folder)
    _picture(found, folder / "step-error.png")
    write_json(folder / "step-error.json", {"quick": request.quick, "outcomes": found})
    return ["step-error.png"]


def summarise(folder: Path) -> list[Row]:
    """Return means and standard deviations over the seeds that were measured."""
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for path in sorted(folder.glob("*-seed-*.json")):
        case = read_json(path)
        for row in case["rows"]:
            key = case["dataset"], case["clients"], row["rounds"], row["draw"], row["estimator"]
            cells.setdefault(key, []).append(row)
    found: list[Row] = []
    for key, rows in sorted(cells.items(), key=lambda item: item[0][:2]):
        row = dict(zip(("dataset", "clients", "rounds", "draw", "estimator"), key, strict=True))
        row["seeds"] = len(rows)
        for name in ("error", "lasting"):
            values = [one[name] for one in rows]
            row[name] = float(np.mean(values))
            row[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
        found.append(row)
    return found


def _picture(found: list[Row], path: Path) -> None:
    late = [row for row in found if row["rounds"] == "late"]
    cases = list(dict.fromkeys((row["dataset"], row["clients"]) for row in late))
    figure = new_figure(11, 3.4 * len(cases))
    width = 0.8 / len(ESTIMATORS)
    for axes, (dataset, clients) in zip(
        np.atleast_1d(figure.subplots(len(cases), 1)), cases, strict=True
    ):
        of_case = [row for row in late if (row["dataset"], row["clients"]) == (dataset, clients)]
        for i, (name, colour) in enumerate(zip(ESTIMATORS, PALETTE, strict=False)):
            rows = [row for row in of_case if row["estimator"] == name]
            places = np.arange(len(rows)) + i * width
            axes.bar(places, [row["error"] for row in rows], width, color=colour, label=name)
            lasting = [row["lasting"] for row in rows]
            axes.plot(places, lasting, "_", color="black", markersize=9)
        axes.set_yscale("log")
        title = f"{dataset}, {clients} clients, late rounds; dash: errors that last"
        plain(axes, ylabel="squared error / full step", title=title)
        axes.set_xticks(np.arange(len(DRAWS)) + 0.4, DRAWS, fontsize=8)
        axes.legend(frameon=False, fontsize=7, ncols=3)
    save(figure, path)
