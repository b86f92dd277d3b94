"""Guards of every policy: eligible clients and reports in, both within limits out.

`Guards` holds the settings, all off by default; a `Gate` holds their state between rounds.
`Selector` calls the gate four times a round: `admit` (who may be picked), `cover` (who must
be picked), `judge` (bounds on reported numbers) and `close` (accounting). Guards protect the
*selection* against hostile and broken clients, not the aggregation.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from ..selection import Selection
from ..validation import Float, Ids, Mask, check_choice, check_number, check_stored, check_vector

MEDIAN_FACTOR: Final = 3.0  # the bound "median", in running medians
WINDOW: Final = 256  # reports in a running median
BURST: Final = 2.0  # largest credit of a client under `max_share`, in picks
RECORD: Final = 1000  # incidents kept
_GOLDEN: Final = 0.6180339887498949  # golden ratio - 1: staggers the first forced picks


class Incident(NamedTuple):
    """One action of a guard: `kind` is "invalid" (skipped), "norm" or "loss" (clipped)."""

    round: int
    client: int
    kind: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Guards:
    """Limits on a client's influence on the selection; every default is "off".

    Shares are multiples of the even share: the probability ``m / eligible`` of a uniform
    draw in each round in which the client is eligible. They hold over the life of the
    selector and do not depend on the number of clients.

    Parameters
    ----------
    on_invalid : {"raise", "skip"}
        What `observe` does with a client whose model, loss or duration is not finite, out
        of range or of the wrong shape. "raise": refuse the whole call. "skip": count that
        client as failed, write an `Incident`, and continue with the other clients; then
        `models` may be a list of rows, each checked separately, and an infinite probed loss
        counts as no answer.
    max_norm : float or "median", optional
        Bound on the distance of a client's watched coordinates from the coordinate-wise
        median of this round's reports (of the last round with three reports, if this round
        has fewer). Rows farther away are scaled back to the bound. "median": three times
        the running median of that distance.
    max_loss : float or "median", optional
        Bound on reported and probed losses; larger losses are clipped. "median": three
        times the running median.
    max_share : float above 1, optional
        A client is picked at most ``max_share * even + 1`` times, `even` being the sum of
        its even shares, and in any interval of rounds at most two times above that bound. A
        client that used up its share is not eligible, unless the round cannot be filled
        otherwise: then the clients of largest credit come first. With ``max_share`` c the
        round can always be filled if at least ``m * c / (c - 1)`` clients are eligible.
    min_share : float in (0, 1], optional
        A client is picked at least ``floor(min_share * even)`` times: a client that falls
        behind takes the place of the client drawn last in its coalition, or in the round.
        More than m clients may be due at once, if many return together; then the clients
        furthest behind come first.

    Examples
    --------
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("oort", 100, 10, seed=0, max_share=1.25, max_loss="median")
    >>> selector.guards.max_share
    1.25
    """

    on_invalid: str = "raise"
    max_norm: float | str | None = None
    max_loss: float | str | None = None
    max_share: float | None = None
    min_share: float | None = None

    def __post_init__(self) -> None:
        check_choice(self.on_invalid, "on_invalid", ("raise", "skip"))
        for name in ("max_norm", "max_loss"):
            value = getattr(self, name)
            if isinstance(value, str):
                check_choice(value, name, ("median",))
            elif value is not None:
                object.__setattr__(self, name, check_number(value, name, above=0))
        if self.max_share is not None:
            object.__setattr__(
                self, "max_share", check_number(self.max_share, "max_share", above=1)
            )
        if self.min_share is not None:
            share = check_number(self.min_share, "min_share", above=0, maximum=1)
            object.__setattr__(self, "min_share", share)


#: Names of the settings, for callers that take them as separate arguments.
SETTINGS: Final = tuple(field.name for field in dataclasses.fields(Guards))


_NOTHING: Final = np.empty(0)


class Judged(NamedTuple):
    """Reports within bounds, incidents, and the values that update the running medians."""

    models: Float | None = None
    losses: Float | None = None
    incidents: tuple[Incident, ...] = ()
    distances: Float = _NOTHING
    reported: Float = _NOTHING
    centre: Float | None = None

    def after(self, earlier: list[Incident]) -> Judged:
        """Return a copy with `earlier` incidents put first."""
        return self._replace(incidents=(*earlier, *self.incidents))


class Gate:
    """State of the guards between rounds, for `n_clients` slots."""

    def __init__(self, guards: Guards, n_clients: int) -> None:
        self.guards = guards
        self.counts = np.zeros(n_clients, dtype=np.int64)  # all incidents of each client
        self.record: deque[Incident] = deque(maxlen=RECORD)
        self.credit = np.zeros(n_clients)  # picks left under max_share; barred at 0 and below
        self.owed = _stagger(0, n_clients)  # picks due under min_share; forced from 1
        self.distances, self.losses = np.empty(0), np.empty(0)  # of the running medians
        self.centre: Float | None = None
        self.eligible: Mask | None = None  # of the pending round

    # -- shares ------------------------------------------------------------------

    def admit(self, eligible: Mask, n_select: int) -> Mask:
        """Return the eligible clients that `max_share` lets be picked."""
        if self.guards.max_share is None:
            return eligible
        n_eligible = int(np.count_nonzero(eligible))
        n_picked = min(n_select, n_eligible)
        credit = self.credit + self.guards.max_share * n_picked / n_eligible
        admitted = eligible & ((credit > 0) | self._due(eligible, n_picked))
        missing = n_picked - int(np.count_nonzero(admitted))
        if missing > 0:
            barred = np.flatnonzero(eligible & ~admitted)
            admitted[barred[np.argsort(-credit[barred], kind="stable")[:missing]]] = True
        return admitted

    def cover(self, selection: Selection, eligible: Mask) -> Selection:
        """Return the selection with all clients in it that are due under `min_share`."""
        due = self._due(eligible, len(selection))
        if not due.any():
            return selection
        clients = selection.clients.copy()
        for client in np.setdiff1d(np.flatnonzero(due), clients):
            free = np.flatnonzero(~due[clients])
            if selection.coalitions is not None:
                # Prefer a place of the same coalition: every coalition stays represented.
                own = free[selection.coalitions[clients[free]] == selection.coalitions[client]]
                free = own if own.size else free
            clients[free[-1]] = client
        stated = vars(selection)["inclusion"] is not None  # `inclusion` is lazy: do not read it
        return dataclasses.replace(
            selection,
            clients=clients,
            inclusion=(lambda: _covered_inclusion(selection, due)) if stated else None,
        )

    def _due(self, eligible: Mask, n_picked: int) -> Mask:
        """Return the clients that `min_share` requires in this round."""
        due = np.zeros(eligible.size, dtype=bool)
        if self.guards.min_share is None:
            return due
        share = self.guards.min_share * n_picked / np.count_nonzero(eligible)
        ids = np.flatnonzero(eligible & (self.owed + share >= 1.0))
        due[ids[np.argsort(-self.owed[ids], kind="stable")[:n_picked]]] = True
        return due

    def begin(self, eligible: Mask) -> None:
        """Store the eligible clients of the pending round."""
        self.eligible = eligible.copy()

    def close(self, picked: Ids) -> None:
        """Update credit and picks owed for the pending round, and close it."""
        assert self.eligible is not None
        share = picked.size / np.count_nonzero(self.eligible)
        self.credit[self.eligible] += share * (self.guards.max_share or 0.0)
        self.credit[picked] -= 1.0
        np.minimum(self.credit, BURST, out=self.credit)
        self.owed[self.eligible] += share * (self.guards.min_share or 0.0)
        self.owed[picked] = np.maximum(self.owed[picked] - 1.0, 0.0)
        self.eligible = None

    # -- bounds ------------------------------------------------------------------

    def judge(self, clients: Ids, models: Float | None, losses: Float | None, round: int) -> Judged:
        """Return reports clipped to `max_norm` and `max_loss`; NaN losses stay."""
        incidents: list[Incident] = []
        reported = distances = _NOTHING
        centre = None
        if losses is not None and self.guards.max_loss is not None:
            reported = losses[~np.isnan(losses)]
            bound = _bound(self.guards.max_loss, self.losses, reported)
            incidents += _cuts("loss", clients, losses, bound, round)
            losses = np.where(losses > bound, bound, losses)
        if models is not None and self.guards.max_norm is not None:
            enough = len(models) >= 3
            centre = np.median(models, axis=0).astype(np.float64) if enough else self.centre
        if models is not None and centre is not None:
            away = models.astype(np.float64) - centre
            distances = np.sqrt(np.einsum("kd,kd->k", away, away))
            bound = _bound(self.guards.max_norm, self.distances, distances)
            incidents += _cuts("norm", clients, distances, bound, round)
            over = distances > bound
            models = models.copy()
            models[over] = centre + away[over] * (bound / distances[over])[:, None]
        return Judged(models, losses, tuple(incidents), distances, reported, centre)

    def remember(self, judged: Judged) -> None:
        """Record the incidents of `judge` and update the running medians."""
        self.record.extend(judged.incidents)
        for incident in judged.incidents:
            self.counts[incident.client] += 1
        self.losses = np.concatenate([self.losses, judged.reported])[-WINDOW:]
        self.distances = np.concatenate([self.distances, judged.distances])[-WINDOW:]
        if judged.centre is not None:
            self.centre = judged.centre

    # -- growth and state --------------------------------------------------------

    def grow(self, n_clients: int) -> None:
        """Add slots for clients that joined, without incidents or picks."""
        present = self.counts.size
        added = n_clients - present
        self.counts = np.concatenate([self.counts, np.zeros(added, dtype=np.int64)])
        self.credit = np.concatenate([self.credit, np.zeros(added)])
        self.owed = np.concatenate([self.owed, _stagger(present, n_clients)])
        self.eligible = None

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        state = {name: getattr(self, name).copy() for name in _ARRAYS}
        for name in ("centre", "eligible"):
            value = getattr(self, name)
            state[name] = None if value is None else value.copy()
        record = [list(incident) for incident in self.record]
        return {"settings": dataclasses.asdict(self.guards), **state, "record": record}

    @classmethod
    def restored(cls, state: dict[str, Any], n_clients: int, pending: bool) -> Gate:
        """Build a gate from the result of `state`; `pending`: whether a round is pending."""
        self = cls(Guards(**state["settings"]), n_clients)
        self.counts = check_stored(state["counts"], "counts", n_clients, np.int64)
        self.credit = check_stored(state["credit"], "credit", n_clients)
        self.owed = check_stored(state["owed"], "owed", n_clients)
        for name in ("losses", "distances"):
            setattr(self, name, check_vector(state[name], name).copy())
        if state["centre"] is not None:
            self.centre = check_vector(state["centre"], "centre").copy()
        if pending:
            self.eligible = check_stored(state["eligible"], "eligible", n_clients, bool)
        self.record.extend(Incident(*entry) for entry in state["record"])
        return self


_ARRAYS: Final = ("counts", "credit", "owed", "losses", "distances")


def _bound(setting: float | str | None, *values: Float) -> float:
    """Return the largest value allowed: a number, or a multiple of the median of `values`."""
    if isinstance(setting, float):
        return setting
    joined = np.concatenate(values)
    middle = float(np.median(joined)) if joined.size else 0.0
    return MEDIAN_FACTOR * middle if middle > 0 else np.inf


def _cuts(kind: str, clients: Ids, values: Float, bound: float, round: int) -> list[Incident]:
    over = values > bound
    return [
        Incident(round, int(k), kind, f"{kind} {value:.4g} counts as {bound:.4g}")
        for k, value in zip(clients[over], values[over], strict=True)
    ]


def _covered_inclusion(selection: Selection, due: Mask) -> Float:
    """Return inclusion probabilities after clients that are due replaced drawn clients.

    Exact for a uniform draw and for one place a coalition. Elsewhere an estimate: clients
    that are not due keep their proportions.
    """
    own, labels = selection.inclusion, selection.coalitions
    assert own is not None
    if labels is None:
        labels = np.zeros(due.size, dtype=np.int64)
    rest = np.where(due, 0.0, own)
    n_groups = int(labels.max()) + 1
    places = np.bincount(labels[selection.clients], minlength=n_groups)
    left = np.maximum(places - np.bincount(labels[due], minlength=n_groups), 0)
    held = np.bincount(labels, rest, minlength=n_groups)
    rest *= np.divide(left, held, out=np.zeros(n_groups), where=held > 0)[labels]
    # A due client without a place in its own coalition took a place of another coalition.
    spare = len(selection) - int(np.count_nonzero(due))
    rest *= spare / max(rest.sum(), np.finfo(np.float64).tiny)
    return np.where(due, 1.0, rest)


def _stagger(start: int, stop: int) -> Float:
    """Return initial picks owed, staggered: equal ones would force whole rounds at once."""
    return np.arange(start, stop) * _GOLDEN % 1.0
