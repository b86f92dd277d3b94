"""Reports of a round with invalid values: valid clients go on, the others count as failed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..validation import Ids, NotFiniteError
from .base import Report, RoundReport


def of_client(error: Exception, clients: Ids) -> Exception:
    """Return the error of a report; one about NaN or Inf names the client, and what to do."""
    if isinstance(error, NotFiniteError) and error.entry[0] < clients.size:
        client = clients[error.entry[0]]
        return ValueError(f"{error}, of client {client}: leave it out and name it in failed=")
    return error


def sifted(told: RoundReport) -> tuple[Report, dict[int, str]]:
    """Return the report of clients whose values are valid, and an error for each other client.

    The other clients count as failed.
    """
    names = ("models", "losses", "durations")
    given = {n: list(getattr(told, n)) for n in names if getattr(told, n) is not None}
    # A function of clients has no value of its own for each client.
    given |= {name: list(value) for name, value in told.signals.items() if not callable(value)}
    for name, column in given.items():
        if len(column) != told.clients.size:
            raise ValueError(f"{name} must be of {told.clients.size} clients, got {len(column)}")
    valid, wrong = [], {}
    for i, client in enumerate(told.clients):
        try:
            _only(told, given, [i]).checked()
            valid.append(i)
        except (TypeError, ValueError) as error:
            wrong[int(client)] = str(error)
    lost = np.concatenate([told.failed, np.delete(told.clients, valid)])
    if not valid:  # no rows, so no shape to check
        return Report(told.selection, told.clients[:0], None, None, None, lost), wrong
    return dataclasses.replace(_only(told, given, valid), failed=lost).checked(), wrong


def _only(told: RoundReport, given: dict[str, list[Any]], positions: list[int]) -> RoundReport:
    """Return the report of the clients at some positions."""
    parts: dict[str, Any] = {name: [column[i] for i in positions] for name, column in given.items()}
    signals = {name: parts.pop(name, value) for name, value in told.signals.items()}
    return dataclasses.replace(told, clients=told.clients[positions], signals=signals, **parts)
