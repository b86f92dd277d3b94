"""Data about clients, by the framework's ids: replies in, rows for `Selector.observe` out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..features import FeatureMap, Model
from ..head import HeadMap
from ..ids import IdMap
from ..selection import Selection
from ..selectors.base import Selector
from .untrusted import REAL, as_number, brief, by_name, check_numbers

#: Arguments of `Selector.observe` that are read from replies.
REPORTED = ("models", "losses", "durations", "norms", "updates")

#: Ids in the log line of a round.
MAX_LISTED = 20


@dataclasses.dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client before its first round.

    Attributes
    ----------
    weight : float
        Its number of training samples; a client of weight 0 is never selected.
    label_counts : sequence of int, optional
        Its number of samples of each class, for policies that need them.

    Examples
    --------
    >>> from cvrcore.integrations.roster import ClientInfo
    >>> ClientInfo(weight=120, label_counts=[100, 20]).weight
    120
    """

    weight: float = 1.0
    label_counts: ArrayLike | None = None


@dataclasses.dataclass(frozen=True)
class Reply:
    """What one client sent back after training.

    Attributes
    ----------
    model : list or dict of arrays, optional
        Its trained model, from which the watched coordinates are extracted.
    watched : array-like, optional
        The watched coordinates themselves, where the client has extracted them.
    loss : float, optional
        The loss that the policy's ``loss_statistic`` names.
    seconds : float, optional
        How long the reply took by the server's own clock.
    norm : float, optional
        Norm of its whole update, where the client has computed it; otherwise it is computed
        from `model` and the model sent.

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore.integrations.roster import Reply
    >>> Reply(model={"weight": np.zeros(3)}, loss=0.7, seconds=2.5).loss
    0.7
    """

    model: Model | None = None
    watched: ArrayLike | None = None
    loss: float | None = None
    seconds: float | None = None
    norm: float | None = None


@dataclasses.dataclass
class Round:
    """The record of one round, by the framework's ids.

    Attributes
    ----------
    available, selected, reported : list of ids
        Clients that were connected, that the policy selected, and whose replies were used.
    selection : Selection
        The policy's decision, with its probabilities.
    failed : dict
        The reason for each selected client without a usable reply, by id.

    Examples
    --------
    >>> from cvrcore.integrations.roster import ClientInfo, Reply, Roster
    >>> roster = Roster("uniform", n_select=1, seed=0)
    >>> roster.register({"ann": ClientInfo(30), "bob": ClientInfo(10)})
    {}
    >>> selected = roster.select(["ann", "bob"])
    >>> roster.report({name: Reply() for name in selected}, {})
    ['bob']
    >>> roster.rounds[0].available, roster.rounds[0].failed
    (['ann', 'bob'], {})
    """

    available: list[Any]
    selected: list[Any]
    selection: Selection
    reported: list[Any] = dataclasses.field(default_factory=list)
    failed: dict[Any, str] = dataclasses.field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the ids and reasons, without the policy's decision."""
        names = ("available", "selected", "reported", "failed")
        return {name: getattr(self, name) for name in names}

    def line(self, selector: Selector) -> str:
        """Return one line: who was picked, of how many, by which policy, in which phase."""
        phase = ""
        if self.selection.warmup:
            total = getattr(selector, "warmup", "?")
            phase = f", warm-up round {self.selection.round + 1} of {total}"
        names = [str(id) for id in self.selected[:MAX_LISTED]]
        if len(self.selected) > MAX_LISTED:
            names.append(f"and {len(self.selected) - MAX_LISTED} more")
        return (
            f"selection {self.selection.round + 1} by {selector.name}{phase}: "
            f"{len(self.selected)} of {len(self.available)} clients: {', '.join(names) or 'nobody'}"
        )


class NoEligibleClientError(ValueError):
    """No connected client can be selected.

    Examples
    --------
    >>> from cvrcore.integrations.roster import ClientInfo, NoEligibleClientError, Roster
    >>> roster = Roster("uniform", n_select=1, seed=0)
    >>> roster.register({"ann": ClientInfo(30)})
    {}
    >>> try:
    ...     roster.select([])
    ... except NoEligibleClientError as error:
    ...     print("wait for clients")
    wait for clients
    """


