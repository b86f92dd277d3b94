"""The protocol of every selection policy: ask (`select`) and tell (`observe`).

`Selector` owns what all policies share: checking of arguments, the life of a round, the
random stream and the state. A policy writes `_choose` and, if it learns, `_learn`. Hooks
named ``_check_*`` run before anything changes, so a rejected call leaves no trace.

Threads may share a selector: each verb is one atomic step, and a caller that waits gets its
turn. Which `observe` answers which `select` is for the threads to agree on.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .._validation import (
    Float,
    Ids,
    Mask,
    check_available,
    check_count,
    check_ids,
    check_seed,
    check_vector,
    check_weights,
)
from ..memory import held_bytes
from ..selection import Selection
from .guards import Gate, Guards, Incident, Judged
from .locking import serialised
from .reports import News, Probe, Report
from .saving import Saved

__all__ = ["Probe", "Report", "Selector"]


class Selector(Saved, abc.ABC):
    """A client-selection policy; see the module docstring for how to write one.

    Parameters
    ----------
    n_clients : int
        Number of slots K; ids are 0 .. K - 1.
    n_select : int
        Clients to pick each round, P.
    weights : array-like of shape (n_clients,), optional
        Raw sample counts n_k; a client of weight 0 is never eligible. Default: ones.
    seed : int, SeedSequence or None
        Seeds the policy's own random stream; no global state is read or written.

    Attributes
    ----------
    guards : Guards
        Limits on hostile and broken clients, see `guard`.
    round : int
        Rounds closed so far.
    """

    name: ClassVar[str]
    #: Which loss `observe` wants from each client: None, "mean" or "rms" (of the model
    #: that was sent, over the client's training samples).
    loss_statistic: ClassVar[str | None] = None

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self.n_clients = check_count(n_clients, "n_clients")
        self.n_select = check_count(n_select, "n_select", maximum=self.n_clients)
        self.weights = check_weights(weights, self.n_clients)
        self.round = 0
        if isinstance(seed, np.random.Generator):
            raise TypeError("seed must be an integer, a SeedSequence or None, got a Generator")
        self._rng = check_seed(seed)
        self._pending: Selection | None = None
        self._probed: Ids | None = None
        self.guards = Guards()
        self._gate: Gate | None = None

    # -- the four verbs ---------------------------------------------------------

    @serialised
    def probe(self, available: ArrayLike | None = None) -> Ids | None:
        """Return ids whose current loss the policy wants before it selects, or None."""
        self._probed = self._candidates(self._admitted(self._eligible(available)))
        return None if self._probed is None else self._probed.copy()

    @serialised
    def select(
        self, available: ArrayLike | None = None, losses: ArrayLike | None = None
    ) -> Selection:
        """Pick clients for one round.

        Parameters
        ----------
        available : mask of shape (n_clients,) or array of ids, optional
            Who can be reached now. Default: everybody.
        losses : array-like, optional
            Losses of the clients that `probe` returned, in that order; NaN where a
            client did not answer.

        Returns
        -------
        Selection
            ``min(n_select, eligible)`` distinct eligible clients.

        Raises
        ------
        ValueError
            If nobody is eligible, or `losses` does not fit what `probe` returned.
        """
        eligible = self._eligible(available)
        probe, judged = self._check_probe(losses)
        selection = self._choose(self._admitted(eligible), probe)
        if self._gate is not None:
            selection = self._gate.cover(selection, eligible)
            self._gate.begin(eligible)
            self._gate.remember(judged)
        self._pending, self._probed = selection.kept(), None
        return selection.lent()  # what the caller does to it must not reach the pending round

    @serialised
    def observe(
        self,
        clients: ArrayLike,
        models: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        durations: ArrayLike | None = None,
        failed: ArrayLike = (),
    ) -> None:
        """Tell what came back from the pending round, and close it.

        Parameters
        ----------
        clients : array-like of int
            Those that reported: any subset of the picked, in any order; may be empty.
        models : array-like of shape (len(clients), n_features), optional
            Their watched coordinates (see `cvrcore.features`), for policies that use them.
        losses, durations : array-like of shape (len(clients),), optional
            Their losses (see `loss_statistic`) and seconds taken.
        failed : array-like of int
            Those picked that are known to have failed.
        """
        report, judged = self._check_report(clients, models, losses, durations, failed)
        self._pending = None  # should learning fail, it must not be tried on half of its effects
        self._learn(report)
        if self._gate is not None:
            self._gate.close(report.selection.clients)
            self._gate.remember(judged)
        self.round += 1

    @serialised
    def resize(self, n_clients: int, weights: ArrayLike) -> None:
        """Add slots for clients that joined; old slots keep their id and weight.

        A round that is pending is dropped: select again.

        Parameters
        ----------
        n_clients : int
            New number of slots, at least the present one.
        weights : array-like of shape (n_clients - present,)
            Sample counts of the newcomers.
        """
        n_clients = check_count(n_clients, "n_clients", minimum=self.n_clients)
        added = check_vector(weights, "weights", n_clients - self.n_clients)
        if (added < 0).any():
            raise ValueError(f"weights must be non-negative, got {added.min():g}")
        if added.size == 0:
            return
        self._grow(n_clients, added)
        if self._gate is not None:
            self._gate.grow(n_clients)
        self.weights = np.concatenate([self.weights, added])
        self.n_clients = n_clients
        self._pending = self._probed = None

    @property
    @serialised
    def nbytes(self) -> int:
        """Return the bytes of all arrays that the policy holds at present."""
        return held_bytes(self)

    # -- guards -----------------------------------------------------------------

    @serialised
    def guard(self, /, **settings: Any) -> None:
        """Set limits on hostile and broken clients from now on; see `Guards`.

        Counting begins anew; without settings all limits are off. `make_selector` takes
        the settings too.

        Examples
        --------
        >>> import cvrcore
        >>> selector = cvrcore.CoalitionSelector(n_clients=100, n_features=300, n_select=10)
        >>> selector.guard(max_norm="median", max_share=1.25)
        """
        guards = Guards(**settings)
        if self._pending is not None:
            raise ValueError("guard must come between rounds: observe the pending one first")
        self.guards = guards
        self._gate = None if guards == Guards() else Gate(guards, self.n_clients)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Return what guards did, the last thousand times, oldest first."""
        with self._lock:
            return () if self._gate is None else tuple(self._gate.record)

    @property
    def incident_counts(self) -> Ids:
        """Return how often guards acted on each client's reports, ever, (K,)."""
        with self._lock:
            if self._gate is None:
                return np.zeros(self.n_clients, dtype=np.int64)
            return self._gate.counts.copy()

    # -- what a policy writes ----------------------------------------------------

    @abc.abstractmethod
    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        """Return the round's Selection; at least one client is eligible."""

    def _candidates(self, eligible: Mask) -> Ids | None:
        """Return whose loss the policy wants first, or None."""
        return None

    def _check_learnable(self, report: Report) -> None:
        """Raise if the report lacks something that this policy needs."""

    def _learn(self, report: Report) -> None:
        """Take in a checked report."""

    def _grow(self, n_clients: int, added: Float) -> None:
        """Extend per-client state; `self.n_clients` and `self.weights` are still old."""

    # -- checks -----------------------------------------------------------------

    def _eligible(self, available: ArrayLike | None) -> Mask:
        eligible = self.weights > 0
        if available is not None:
            eligible &= check_available(available, self.n_clients)
        if not eligible.any():
            raise ValueError(
                "available must contain at least one client of positive weight, got none"
            )
        return eligible

    def _admitted(self, eligible: Mask) -> Mask:
        return eligible if self._gate is None else self._gate.admit(eligible, self.n_select)

    def _check_probe(self, losses: ArrayLike | None) -> tuple[Probe | None, Judged]:
        if self._probed is None:
            if losses is not None:
                raise ValueError("losses must follow probe(): no client was asked for its loss")
            return None, Judged()
        if losses is None:
            raise ValueError(f"losses of the {self._probed.size} probed clients are required")
        values = np.asarray(losses)
        if values.shape != self._probed.shape:
            raise ValueError(f"losses must have shape {self._probed.shape}, got {values.shape}")
        values = values.astype(np.float64)
        refused = []
        if self.guards.on_invalid == "skip":
            infinite = np.isinf(values)
            for client, loss in zip(self._probed[infinite], values[infinite], strict=True):
                refused.append(self._refusal(client, f"losses must be finite, got {loss}"))
            values[infinite] = np.nan
        known = ~np.isnan(values)
        values[known] = check_vector(values[known], "losses")
        if self._gate is None:
            return Probe(self._probed, values), Judged()
        judged = self._gate.judge(self._probed, None, values, self.round)
        assert judged.losses is not None
        return Probe(self._probed, judged.losses), judged.after(refused)

    def _check_report(
        self,
        clients: ArrayLike,
        models: ArrayLike | None,
        losses: ArrayLike | None,
        durations: ArrayLike | None,
        failed: ArrayLike,
    ) -> tuple[Report, Judged]:
        pending = self._pending
        if pending is None:
            raise ValueError("observe must follow select: no round is pending")
        picked = np.zeros(self.n_clients, dtype=bool)
        picked[pending.clients] = True
        ids = check_ids(clients, "clients", self.n_clients)
        lost = check_ids(failed, "failed", self.n_clients)
        for array, name in ((ids, "clients"), (lost, "failed")):
            if array.size and not picked[array].all():
                stranger = array[~picked[array]][0]
                raise ValueError(f"{name} must have been selected this round, got {stranger}")
            picked[array] = False  # so that `failed` cannot repeat `clients`
        refused: list[Incident] = []
        statistic = self.loss_statistic
        news = News(pending, ids, models, losses, durations, lost, self._check_models, statistic)
        try:
            report = news.checked()
        except (TypeError, ValueError):
            if self.guards.on_invalid == "raise":
                raise
            report, wrong = news.sifted()
            refused = [self._refusal(client, why) for client, why in wrong.items()]
        self._check_learnable(report)
        if self._gate is None:
            return report, Judged()
        judged = self._gate.judge(report.clients, report.models, report.losses, self.round)
        report = dataclasses.replace(report, models=judged.models, losses=judged.losses)
        return report, judged.after(refused)

    def _refusal(self, client: int, why: str) -> Incident:
        return Incident(self.round, int(client), "invalid", why)

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float | None:
        """Policies that use no models ignore them unread."""
        return None
