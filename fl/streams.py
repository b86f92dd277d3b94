"""One seed, several named random streams.

Each stream is a child of one `numpy.random.SeedSequence`, addressed by name and, where a
stream is drawn from more than once, by round and client. Drawing from one stream can
therefore never move another: a policy that draws more leaves data, initial model and every
client's batch order as they were.
"""

from __future__ import annotations

import dataclasses

import numpy as np

#: The order is part of the format: a new stream goes at the end.
NAMES = ("partition", "init", "batches", "selection", "availability", "dropout", "fleet", "server")


@dataclasses.dataclass(frozen=True)
class Streams:
    """The random streams of one run.

    Parameters
    ----------
    seed : int
        Non-negative; the only source of randomness of a run.

    Examples
    --------
    >>> Streams(0).generator("batches", 3, 7).permutation(4)
    array([1, 2, 3, 0])
    """

    seed: int

    def sequence(self, name: str, *key: int) -> np.random.SeedSequence:
        """Return the seed of stream `name`, or of its child at `key`.

        It equals what `SeedSequence.spawn` would give, level by level, without making
        the children that come before it.
        """
        if name not in NAMES:
            raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
        return np.random.SeedSequence(self.seed, spawn_key=(NAMES.index(name), *key))

    def generator(self, name: str, *key: int) -> np.random.Generator:
        """Return a fresh generator of stream `name`, or of its child at `key`."""
        return np.random.default_rng(self.sequence(name, *key))

    def integer(self, name: str, *key: int) -> int:
        """Return a 32-bit seed of stream `name`, for libraries that want a number."""
        return int(self.sequence(name, *key).generate_state(1)[0])
