"""What comes back from a round, and whether its numbers are sound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .._validation import Float, Ids, check_vector
from ..selection import Selection


@dataclasses.dataclass(frozen=True)
class Probe:
    """Answers to `Selector.probe`: the current loss of each client that was asked.

    A NaN loss means that the client did not answer.
    """

    clients: Ids
    losses: Float


@dataclasses.dataclass(frozen=True)
class Report:
    """What came back from a round: arrays aligned with `clients`, and who failed."""

    selection: Selection
    clients: Ids
    models: Float | None
    losses: Float | None
    durations: Float | None
    failed: Ids


@dataclasses.dataclass(frozen=True)
class News:
    """What `observe` was told, unchecked, and how a policy checks models."""

    selection: Selection
    clients: Ids
    models: Any
    losses: Any
    durations: Any
    failed: Ids
    check_models: Callable[[Any, int], Float | None]
    statistic: str | None

    def checked(self) -> Report:
        """Return the report if all of it is sound."""
        size = self.clients.size
        models = None if self.models is None else self.check_models(self.models, size)
        losses = None if self.losses is None else check_vector(self.losses, "losses", size)
        durations = self.durations
        if durations is not None:
            durations = check_vector(durations, "durations", size)
            if (durations <= 0).any():
                raise ValueError(f"durations must be positive, got {durations.min():g}")
        if self.statistic == "rms" and losses is not None and (losses < 0).any():
            raise ValueError(
                f"losses must be non-negative (root mean square), got {losses.min():g}"
            )
        return Report(self.selection, self.clients, models, losses, durations, self.failed)

    def sifted(self) -> tuple[Report, dict[int, str]]:
        """Return the report of those whose numbers are sound, and what is wrong with others.

        Those others count as failed.
        """
        names = ("models", "losses", "durations")
        given = {n: list(getattr(self, n)) for n in names if getattr(self, n) is not None}
        for name, column in given.items():
            if len(column) != self.clients.size:
                raise ValueError(
                    f"{name} must be of {self.clients.size} clients, got {len(column)}"
                )
        sound, wrong = [], {}
        for i, client in enumerate(self.clients):
            try:
                self._only(given, [i]).checked()
                sound.append(i)
            except (TypeError, ValueError) as error:
                wrong[int(client)] = str(error)
        lost = np.concatenate([self.failed, np.delete(self.clients, sound)])
        if not sound:  # no rows, so no shape to check
            nobody = self.clients[:0]
            return Report(self.selection, nobody, None, None, None, lost), wrong
        return dataclasses.replace(self._only(given, sound), failed=lost).checked(), wrong

    def _only(self, given: dict[str, list[Any]], positions: list[int]) -> News:
        parts: dict[str, Any] = {
            name: [column[i] for i in positions] for name, column in given.items()
        }
        return dataclasses.replace(self, clients=self.clients[positions], **parts)
