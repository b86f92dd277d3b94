"""Records of the loop in, records of `cvrcore.tracking` out."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cvrcore
from cvrcore.tracking import Facts, Pick, RoundRecord, Tracker, make_trackers
from cvrcore.tracking.projection import Projection
from cvrcore.tracking.records import clean_numbers, describe_picks

from .config import RunConfig
from .history import TIMING, History, Record

logger = logging.getLogger("fl")

#: Folder of all trackers in the folder of a run.
FOLDER: Final = "tracking"
#: Entries of a record that are no metrics: counts that trackers get by themselves, and lists.
_OTHER: Final = frozenset({"round", "available", "warmup", "skipped", "probed"})

Decision = tuple[cvrcore.Selector, cvrcore.Selection]


class RunTracking:
    """Gives the rounds of one run to its trackers.

    Parameters
    ----------
    track : sequence of str or Tracker
    config : RunConfig
    folder : path, optional
        The folder of the run. Without one, files go to a new folder in ``./tracking``.
    """

    def __init__(
        self,
        track: Sequence[str | Tracker],
        config: RunConfig,
        folder: str | os.PathLike[str] | None,
    ) -> None:
        place = Path(folder) / FOLDER if folder else Path(FOLDER) / _label(config)
        self._trackers = make_trackers(track, place)
        if self._trackers and folder is None:
            logger.info("trackers write to %s", place)
        self._config, self._n_clients = config, config.data.n_clients
        self._projection = Projection()

    @contextlib.contextmanager
    def following(self, history: History) -> Iterator[None]:
        """Start trackers now and finish them at the end, also of a run that fails."""
        self._n_clients = int(history.facts.get("n_clients", self._n_clients))
        if not self._trackers:
            yield
            return
        self._trackers.start(run_facts(history))
        complete = False
        try:
            yield
            complete = True
        finally:
            self._trackers.finish(history.summary() if complete else {"interrupted": True})

    def round(self, record: Record, decision: Decision | None) -> None:
        """Give one round to every tracker."""
        if not self._trackers:
            return
        wanted = self._trackers.wants_snapshot(record["round"])
        self._trackers.round(
            round_record(record, self._n_clients, decision, self._projection if wanted else None)
        )


def run_facts(history: History) -> Facts:
    """Return what is known of a run before its next round."""
    config, facts = history.config, history.facts
    n_clients = int(facts.get("n_clients", config.data.n_clients))
    return Facts(
        title=f"{config.method} on {config.data.dataset}, seed {config.seed}",
        policy=config.selection.policy,
        n_clients=n_clients,
        n_rounds=config.rounds,
        done=len(history),
        metric=history.metric,
        settings=_flat(config.to_dict()),
        earlier=[round_record(record, n_clients) for record in history],
    )


def round_record(
    record: Record,
    n_clients: int,
    decision: Decision | None = None,
    projection: Projection | None = None,
) -> RoundRecord:
    """Return a round of the loop as trackers know it.

    Parameters
    ----------
    record : dict
        As in ``rounds.jsonl``.
    n_clients : int
    decision : tuple of Selector and Selection, optional
        Why clients were picked; a record in a file has lost it.
    projection : Projection, optional
        Makes the picture of clients in the plane, if it is wanted.
    """
    reported = record.get("reported", [])
    picked = record.get("picked", [])
    picks = [Pick(k, str(k), reported=k in set(reported)) for k in picked]
    incidents: Sequence[cvrcore.Incident] = ()
    snapshot = None
    if decision is not None:
        selector, selection = decision
        picks = describe_picks(selection, reported=reported)
        incidents = [one for one in selector.incidents if one.round == selection.round]
        snapshot = projection.snapshot(selector, selection) if projection else None
    return RoundRecord(
        round=record["round"],
        n_clients=n_clients,
        available=int(record.get("available", 0)),
        warmup=bool(record.get("warmup", False)),
        picks=picks,
        coalition_sizes=record.get("coalition_sizes", ()),
        incidents=incidents,
        metrics=clean_numbers({k: v for k, v in record.items() if k not in _OTHER}),
        seconds=clean_numbers(record.get(TIMING, {})),
        snapshot=snapshot,
    )


def _label(config: RunConfig) -> str:
    now = time.strftime("%Y%m%d-%H%M%S")
    return f"{config.method}-{config.data.dataset}-seed{config.seed}-{now}".replace("/", "-")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names, as plain values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            plain = value is None or isinstance(value, (bool, int, float, str))
            found[prefix + name] = value if plain else str(value)
    return found
