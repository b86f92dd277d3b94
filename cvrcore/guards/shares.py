"""Shares of picks: eligible clients and picks in, who may and who must be picked out.

Each client has a credit. It begins at minus a random fraction of a pick, rises by `max_share`
even shares in each round in which the client is eligible, and falls by one with each pick; a
client may be picked while its credit is positive. With the fraction uniform on [0, 1), the number
of picks allowed so far has the mean ``max_share * even`` at any time, also below one pick.
Newcomers share one more credit, in the order in which they joined.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np

from ..runtime.journal import Noted
from ..selection import Selection
from ..validation import Float, Mask, check_count, check_number, check_stored
from .settings import Guards

BURST: Final = 2.0  # largest credit of a client, and of newcomers beyond one round, in picks
NEW_FOR: Final = 2.0  # even shares until a newcomer is one no longer
_STREAM: Final = 0x67756172  # of the guards, beside the stream of the policy
_GOLDEN: Final = 0.6180339887498949  # golden ratio - 1: staggers the first forced picks

#: Arrays of a state with one number per client, and their types.
PER_CLIENT: Final = {
    "credit": np.float64,
    "owed": np.float64,
    "attended": np.float64,
    "turn": np.int64,
}


def guard_stream(policy: np.random.Generator) -> np.random.Generator:
    """Return the stream of the guards: it follows from the policy's, which is not advanced."""
    inner: Any = policy.bit_generator.state["state"]
    return np.random.default_rng([_STREAM, int(inner["state"]), int(inner["inc"])])


