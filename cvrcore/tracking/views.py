"""Records of rounds in; who was picked as an image, shares by client, and PNG bytes out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .records import RoundRecord

Image = NDArray[np.uint8]

MAX_SIDE: Final = 1000  # cells of an image; more clients or rounds share a cell
MIN_PIXELS: Final = 480  # of a side, as far as cells of at most 12 pixels reach
#: Colours of a cell: not picked, in warm-up, by the policy, picked and failed.
COLOURS: Final = np.array([[244, 246, 248], [158, 167, 179], [59, 125, 192], [207, 74, 63]])


class PickHistory:
    """Remembers who was picked in each round of a run.

    Examples
    --------
    >>> from cvrcore.tracking import Pick, RoundRecord
    >>> history = PickHistory()
    >>> history.add(RoundRecord(1, 3, picks=[Pick(0, "a"), Pick(2, "c")]))
    >>> history.add(RoundRecord(2, 3, picks=[Pick(2, "c")]))
    >>> history.counts.tolist()
    [1, 0, 2]
    """

    def __init__(self, earlier: Iterable[RoundRecord] = ()) -> None:
        self.rounds: list[tuple[int, NDArray[np.int64], NDArray[np.uint8]]] = []
        self.names: dict[int, str] = {}
        self.n_clients = 0
        for record in earlier:
            self.add(record)

    def add(self, record: RoundRecord) -> None:
        """Remember one round."""
        clients = np.array([pick.client for pick in record.picks], dtype=np.int64)
        usual = 1 if record.warmup else 2
        kinds = np.array([usual if pick.reported else 3 for pick in record.picks], np.uint8)
        self.rounds.append((record.round, clients, kinds))
        self.names |= {pick.client: pick.name for pick in record.picks}
        self.n_clients = max(self.n_clients, record.n_clients, int(clients.max(initial=-1)) + 1)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return how often each client was picked, (n_clients,)."""
        picked = [clients for _, clients, _ in self.rounds]
        found = np.concatenate([np.empty(0, np.int64), *picked])
        return np.bincount(found, minlength=self.n_clients)

    @property
    def shares(self) -> NDArray[np.float64]:
        """Return the picks of each client over all picks."""
        counts = self.counts
        return counts / max(int(counts.sum()), 1)

    def cells(self) -> Image:
        """Return the kind of each cell, clients by rounds, at most `MAX_SIDE` each way.

        Where several clients or rounds share a cell, a failure shows first, then a pick.
        """
        first = self.rounds[0][0] if self.rounds else 1
        n_rounds = max((number for number, _, _ in self.rounds), default=0) - first + 1
        height, width = min(max(self.n_clients, 1), MAX_SIDE), min(max(n_rounds, 1), MAX_SIDE)
        cells = np.zeros((height, width), dtype=np.uint8)
        for number, clients, kinds in self.rounds:
            column = (number - first) * width // max(n_rounds, 1)
            rows = clients * height // max(self.n_clients, 1)
            np.maximum.at(cells[:, column], rows, kinds)
        return cells

    def image(self) -> Image:
        """Return who was picked as an RGB image: a row per client, a column per round."""
        cells = self.cells()
        rows, columns = (max(1, min(12, MIN_PIXELS // side)) for side in cells.shape)
        colours: Image = COLOURS.astype(np.uint8)[cells]
        return colours.repeat(rows, axis=0).repeat(columns, axis=1)


def png(image: Image) -> bytes:
    """Return an RGB image as PNG bytes."""
    height, width, _ = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each line: filter 0, pixels
    lines[:, 1:] = image.reshape(height, 3 * width)
    body = chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")
