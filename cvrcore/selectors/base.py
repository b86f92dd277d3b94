"""The protocol of every selection policy: ask (`select`) and tell (`observe`).

`Selector` owns what all policies share: checking of arguments, the life of a round, the
random stream and the state. A policy writes `_choose` and, if it learns, `_learn`. Hooks
named ``_check_*`` run before anything changes, so a rejected call leaves the state as it was.

Threads may share a selector: each verb runs under the selector's lock. Which `observe`
answers which `select` is for the threads to agree on. Verbs are atomic: an exception or a
signal in one of them leaves the state before it, see `cvrcore.runtime.journal`.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..guards import Guards, Incident, Judged, as_guards
from ..runtime.journal import Atomic, atomic
from ..runtime.memory import held_bytes
from ..runtime.threads import serialised
from ..selection import Selection
from ..validation import (
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
from .forgetting import Forgetting
from .guarded import Guarded
from .needs import check_declared, check_needs, check_signal

__all__ = ["Probe", "Report", "Selector"]


@dataclasses.dataclass(frozen=True)
class Probe:
    """Answers to `Selector.probe`: the current loss of each client that was asked.

    A NaN loss means that the client did not answer.
    """

    clients: Ids
    losses: Float


@dataclasses.dataclass(frozen=True)
class Report:
    """Checked results of a round: arrays aligned with `clients`, and the clients that failed.

    `signals` holds what else was reported, by name of `cvrcore.selectors.needs.SIGNALS`.
    """

    selection: Selection
    clients: Ids
    models: Float | None
    losses: Float | None
    durations: Float | None
    failed: Ids
    signals: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def told(self) -> set[str]:
        """Names of what the clients reported."""
        named = {"models": self.models, "losses": self.losses, "durations": self.durations}
        return {name for name, value in named.items() if value is not None} | set(self.signals)


@dataclasses.dataclass
class RoundReport:
    """The arguments of `observe`, unchecked, and how a policy checks models."""

    selection: Selection
    clients: Ids
    models: Any
    losses: Any
    durations: Any
    failed: Ids
    check_models: Callable[[Any, int], Float | None]
    statistic: str | None
    signals: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check_signal: Callable[[str, Any, int], Any] = check_signal

    def checked(self) -> Report:
        """Return the report if every value is valid."""
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
        told = {name: self.check_signal(name, v, size) for name, v in self.signals.items()}
        return Report(self.selection, self.clients, models, losses, durations, self.failed, told)


class Selector(Guarded, Forgetting, Atomic, abc.ABC):
    """A client-selection policy; docs/policies.md shows how to write one.

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
    guards : Guards or "recommended", optional
        Limits on hostile and broken clients. Default: none.

    Attributes
    ----------
    guards : Guards
        Limits on hostile and broken clients, see `guard`.
    round : int
        Rounds closed so far.

    Examples
    --------
    A policy that always picks the clients with most samples:

    >>> import numpy as np
    >>> import cvrcore
    >>> class Largest(cvrcore.Selector):
    ...     def _choose(self, eligible, probe):
    ...         largest = np.argsort(np.where(eligible, -self.weights, 0.0), kind="stable")
    ...         picked = largest[: min(self.n_select, eligible.sum())]
    ...         return cvrcore.Selection(picked, round=self.round)
    >>> Largest(n_clients=4, n_select=2, weights=[5, 30, 10, 20]).select().clients
    array([1, 3])
    """

    name: ClassVar[str]
    #: Which loss `observe` wants from each client: None, "mean" or "rms" (of the model
    #: that was sent, over the client's training samples).
    loss_statistic: ClassVar[str | None] = None
    #: What the policy cannot do without: names of `cvrcore.selectors.needs.NEEDS`. A policy
    #: with a `loss_statistic` needs losses.
    needs: frozenset[str] = frozenset()
    #: How many distinct clients a round has: "fixed" (``min(n_select, eligible)``), "at-most"
    #: (that many draws, with repetition: see ``Selection.counts``) or "random" (any, even 0).
    size_rule: str = "fixed"
    _replaced: ClassVar[frozenset[str]] = frozenset({"weights"})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        implied = () if cls.loss_statistic is None else ("losses",)
        cls.needs = check_declared((*cls.needs, *implied), cls.__name__)
        if "sent" in cls.needs and cls._check_sent is Selector._check_sent:
            raise TypeError(f"{cls.__name__} needs `sent`: define _check_sent")

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        guards: Guards | str | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self.n_clients = check_count(n_clients, "n_clients")
        self.n_select = check_count(n_select, "n_select", maximum=self.n_clients, of="n_clients")
        self.weights = check_weights(weights, self.n_clients)
        self.round = 0
        if isinstance(seed, np.random.Generator):
            raise TypeError("seed must be an integer, a SeedSequence or None, got a Generator")
        self._rng = check_seed(seed)
        self._pending: Selection | None = None
        self._probed: Ids | None = None
        self._sent: Float | None = None  # of the `select` under way
        self._open: dict[int, Selection] = {}
        self._issued = 0
        self._use_guards(as_guards(guards))

    # -- the four verbs ---------------------------------------------------------

    @atomic
    def probe(self, available: ArrayLike | None = None) -> Ids | None:
        """Return ids whose current loss the policy wants before it selects, or None."""
        self._probed = self._candidates(self._admitted(self._eligible(available)))
        return None if self._probed is None else self._probed.copy()

    @atomic
    def select(
        self,
        available: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        *,
        sent: ArrayLike | None = None,
        n: int | None = None,
        quotas: Mapping[str, int] | None = None,
        concurrent: bool = False,
    ) -> Selection:
        """Pick clients for one round.

        Parameters
        ----------
        available : mask of shape (n_clients,) or array of ids, optional
            Who can be reached now. Default: everybody.
        losses : array-like, optional
            Losses of the clients that `probe` returned, in that order; NaN where a
            client did not answer.
        sent : array-like of shape (n_features,), optional
            Watched coordinates of the model that is about to be sent, for policies whose
            `needs` name it.
        n : int, optional
            Clients to pick this time. Default: `n_select`.
        quotas : mapping of str to int, optional
            Clients to pick of each tag, see `set_tags`; others are not picked.
        concurrent : bool
            Keep earlier concurrent rounds open: their clients are busy and not eligible. Pass
            ``Selection.round`` to `observe`, in any order.

        Returns
        -------
        Selection
            ``min(n_select, eligible)`` distinct eligible clients, unless the policy's
            `size_rule` says otherwise.

        Raises
        ------
        ValueError
            If nobody is eligible, or `losses` does not fit what `probe` returned.
        """
        eligible = self._eligible(available)
        probe, judged = self._check_probe(losses)
        if concurrent:
            self._check_concurrent()
        if quotas is not None:
            quotas = self._check_quotas(quotas)
        self._sent = self._check_sent(sent)
        if n is None and quotas is None:
            selection = self._choose(self._admitted(eligible), probe)
        else:
            selection = self._draw_sized(eligible, probe, n, quotas)
        if self._sent is not None:
            selection, self._sent = selection.changed(sent=self._sent), None
        if self._gate is not None:
            selection = self._gate.cover(selection, eligible)
            self._gate.charge(eligible, selection, self.weights)
            self._gate.remember(judged)
        if concurrent:
            selection = self._opened(selection)
            self._keep_open(selection.without_lazy())
        else:
            if self._open:  # a number of its own
                selection = selection.changed(round=max(self.round, self._issued))
            self._pending = selection.without_lazy()
        self._probed = None
        return selection.copied()  # the caller may write to it; the pending round stays as it is

    @atomic
    def observe(
        self,
        clients: ArrayLike,
        models: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        durations: ArrayLike | None = None,
        failed: ArrayLike = (),
        *,
        norms: ArrayLike | None = None,
        updates: ArrayLike | None = None,
        utilities: Any = None,
        costs: Mapping[str, ArrayLike] | None = None,
        round: int | None = None,
    ) -> None:
        """Report the results of the pending round, and close it.

        Parameters
        ----------
        clients : array-like of int
            Clients that reported: any subset of the picked, in any order; may be empty.
        models : array-like of shape (len(clients), n_features), optional
            Their watched coordinates (see `cvrcore.features`), for policies that use them.
        losses, durations : array-like of shape (len(clients),), optional
            Their losses (see `loss_statistic`) and seconds taken.
        failed : array-like of int
            Picked clients that are known to have failed.
        norms, updates, utilities : optional
            What else the policy's `needs` name; see `cvrcore.selectors.needs.NEEDS`.
        costs : mapping of str to array-like of shape (len(clients),), optional
            What each of `clients` spent, see `set_budgets`.
        round : int, optional
            ``Selection.round`` of the selection that this belongs to, where rounds overlap.
        """
        signals = {"norms": norms, "updates": updates, "utilities": utilities}
        told = (clients, models, losses, durations, failed, signals)
        pending = self._pending
        if pending is None or round is not None:
            pending = self._round_of(round)
        report, judged = self._check_report(pending, *told)
        spent = {} if costs is None else self._check_costs(costs, np.size(clients))
        self._learn(report)
        if self._gate is not None:
            self._gate.remember(judged)
        if self._budgets is not None:
            self._spend(pending.clients, np.asarray(clients, dtype=np.int64), spent)
        if pending is self._pending:
            self._pending = None
        else:
            self._close(pending)
        self.round += 1

    @serialised
    def check_report(
        self,
        clients: ArrayLike,
        models: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        durations: ArrayLike | None = None,
        failed: ArrayLike = (),
        *,
        norms: ArrayLike | None = None,
        updates: ArrayLike | None = None,
        utilities: Any = None,
        costs: Mapping[str, ArrayLike] | None = None,
        round: int | None = None,
    ) -> None:
        """Raise what `observe` would raise for these arguments; nothing changes."""
        signals = {"norms": norms, "updates": updates, "utilities": utilities}
        pending = self._round_of(round)
        self._check_report(pending, clients, models, losses, durations, failed, signals)
        self._check_costs(costs, np.size(clients))

    @atomic
    def resize(self, n_clients: int, weights: ArrayLike) -> None:
        """Add slots for clients that joined; old slots keep their id and weight.

        A round that is pending is dropped: select again.

        Parameters
        ----------
        n_clients : int
            New number of slots, at least the present one.
        weights : array-like of shape (n_clients - present,)
            Sample counts of the new clients.
        """
        n_clients = check_count(n_clients, "n_clients", minimum=self.n_clients)
        added = check_vector(weights, "weights", n_clients - self.n_clients)
        if (added < 0).any():
            raise ValueError(f"weights must be non-negative, got {added.min():g}")
        if added.size == 0:
            return
        added = self._bounded_weights(self.guards, added)
        joined = check_weights(np.concatenate([self.weights, added]), n_clients)
        self._grow(n_clients, added)
        if self._gate is not None:
            self._gate.grow(n_clients, joined)
        self._grow_tags(added.size)
        self._grow_budgets(added.size)
        self._grow_open(added.size)
        self.weights, self.n_clients = joined, n_clients
        self._pending = self._probed = None

    @property
    @serialised
    def nbytes(self) -> int:
        """Return the bytes of all arrays that the policy holds at present."""
        return held_bytes(self)

    @classmethod
    def option_names(cls) -> list[str] | None:
        """Return the keywords of the constructor; None where it takes any."""
        import inspect

        parameters = inspect.signature(cls).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return [parameter.name for parameter in parameters]

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

    def _unseen_row(self) -> Float | None:
        """Return the watched coordinates of the initial model; None: zeros, or none are watched."""
        return None

    # -- checks -----------------------------------------------------------------

    def _eligible(self, available: ArrayLike | None) -> Mask:
        eligible = self.weights > 0
        if available is not None:
            eligible &= check_available(available, self.n_clients)
        here = found = np.count_nonzero(eligible)
        if self._open:
            eligible &= self._idle()
            found = np.count_nonzero(eligible)
        if self._budgets is not None:
            eligible &= self._affordable()
            found = np.count_nonzero(eligible)
        if not found:
            why = " that is idle and has budget left" if here else ""
            raise ValueError(
                f"available must contain at least one client of positive weight{why}, got none"
            )
        return eligible

    def _admitted(self, eligible: Mask) -> Mask:
        if self._gate is None:
            return eligible
        return self._gate.admit(eligible, self.n_select, self.weights)

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
        pending: Selection,
        clients: ArrayLike,
        models: ArrayLike | None,
        losses: ArrayLike | None,
        durations: ArrayLike | None,
        failed: ArrayLike,
        signals: Mapping[str, Any],
    ) -> tuple[Report, Judged]:
        picked = np.zeros(self.n_clients, dtype=bool)
        picked[pending.clients] = True
        if pending is not self._pending:  # clients may have been forgotten since
            picked &= self.weights > 0
        ids = check_ids(clients, "clients", self.n_clients)
        lost = check_ids(failed, "failed", self.n_clients)
        if lost.size and np.isin(lost, ids).any():
            both = lost[np.isin(lost, ids)][0]
            raise ValueError(f"failed must not name clients that reported, got {both}")
        for array, name in ((ids, "clients"), (lost, "failed")):
            if not array.size:
                continue
            if np.count_nonzero(picked[array]) < array.size:
                stranger = array[~picked[array]][0]
                raise ValueError(
                    f"{name} must have been selected this round, got client {stranger}: pass ids "
                    "of Selection.clients"
                )
            picked[array] = False  # so that `failed` cannot repeat `clients`
        refused: list[Incident] = []
        statistic = self.loss_statistic
        told = (models, losses, durations)
        unchecked = RoundReport(
            pending,
            ids,
            *told,
            lost,
            self._check_models,
            statistic,
            {name: value for name, value in signals.items() if value is not None},
            self._check_signal,
        )
        try:
            report = unchecked.checked()
        except (TypeError, ValueError) as error:
            from .sifting import of_client, sifted  # it imports this module

            if self.guards.on_invalid == "raise":
                raise of_client(error, ids) from None

            report, wrong = sifted(unchecked)
            refused = [self._refusal(client, why) for client, why in wrong.items()]
        self._check_learnable(report)
        if self.needs and not self.needs <= report.told:
            check_needs(self.name, self.needs, report)
        if self._gate is None:
            return report, Judged()
        told = (report.clients, report.models, report.losses)
        judged = self._gate.judge(*told, self.round, self._unseen_row())
        judged = self._gate.judge_signals(judged, report.clients, report.signals, self.round)
        assert judged.signals is not None
        report = dataclasses.replace(
            report, models=judged.models, losses=judged.losses, signals=judged.signals
        )
        return report, judged.after(refused)

    def _refusal(self, client: int, why: str) -> Incident:
        return Incident(self.round, int(client), "invalid", why)

    def _check_models(self, models: ArrayLike, n_reported: int) -> Float | None:
        """Policies that use no models ignore them unread."""
        return None

    def _check_signal(self, name: str, value: Any, n_reported: int) -> Any:
        """Return one checked signal; a policy may check more, or return None to ignore it."""
        return check_signal(name, value, n_reported)

    def _check_sent(self, sent: ArrayLike | None) -> Float | None:
        """Policies that do not need the model sent ignore it unread."""
        return None
