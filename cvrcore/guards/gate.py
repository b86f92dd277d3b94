"""The guards of one selector: eligible clients and reports in, both within limits out.

`Selector` calls the gate four times a round: `admit` (who may be picked), `cover` (who must
be picked), `charge` (accounting) and `judge` (bounds on reported numbers), then `remember`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ..runtime.journal import Noted
from ..selection import Selection
from ..validation import Float, Ids, Mask, check_stored, check_vector
from .bounds import ENOUGH, RunningBound
from .settings import Guards, Incident
from .shares import Shares, guard_stream

RECORD: Final = 1000  # incidents kept

_NOTHING: Final = np.empty(0)
_NO_IDS: Final = np.empty(0, dtype=np.int64)


class Judged(NamedTuple):
    """Reports within bounds, incidents, and the values that update the running medians."""

    models: Float | None = None
    losses: Float | None = None
    incidents: tuple[Incident, ...] = ()
    clients: Ids = _NO_IDS  # whose `distances` are
    distances: Float = _NOTHING
    reporters: Ids = _NO_IDS  # whose `reported` losses are
    reported: Float = _NOTHING
    senders: Ids = _NO_IDS  # whose `lengths` are
    lengths: Float = _NOTHING
    centre: Float | None = None
    signals: dict[str, Any] | None = None

    def after(self, earlier: list[Incident]) -> Judged:
        """Return a copy with `earlier` incidents put first."""
        return self._replace(incidents=(*earlier, *self.incidents))


class Gate(Noted):
    """State of the guards between rounds, for `n_clients` slots.

    Parameters
    ----------
    guards : Guards
    n_clients : int
    rng : Generator
        The stream of the policy; the guards' own stream follows from it.
    weights : array of shape (n_clients,)
        Sample counts, within `max_weight`.
    """

    def __init__(
        self, guards: Guards, n_clients: int, rng: np.random.Generator, weights: Float
    ) -> None:
        self.guards = guards
        self.counts = np.zeros(n_clients, dtype=np.int64)  # all incidents of each client
        self.record: deque[Incident] = deque(maxlen=RECORD)
        self.shares = Shares(guards, n_clients, guard_stream(rng), weights)
        self.losses = RunningBound("loss", guards.max_loss)
        self.distances = RunningBound("norm", guards.max_norm)
        self.lengths = RunningBound("update", guards.max_norm)
        self.centre: Float | None = None  # of the last round with enough reports
        self.centred_by = _NO_IDS  # whose rows made it

    # -- one round ---------------------------------------------------------------

    def admit(self, eligible: Mask, n_select: int, weights: Float) -> Mask:
        """Return the eligible clients that may be picked."""
        return self.shares.admit(eligible, n_select, weights)

    def cover(self, selection: Selection, eligible: Mask) -> Selection:
        """Return the selection with all clients in it that are due under `min_share`."""
        return self.shares.cover(selection, eligible)

    def charge(self, eligible: Mask, selection: Selection, weights: Float) -> None:
        """Count a selection, whether or not its results ever arrive."""
        self.shares.charge(eligible, selection, weights)

    def judge(
        self,
        clients: Ids,
        models: Float | None,
        losses: Float | None,
        round: int,
        initial: Float | None = None,
    ) -> Judged:
        """Return reports clipped to `max_norm` and `max_loss`; NaN losses stay.

        `initial`, by default zeros, is the centre of rows until three clients have reported in
        one round.
        """
        judged = Judged(models, losses)
        if losses is not None and self.guards.max_loss is not None:
            known = ~np.isnan(losses)
            low, high = self.losses.limits(losses[known])
            incidents = _cuts("loss", clients, losses, low, high, round)
            clipped = np.where(known, np.clip(losses, low, high), losses)
            judged = judged._replace(
                losses=clipped,
                incidents=incidents,
                reporters=clients[known],
                reported=losses[known],
            )
        if models is None or self.guards.max_norm is None or not len(models):
            return judged
        centre, default = self._centre(models, initial)
        away = models.astype(np.float64) - centre
        distances = np.sqrt(np.einsum("kd,kd->k", away, away))
        bound = self.distances.limits(distances, default)[1]
        incidents = _cuts("norm", clients, distances, -np.inf, bound, round)
        over = distances > bound
        models = models.copy()
        models[over] = centre + away[over] * (bound / distances[over])[:, None]
        return judged._replace(
            models=models,
            incidents=(*judged.incidents, *incidents),
            clients=clients,
            distances=distances,
            centre=centre if len(models) >= ENOUGH else None,
        )

    def judge_signals(
        self, judged: Judged, clients: Ids, given: Mapping[str, Any], round: int
    ) -> Judged:
        """Return `judged` with updates and norms of updates within `max_norm` too."""
        signals, lengths, incidents = dict(given), judged.lengths, judged.incidents
        if self.guards.max_norm is None or not ({"norms", "updates"} & signals.keys()):
            return judged._replace(signals=signals)
        if "updates" in signals:
            rows = signals["updates"].astype(np.float64)
            lengths = np.sqrt(np.einsum("kd,kd->k", rows, rows))
            bound = self.lengths.limits(lengths)[1]
            over = lengths > bound
            rows[over] *= (bound / lengths[over])[:, None]
            signals["updates"] = rows.astype(signals["updates"].dtype)
        if "norms" in signals:
            lengths = signals["norms"]
            bound = self.lengths.limits(lengths)[1]
            signals["norms"] = np.minimum(lengths, bound)
        incidents += _cuts("norm", clients, lengths, -np.inf, bound, round)
        return judged._replace(
            signals=signals, senders=clients, lengths=lengths, incidents=incidents
        )

    def _centre(self, models: Float, initial: Float | None) -> tuple[Float, float]:
        """Return the centre of this round's rows, and a distance to use while none is known."""
        n_features = models.shape[1]
        start = np.zeros(n_features) if initial is None else initial.astype(np.float64)
        default = float(np.linalg.norm(start)) or n_features**0.5
        if len(models) >= ENOUGH:
            return np.median(models, axis=0).astype(np.float64), default
        if self.centre is not None and self.centre.size == n_features:
            return self.centre, default
        return start, default

    def remember(self, judged: Judged) -> None:
        """Record the incidents of `judge` and update the running medians."""
        self.record.extend(judged.incidents)
        for incident in judged.incidents:
            self.counts[incident.client] += 1
        self.losses.remember(judged.reporters, judged.reported)
        self.distances.remember(judged.clients, judged.distances)
        self.lengths.remember(judged.senders, judged.lengths)
        if judged.centre is not None:
            self.centre, self.centred_by = judged.centre, judged.clients.copy()

    # -- growth and state --------------------------------------------------------

    def grow(self, n_clients: int, weights: Float) -> None:
        """Add slots for clients that joined; `weights` are those of all clients."""
        self.shares.grow(n_clients, weights)
        added = n_clients - self.counts.size
        self.counts = np.concatenate([self.counts, np.zeros(added, dtype=np.int64)])

    def forget(self, client: int) -> None:
        """Remove everything that one client reported, and every record of it."""
        self.counts[client] = 0
        self.record = deque((i for i in self.record if i.client != client), maxlen=RECORD)
        self.shares.forget(client)
        self.losses.forget(client)
        self.distances.forget(client)
        self.lengths.forget(client)
        if client in self.centred_by or (self.centre is not None and not self.centred_by.size):
            self.centre, self.centred_by = None, _NO_IDS

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "settings": dataclasses.asdict(self.guards),
            "counts": self.counts.copy(),
            "record": [list(incident) for incident in self.record],
            **self.shares.state(),
            **self.losses.state("losses"),
            **self.distances.state("distances"),
            **self.lengths.state("lengths"),
            "centre": None if self.centre is None else self.centre.copy(),
            "centred_by": self.centred_by.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore from `state`, for as many slots; older versions kept less."""
        n_clients = self.counts.size
        self.counts = check_stored(state["counts"], "counts", n_clients, np.int64)
        self.shares.restore(state, n_clients)
        self.losses.restore(state, "losses", n_clients)
        self.distances.restore(state, "distances", n_clients)
        if "lengths" in state:
            self.lengths.restore(state, "lengths", n_clients)
        if state["centre"] is not None:
            self.centre = check_vector(state["centre"], "centre").copy()
        self.centred_by = np.array(state.get("centred_by", _NO_IDS), dtype=np.int64)
        for entry in state["record"]:
            number, client, kind, detail = entry
            self.record.append(Incident(int(number), int(client), str(kind), str(detail)))


def _cuts(
    kind: str, clients: Ids, values: Float, low: float, high: float, round: int
) -> tuple[Incident, ...]:
    outside = (values > high) | (values < low)
    return tuple(
        Incident(
            round, int(k), kind, f"{kind} {value:.4g} counts as {min(max(value, low), high):.4g}"
        )
        for k, value in zip(clients[outside], values[outside], strict=True)
    )
