"""Round numbers in, masks of clients out: reachable ones, and those that drop out in mid-round.

A trace file lists the reachable clients of each round. JSON lines: one array of client ids a
round. CSV: one line of 0 and 1 a round, one column a client, no header. A run longer than
its trace begins again at the trace's first round.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .config import AvailabilityConfig
from .streams import Streams

Mask = NDArray[np.bool_]


class TraceError(ValueError):
    """A trace file that cannot be read; the message names the line."""


class Availability:
    """Draws depend on seed and round alone: they are the same for every policy."""

    def __init__(self, config: AvailabilityConfig, n_clients: int, streams: Streams) -> None:
        self._config = config
        self._n_clients = n_clients
        self._streams = streams
        self._trace = None if config.trace is None else read_trace(config.trace, n_clients)

    def reachable(self, round: int) -> Mask:
        """Return a mask (n_clients,) of the clients that are reachable in `round`."""
        mask = np.ones(self._n_clients, dtype=bool)
        if self._trace is not None:
            mask &= self._trace[round % len(self._trace)]
        if self._config.probability < 1.0:
            draws = self._streams.generator("availability", round).random(self._n_clients)
            mask &= draws < self._config.probability
        return mask

    def dropped(self, round: int) -> Mask:
        """Return a mask (n_clients,) of the clients that would drop out in `round`."""
        draws = self._streams.generator("dropout", round).random(self._n_clients)
        dropped: Mask = draws < self._config.dropout
        return dropped


def read_trace(path: str, n_clients: int) -> NDArray[np.bool_]:
    """Return the trace in `path` as a mask of shape (n_rounds, n_clients).

    Raises
    ------
    TraceError
        If the file is missing, empty or malformed.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path!r} cannot be read: {error}") from None
    read = _csv_line if Path(path).suffix == ".csv" else _json_line
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(read(line, n_clients))
            except ValueError as error:
                raise TraceError(f"trace {path!r}, line {number}: {error}") from None
    if not rows:
        raise TraceError(f"trace {path!r} must have at least one round, got none")
    return np.stack(rows)


def _json_line(line: str, n_clients: int) -> Mask:
    try:
        ids = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"must be a JSON array of client ids: {error}") from None
    if not isinstance(ids, list) or any(type(k) is not int for k in ids):
        raise ValueError(f"must be a JSON array of client ids, got {line.strip()[:60]!r}")
    bad = [k for k in ids if not 0 <= k < n_clients]
    if bad:
        raise ValueError(f"client ids must lie in 0..{n_clients - 1}, got {bad[0]}")
    mask = np.zeros(n_clients, dtype=bool)
    mask[ids] = True
    return mask


def _csv_line(line: str, n_clients: int) -> Mask:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != n_clients:
        raise ValueError(f"must have {n_clients} columns, got {len(cells)}")
    bad = [cell for cell in cells if cell not in ("0", "1")]
    if bad:
        raise ValueError(f"cells must be 0 or 1, got {bad[0]!r}")
    return np.array([cell == "1" for cell in cells])