class NeverReportedError(RuntimeError):
    """No client has ever sent what the policy needs: the clients' code lacks it.

    Examples
    --------
    >>> from cvrcore.integrations.roster import ClientInfo, NeverReportedError, Roster
    >>> roster = Roster("fedcbs", n_select=1, seed=0)  # it needs the label counts of clients
    >>> try:
    ...     roster.register({"ann": ClientInfo(30), "bob": ClientInfo(10)})
    ... except NeverReportedError as error:
    ...     print(str(error).partition(",")[0])
    policy 'fedcbs' needs the label counts of clients
    """


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the policy needs of a reply.

    Attributes
    ----------
    needs : set of str
        Names of `cvrcore.selectors.needs.NEEDS`.
    statistic : str or None
        The loss: "mean" or "rms".
    features : FeatureMap, HeadMap or None
        The watched coordinates; rows of a HeadMap are changes of the model sent.
    watches : bool
        Whether the policy watches models.
    updates : bool
        Whether the caller lets it watch updates in place of models.
    sent : dict of arrays, or None
        The model that was sent, where it is needed.
    """

    needs: frozenset[str] = frozenset()
    statistic: str | None = None
    features: FeatureMap | HeadMap | None = None
    watches: bool = False
    updates: bool = False
    sent: Model | None = None

    @functools.cached_property
    def before(self) -> np.ndarray:
        """The watched coordinates of the model that was sent."""
        if not isinstance(self.features, FeatureMap) or self.sent is None:
            raise ValueError("sent must be given to watch updates, got None")
        return self.features.extract(self.sent)

    @property
    def subtracts(self) -> bool:
        """Whether the watched coordinates of the model sent are subtracted from those received."""
        is_change = isinstance(self.features, HeadMap)
        return not is_change and (self.updates or "updates" in self.needs)


def read_reply(reply: Reply, wanted: Wanted) -> dict[str, Any]:
    """Return one client's row of each argument of `REPORTED`; None where there is nothing.

    Raises
    ------
    ValueError
        If something that the policy needs is missing or invalid.
    """
    row: dict[str, Any] = dict.fromkeys(REPORTED)
    model = None if reply.model is None else by_name(reply.model)
    for name, array in (model or {}).items():
        check_numbers(array, f"its model's array {name!r}")
    if wanted.watches:
        watched = _watched(reply, wanted)
        if wanted.subtracts:
            watched = watched - wanted.before
        row["updates" if "updates" in wanted.needs else "models"] = watched
    if wanted.statistic is not None and "losses" in wanted.needs:
        if reply.loss is None:
            raise ValueError(f"its {wanted.statistic} loss is wanted, got None")
        row["losses"] = as_number(reply.loss, f"its {wanted.statistic} loss")
    if "norms" in wanted.needs:
        row["norms"] = _norm(reply, model, wanted.sent)
    if reply.seconds is not None:
        row["durations"] = max(as_number(reply.seconds, "its seconds", minimum=0.0), 1e-9)
    return row


def _norm(reply: Reply, model: Mapping[str, NDArray[Any]] | None, sent: Model | None) -> float:
    """Return the norm of a client's whole update."""
    if reply.norm is not None:
        return as_number(reply.norm, "the norm of its update", minimum=0.0)
    if model is None or sent is None:
        raise ValueError("the norm of its update is wanted, got none")
    squares = 0.0
    for name, before in by_name(sent).items():
        if name in model and before.dtype.kind in REAL:
            change = np.subtract(model[name], before, dtype=np.float64).ravel()
            squares += float(change @ change)
    return as_number(squares**0.5, "the norm of its update", minimum=0.0)


def fill_durations(rows: Mapping[Any, dict[str, Any]]) -> None:
    """Let a reply whose duration is unknown count as the slowest of the round.

    `observe` takes the durations of all clients that reported, or none.
    """
    known = [row["durations"] for row in rows.values() if row["durations"] is not None]
    for row in rows.values():
        if known and row["durations"] is None:
            row["durations"] = max(known)


def stack_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `Selector.observe`; None for one that the rows do not hold."""
    if not rows:
        return dict.fromkeys(REPORTED)
    return {n: None if rows[0][n] is None else np.stack([r[n] for r in rows]) for n in REPORTED}


def accepted_rows(
    selector: Selector, ids: IdMap, rows: dict[Any, dict[str, Any]], reasons: dict[Any, str]
) -> dict[Any, dict[str, Any]]:
    """Return the rows that the policy accepts; the others get an entry in `reasons`.

    Parameters
    ----------
    selector : Selector
        With an open round.
    ids : IdMap
    rows : dict
        What `read_reply` returned, by id.
    reasons : dict
        Why clients failed, by id.
    """

    def check(some: list[Any]) -> None:
        stacked = stack_rows([rows[id] for id in some])
        utilities = _unmeasured if "utilities" in selector.needs else None
        slots = [ids.slot(id) for id in some]
        selector.check_report(slots, **stacked, failed=(), utilities=utilities)

    try:
        check(list(rows))  # all at once: the cost of one check grows with all clients
        return rows
    except Exception:  # one of them is invalid: which?
        accepted = {}
    for id in rows:
        try:
            check([id])
            accepted[id] = rows[id]
        except Exception as error:  # no content of a reply may end the round
            reasons[id] = brief(error)
    return accepted


def _unmeasured(clients: Any) -> float:
    """Stand for the server's measure of utility, which only `observe` calls."""
    return 0.0


def _watched(reply: Reply, wanted: Wanted) -> np.ndarray:
    """Return the watched coordinates of a reply, of real numbers and of the right number."""
    features = wanted.features
    if reply.watched is None:
        if reply.model is None or features is None:
            raise ValueError("its watched coordinates are wanted, got none")
        watched = _extract(features, reply.model, wanted.sent)
    else:
        watched = np.asarray(reply.watched)
    if watched.dtype.kind not in REAL:
        raise ValueError(f"its watched coordinates must be numbers, got {watched.dtype}")
    if features is not None and watched.shape != (features.n_features,):
        raise ValueError(
            f"its watched coordinates must have shape ({features.n_features},), got {watched.shape}"
        )
    if watched.dtype not in (np.float32, np.float64):
        with np.errstate(over="ignore"):  # an overflow becomes Inf, which is refused
            watched = watched.astype(np.float64)
    check_numbers(watched, "its watched coordinates")
    return watched


def _extract(features: FeatureMap | HeadMap, model: Model, sent: Model | None) -> np.ndarray:
    """Return the watched coordinates of a model received."""
    if isinstance(features, FeatureMap):
        return np.asarray(features.extract(model))
    if sent is None:
        raise ValueError("sent must be given to watch the output layer's update, got None")
    return np.asarray(features.updates([model], sent)[0])
