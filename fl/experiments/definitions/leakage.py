"""What head features tell of labels: the label shares of clients predicted from them.

An observer knows the labels of half of the clients, fits a linear regression from features to
label shares on them, and predicts the other half; then the halves change places. ``explained``
is the share of the variance of label shares, weighted by samples, that the predictions explain
(R^2); ``top`` is the share of clients whose largest class is the largest predicted one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import cvrcore
from cvrcore.head import Blur

from ...store import write_json
from ..definition import DATASET, Experiment, Request, measured
from ..drawing import PALETTE, new_figure, plain, save
from ..table import Row
from .recorded import Recording, record
from .step_error import label_shares

TITLE = "Labels predicted from the direction of head updates"
N_CLIENTS, ROUNDS = 1000, 1
#: Arguments of `cvrcore.head.Blur` by name.
MODES: dict[str, tuple[float, str]] = {
    "direction": (0.0, "none"),
    "noise 0.1": (0.1, "none"),
    "noise 0.3": (0.3, "none"),
    "noise 1": (1.0, "none"),
    "sign": (0.0, "sign"),
    "top": (0.0, "top"),
    "top, noise 0.3": (0.3, "top"),
}


def predicted(features: np.ndarray, labels: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """Return label shares predicted from features, each half of the clients from the other."""
    n = len(labels)
    order = np.random.default_rng([seed, 7]).permutation(n)
    design = np.column_stack([np.ones(n), features])
    found = np.empty_like(labels)
    for test, fit in (order[: n // 2], order[n // 2 :]), (order[n // 2 :], order[: n // 2]):
        weighted = design[fit] * sizes[fit, None]
        gram = design[fit].T @ weighted + 1e-6 * sizes[fit].sum() * np.eye(design.shape[1])
        found[test] = design[test] @ np.linalg.solve(gram, weighted.T @ labels[fit])
    return found


def leak(recording: Recording, noise: float, coarse: str, seed: int) -> tuple[float, float]:
    """Return the share of the variance of labels that is explained, and of top classes found."""
    heads = recording.heads[-1].astype(np.float64)
    told = (recording.sizes > 0) & heads.any(axis=1)
    lengths = np.linalg.norm(heads[told], axis=1, keepdims=True)
    rows = Blur(noise, coarse, seed)(heads[told] / lengths, np.flatnonzero(told))
    labels, sizes = label_shares(recording)[told], recording.sizes[told]
    guess = predicted(rows, labels, sizes, seed)
    mean = sizes @ labels / sizes.sum()
    left = sizes @ ((labels - guess) ** 2).sum(axis=1)
    explained = 1.0 - left / (sizes @ ((labels - mean) ** 2).sum(axis=1))
    return float(explained), float((guess.argmax(axis=1) == labels.argmax(axis=1)).mean())


def make(request: Request) -> Experiment:
    """Return a definition without cells: recordings are no runs."""
    return Experiment("leakage", TITLE, (), 1, draw=draw)


def draw(folder: Path, request: Request) -> list[str]:
    """Record a few rounds, write ``leakage.json``, draw ``leakage.png``."""
    dataset, n_seeds = request.dataset or DATASET, request.n_seeds(3)
    n_clients = 50 if dataset == "digits" else N_CLIENTS
    asked = {
        "dataset": dataset,
        "seeds": n_seeds,
        "rounds": request.rounds or ROUNDS,
        "modes": list(MODES),
        "version": cvrcore.__version__,
    }
    if not measured(folder, "leakage", asked):
        recordings = []
        for seed in range(n_seeds):
            config = request.config(
                dataset, "fedavg", data__n_clients=n_clients, selection__n_select=n_clients
            ).replace(rounds=asked["rounds"], seed=seed)
            recordings.append(record(config, folder / "recorded" / f"{dataset}-seed-{seed}"))
        found: list[Row] = []
        for name, mode in MODES.items():
            pairs = np.array([leak(one, *mode, seed) for seed, one in enumerate(recordings)])
            row: Row = {"dataset": dataset, "clients": n_clients, "features": name}
            row |= {"seeds": n_seeds, "explained": float(pairs[:, 0].mean())}
            row["top"] = float(pairs[:, 1].mean())
            spread = pairs.std(axis=0, ddof=1) if n_seeds > 1 else (None, None)
            row["explained_std"], row["top_std"] = (None if s is None else float(s) for s in spread)
            found.append(row)
        _picture(found, folder / "leakage.png")
        values = {"asked": asked, "quick": request.quick, "outcomes": found}
        write_json(folder / "leakage.json", values)
    return ["leakage.png"]


def _picture(found: list[Row], path: Path) -> None:
    figure = new_figure(9, 3.2)
    axes = figure.subplots()
    names = {"explained": "variance of labels explained", "top": "largest class found"}
    for i, (name, label) in enumerate(names.items()):
        heights = [row[name] for row in found]
        axes.bar(np.arange(len(found)) + 0.4 * i, heights, 0.4, color=PALETTE[i], label=label)
    plain(axes, ylabel="share", title=f"{TITLE}, {found[0]['dataset']}")
    axes.set_xticks(np.arange(len(found)) + 0.2, [row["features"] for row in found], fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)
