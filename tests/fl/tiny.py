"""A federation small enough to train in milliseconds; not a test."""

import numpy as np

from fl.config import RunConfig
from fl.data import Federation


def tiny_federation(n_clients=12, n_classes=3, shape=(8,), seed=0, regression=False):
    """Clients of 0 to 30 samples; number 3 has none, number 5 a single one."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(8, 30, size=n_clients)
    sizes[3], sizes[5] = 0, 1
    centres = rng.normal(size=(n_classes, *shape))
    n = int(sizes.sum())
    y = rng.integers(0, n_classes, size=n)
    x = (centres[y] + 0.5 * rng.normal(size=(n, *shape))).astype(np.float32)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    ids = [np.arange(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    train = tuple(i[: len(i) - len(i) // 4] for i in ids)
    test = tuple(i[len(i) - len(i) // 4 :] for i in ids)
    if regression:
        y = (x.reshape(n, -1) @ np.linspace(-1, 1, x[0].size)).astype(np.float32)
    return Federation("digits", x, y, 0 if regression else n_classes, train, test, {})


def tiny_config(**changes):
    """Settings that suit `tiny_federation`: six quick rounds in this process."""
    base = RunConfig().replace(
        model="mlp",
        rounds=6,
        checkpoint_every=2,
        data__n_clients=12,
        selection__n_select=4,
        training__epochs=2,
        training__batch_size=5,
        training__lr=0.05,
        engine__name="serial",
    )
    return base.replace(**changes)
