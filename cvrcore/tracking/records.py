"""What trackers are told: facts of a run, one record a round; plain values, any framework."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..guards import Incident
from ..selection import Selection

MAX_NAME: Final = 80  # characters of a client's or metric's name that are kept
MAX_METRICS: Final = 100  # of one round
MAX_CLIENTS: Final = 10_000_000
_ODD = re.compile(r"[^\w.\-/ ]")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known before the first round.

    Attributes
    ----------
    title : str
        One line for people, such as ``"fedcvr-bolt on digits, seed 0"``.
    policy : str
        Name of the selection policy.
    n_clients : int
        Clients known so far; more may join.
    n_rounds : int, optional
        Rounds that the run is to have.
    done : int
        Rounds of earlier processes that the run continues after.
    metric : str
        The main metric among `RoundRecord.metrics`.
    settings : mapping
        Settings of the run by name, plain values.
    earlier : sequence of RoundRecord
        The rounds before, as far as they are known, for pictures of the whole run.

    Examples
    --------
    >>> Facts("oort on digits", policy="oort", n_clients=20).plain()["policy"]
    'oort'
    """

    title: str
    policy: str
    n_clients: int = 0
    n_rounds: int | None = None
    done: int = 0
    metric: str = "accuracy"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    earlier: Sequence[RoundRecord] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON, without settings and rounds."""
        names = ("title", "policy", "n_clients", "n_rounds", "done", "metric")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Pick:
    """One client of a round and why it was picked.

    `client` is the number of its slot, `name` the id that the framework gives it. `coalition`,
    `score` and `probability` (of the law inside its coalition, or over all clients) are None
    where the policy has none. `reason` says why it failed, if it did and the reason is known.

    Examples
    --------
    >>> Pick(client=3, name="site-a", probability=0.25).reported
    True
    """

    client: int
    name: str
    coalition: int | None = None
    score: float | None = None
    probability: float | None = None
    reported: bool = True
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Some clients in the plane: lists of equal length; see `cvrcore.tracking.projection`.

    Examples
    --------
    >>> Snapshot(clients=[4, 7], x=[0.0, 1.0], y=[0.5, -0.5]).coalitions is None
    True
    """

    clients: Sequence[int]
    x: Sequence[float]
    y: Sequence[float]
    coalitions: Sequence[int] | None = None
    scores: Sequence[float | None] | None = None
    probabilities: Sequence[float | None] | None = None


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One round, complete with the evaluation that followed it.

    Attributes
    ----------
    round : int
        Its number, from 1.
    n_clients, available : int
        Clients known and clients reachable.
    warmup : bool
        Whether the policy drew uniformly because it had not learnt yet.
    picks : sequence of Pick
        Empty if the round was skipped.
    coalition_sizes : sequence of int
        Empty for a policy without coalitions.
    incidents : sequence of Incident
        What guards did in this round.
    metrics : mapping
        Numbers by name, such as ``{"accuracy": 0.9}``.
    seconds : mapping
        Wall-clock seconds by part of the round.
    snapshot : Snapshot, optional
        Clients in the plane, every few rounds and only if a tracker asks for it.

    Examples
    --------
    >>> picks = [Pick(0, "a"), Pick(4, "e", reported=False)]
    >>> record = RoundRecord(round=1, n_clients=5, picks=picks, metrics={"accuracy": 0.9})
    >>> record.scalars()["selection/failed"], record.phase
    (1, 'policy')
    """

    round: int
    n_clients: int
    available: int = 0
    warmup: bool = False
    picks: Sequence[Pick] = ()
    coalition_sizes: Sequence[int] = ()
    incidents: Sequence[Incident] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    snapshot: Snapshot | None = None

    @property
    def phase(self) -> str:
        """Return ``"skipped"``, ``"warm-up"`` or ``"policy"``."""
        return "skipped" if not self.picks else "warm-up" if self.warmup else "policy"

    def scalars(self) -> dict[str, float]:
        """Return the round as named numbers, the same names for every tool."""
        failed = sum(not pick.reported for pick in self.picks)
        found: dict[str, float] = {
            "selection/available": self.available,
            "selection/picked": len(self.picks),
            "selection/failed": failed,
            "selection/warmup": float(self.warmup),
            "guards/incidents": len(self.incidents),
        }
        if self.coalition_sizes:
            found["coalitions/number"] = len(self.coalition_sizes)
            found["coalitions/largest"] = max(self.coalition_sizes)
        found |= {f"metrics/{name}": value for name, value in self.metrics.items()}
        found |= {f"seconds/{name}": value for name, value in self.seconds.items()}
        return found

    def plain(self) -> dict[str, Any]:
        """Return nested plain values for JSON; numbers that are not finite become None."""
        return _plain(dataclasses.asdict(self))


def clean_name(name: Any) -> str:
    """Return a name of a client or metric in one short line of printable characters."""
    text = "".join(c if c.isprintable() else "?" for c in str(name)[: 4 * MAX_NAME])
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."


def clean_numbers(values: Mapping[Any, Any]) -> dict[str, float]:
    """Return the finite numbers of a mapping by names that every tool accepts.

    Metrics may come from clients: what is no number is left out, and so is all that is beyond
    `MAX_METRICS`.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, (bool, np.bool_)) or not isinstance(
            value, (int, float, np.integer, np.floating)
        ):
            continue
        try:
            number = float(value)
        except OverflowError:
            continue
        if math.isfinite(number) and len(found) < MAX_METRICS:
            found[_ODD.sub("_", clean_name(name))] = number
    return found


def read_run_id(path: Path) -> str | None:
    """Return the id of a run that a tracker noted in a file; None if it holds no valid one."""
    if not path.is_file():
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(MAX_NAME).strip()
    return text if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) else None


def describe_picks(
    selection: Selection,
    names: Sequence[Any] | None = None,
    reported: Sequence[int] | None = None,
    reasons: Mapping[int, str] | None = None,
) -> list[Pick]:
    """Return the picks of a selection.

    Parameters
    ----------
    selection : Selection
    names : sequence, optional
        Ids of the picked clients in the same order. Default: their numbers.
    reported : sequence of int, optional
        Clients whose replies were used. Default: all.
    reasons : mapping, optional
        Why others failed, by client.
    """
    clients = selection.clients.tolist()
    used = set(clients if reported is None else reported)
    told = [clean_name(name) for name in (clients if names is None else names)]

    def entry(values: np.ndarray | None, client: int) -> float | None:
        if values is None:
            return None
        number = float(values[client])
        return number if math.isfinite(number) else None

    return [
        Pick(
            client,
            name,
            None if selection.coalitions is None else int(selection.coalitions[client]),
            entry(selection.scores, client),
            entry(selection.probabilities, client),
            client in used,
            clean_name((reasons or {}).get(client, "")),
        )
        for client, name in zip(clients, told, strict=True)
    ]


def coalition_sizes(selection: Selection) -> list[int]:
    """Return the sizes of a selection's coalitions; empty if it has none."""
    labels = selection.coalitions
    return [] if labels is None else [int(n) for n in np.bincount(labels)]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