class Shares(Noted):
    """Credit, and picks owed, of `n_clients` slots.

    Parameters
    ----------
    guards : Guards
    n_clients : int
    rng : Generator
        The stream of the guards.
    weights : array of shape (n_clients,)
        Sample counts of the clients.
    """

    def __init__(
        self, guards: Guards, n_clients: int, rng: np.random.Generator, weights: Float
    ) -> None:
        self.guards, self.rng = guards, rng
        # Fractions of a regular grid in random order: in the first rounds no fewer clients than
        # expected may be picked.
        fractions = (rng.permutation(n_clients) + rng.random()) / n_clients
        self.credit = -fractions * self._cost(np.ones(n_clients, dtype=bool), weights)
        self.owed = np.arange(n_clients) * _GOLDEN % 1.0  # equal ones would force whole rounds
        self.attended = np.full(n_clients, NEW_FOR)  # even shares since a client joined
        self.turn = np.zeros(n_clients, dtype=np.int64)  # of newcomers: the lowest comes first
        self.turns = 1
        self.pool = -float(rng.random())  # joint credit of newcomers

    # -- one round ---------------------------------------------------------------

    def admit(self, eligible: Mask, n_select: int, weights: Float) -> Mask:
        """Return the eligible clients that may be picked; at least as many as places."""
        newcomers = self.guards.newcomers
        if self.guards.max_share is None and newcomers is None:
            return eligible
        n_eligible = int(np.count_nonzero(eligible))
        n_picked = min(n_select, n_eligible)
        share = n_picked / n_eligible
        credit = np.full(eligible.size, np.inf)
        if self.guards.max_share is not None:
            credit = self.credit + self.guards.max_share * share
        if newcomers is not None:
            credit = np.minimum(credit, self._queue(eligible, share * newcomers, weights))
        admitted: Mask = eligible & ((credit > 0) | self.due(eligible, n_picked))
        missing = n_picked - int(np.count_nonzero(admitted))
        if missing > 0:
            barred = np.flatnonzero(eligible & ~admitted)
            admitted[barred[np.argsort(-credit[barred], kind="stable")[:missing]]] = True
        return admitted

    def _queue(self, eligible: Mask, gain: float, weights: Float) -> Float:
        """Return the joint credit that is left when each newcomer's turn comes; else inf."""
        left = np.full(eligible.size, np.inf)
        new = np.flatnonzero(eligible & (self.attended < NEW_FOR))
        if new.size:
            ordered = new[np.argsort(self.turn[new], kind="stable")]
            costs = self._cost(eligible, weights)[ordered]
            before = np.concatenate([[0.0], np.cumsum(costs)[:-1]])
            left[ordered] = self.pool + gain * new.size - before
        return left

    def _cost(self, eligible: Mask, weights: Float) -> Float:
        """Return what a pick of each client counts: one, or more above the mean weight."""
        if self.guards.max_weight is None:
            return np.ones(weights.size)
        present = weights[eligible & (weights > 0)]
        return np.maximum(1.0, weights / present.mean()) if present.size else np.ones(weights.size)

    def due(self, eligible: Mask, n_picked: int) -> Mask:
        """Return the clients that `min_share` requires in this round."""
        due = np.zeros(eligible.size, dtype=bool)
        if self.guards.min_share is None:
            return due
        share = self.guards.min_share * n_picked / np.count_nonzero(eligible)
        ids = np.flatnonzero(eligible & (self.owed + share >= 1.0))
        due[ids[np.argsort(-self.owed[ids], kind="stable")[:n_picked]]] = True
        return due

    def cover(self, selection: Selection, eligible: Mask) -> Selection:
        """Return the selection with all clients in it that are due under `min_share`."""
        due = self.due(eligible, len(selection))
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

    def charge(self, eligible: Mask, selection: Selection, weights: Float) -> None:
        """Count one selection: shares of the eligible, picks of the picked.

        A client that was drawn several times is charged as often. New arrays are made before
        the first is replaced.
        """
        picked, times = selection.clients, selection.times_drawn
        share = times.sum() / np.count_nonzero(eligible)
        cost = self._cost(eligible, weights)[picked] * times
        credit, owed, turn = self.credit.copy(), self.owed.copy(), self.turn
        credit[eligible] += share * (self.guards.max_share or 0.0)
        credit[picked] -= cost
        np.minimum(credit, BURST, out=credit)
        owed[eligible] += share * (self.guards.min_share or 0.0)
        owed[picked] = np.maximum(owed[picked] - times, 0.0)
        pool, attended, turns = self.pool, self.attended, self.turns
        new = self.attended < NEW_FOR
        if new.any():
            gain = share * (self.guards.newcomers or 0.0) * np.count_nonzero(eligible & new)
            mine = new[picked]
            pool = min(pool + gain - float(cost[mine].sum()), BURST + gain)
            turn, attended = turn.copy(), attended.copy()
            turn[picked[mine]] = turns + np.arange(np.count_nonzero(mine))
            attended[eligible & new] += share
            turns += int(np.count_nonzero(mine))
        self.credit, self.owed, self.turn = credit, owed, turn
        self.pool, self.attended, self.turns = pool, attended, turns

    # -- growth and state --------------------------------------------------------

    def grow(self, n_clients: int, weights: Float) -> None:
        """Add slots for clients that joined: newcomers, the last in the queue."""
        added = n_clients - self.credit.size
        cost = self._cost(np.ones(n_clients, dtype=bool), weights)[-added:]
        credit = -self.rng.random(added) * cost
        self.credit = np.concatenate([self.credit, credit])
        self.owed = np.concatenate([self.owed, np.zeros(added)])
        self.attended = np.concatenate([self.attended, np.zeros(added)])
        self.turn = np.concatenate([self.turn, self.turns + np.arange(added)])
        self.turns += added

    def forget(self, client: int) -> None:
        """Bring the numbers of one client back to neutral ones."""
        for name, value in (("credit", 0.0), ("owed", 0.0), ("attended", NEW_FOR), ("turn", 0)):
            array = getattr(self, name).copy()
            array[client] = value
            setattr(self, name, array)

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            **{name: getattr(self, name).copy() for name in PER_CLIENT},
            "turns": self.turns,
            "pool": self.pool,
            "stream": self.rng.bit_generator.state,
        }

    def restore(self, state: dict[str, Any], n_clients: int) -> None:
        """Restore from `state`; states of older versions know no newcomers."""
        old = "pool" not in state
        for name, dtype in PER_CLIENT.items():
            if not (old and name in ("attended", "turn")):
                setattr(self, name, check_stored(state[name], name, n_clients, dtype))
        if not old:
            self.turns = check_count(state["turns"], "turns")
            self.pool = check_number(state["pool"], "pool")
            self.rng.bit_generator.state = state["stream"]


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
