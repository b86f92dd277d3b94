"""Settings in; a sketch of every client's update in every round of a full-participation run out.

A sketch of `WIDTH` numbers stands for an update of any length: each parameter is added to one
of them, with a random sign (a count sketch). Lengths and inner products are kept in the mean;
the relative standard error of a squared length is about sqrt(2 / WIDTH), 4.5 %. The sketch is
linear, so that a weighted sum of sketches is the sketch of the sum: estimators of the step work
on sketches as on updates.
"""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cvrcore.head import HeadMap

from ...config import RunConfig
from ...data import load_federation
from ...engines.serial import one_thread
from ...optimiser import rate
from ...server import Server
from ...store import StoreError, refuse_another, write_json
from ...streams import Streams

WIDTH = 1000
BATCH = 100  # clients whose models are in memory together
_SKETCH_SEED = 260


@dataclasses.dataclass(frozen=True)
class Recording:
    """The updates of all clients, round by round.

    Attributes
    ----------
    sketches : ndarray of float32, shape (n_rounds, n_clients, WIDTH)
    heads : ndarray of float32, shape (n_rounds, n_clients, n_classes)
        Updates of the output layer's bias, as `cvrcore.head.HeadMap` sees them.
    sizes : ndarray of shape (n_clients,)
        Training samples of each client.
    label_counts : ndarray of shape (n_clients, n_classes)
    """

    sketches: np.ndarray
    heads: np.ndarray
    sizes: np.ndarray
    label_counts: np.ndarray


class Sketch:
    """The count sketch of vectors of length `size`; the same for the same length."""

    def __init__(self, size: int, width: int = WIDTH) -> None:
        rng = np.random.default_rng([_SKETCH_SEED, size])
        self._places = rng.integers(width, size=size)
        self._signs = rng.choice([-1.0, 1.0], size=size)
        self._width = width

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """Return the sketch of one vector, in float64."""
        return np.bincount(self._places, self._signs * vector, minlength=self._width)


def record(
    config: RunConfig, folder: Path, tell: Callable[[str], None] = lambda text: None
) -> Recording:
    """Return the recording in `folder`, after the rounds that it lacks.

    Each round is one file, with the model after it; a run that was stopped goes on from the
    last complete one.
    """
    refuse_another(folder, config)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config.to_dict())
    seed = Streams(config.seed).integer("partition")
    federation = load_federation(**vars(config.data), seed=seed)
    paths = [folder / f"round-{t + 1:03d}.npz" for t in range(config.rounds)]
    missing = next((t for t, path in enumerate(paths) if not path.exists()), config.rounds)
    if missing < config.rounds:
        with one_thread(), Server(config, federation) as server:
            if missing:
                server.algorithm.models[0] = _read(paths[missing - 1])[2]
            for t in range(missing, config.rounds):
                tell(f"{folder.name}: round {t + 1} of {config.rounds}")
                _write(paths[t], *_round(server, t))
    rounds = [_read(path) for path in paths]
    return Recording(
        np.stack([sketches for sketches, _, _ in rounds]),
        np.stack([heads for _, heads, _ in rounds]),
        federation.sizes.astype(np.float64),
        federation.label_counts,
    )


def _round(server: Server, t: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train every client; return sketches, head updates and the next model."""
    config, layout, algorithm = server.config, server.layout, server.algorithm
    model = algorithm.models[0]
    sent = layout.arrays(model)
    head, sketch = HeadMap(sent, normalised=False), Sketch(layout.size)
    share = server.weights / server.weights.sum()
    sketches = np.zeros((share.size, WIDTH), dtype=np.float32)
    heads = np.zeros((share.size, head.n_features), dtype=np.float32)
    step = np.zeros(layout.size)
    lr = rate(config.training, t, config.rounds)
    clients = np.flatnonzero(share)
    for some in np.array_split(clients, -(-clients.size // BATCH)):
        models, tasks = algorithm.tasks(t, some, algorithm.starts(some), None)
        tasks = [dataclasses.replace(task, lr=lr) for task in tasks]
        for k, answer in zip(some, server.engine.train(models, tasks), strict=True):
            if answer is None or not np.isfinite(answer.vector).all():
                continue  # counts as no update, in every estimate alike
            update = answer.vector.astype(np.float64) - model
            step += share[k] * update
            sketches[k] = sketch(update)
            heads[k] = head.updates([layout.arrays(answer.vector)], sent)[0]
    algorithm.models[0] = model + step
    return sketches, heads, algorithm.models[0]


def _write(path: Path, sketches: np.ndarray, heads: np.ndarray, model: np.ndarray) -> None:
    whole = path.with_suffix(".part")
    with whole.open("wb") as file:
        np.savez(file, sketches=sketches, heads=heads, model=model)
    os.replace(whole, path)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return stored["sketches"], stored["heads"], stored["model"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} is damaged: {error}; remove it to record it again") from error
