"""Rounds in, a run of Weights & Biases out; offline, unless the caller asks for more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..integrations.extras import require
from .base import Summary, Tracker
from .records import Facts, RoundRecord, read_run_id
from .views import PickHistory, png

MAX_ROWS = 10_000  # of a table


class WandbTracker(Tracker):
    """Logs to an offline run; ``wandb sync FOLDER/wandb/offline-run-*`` uploads it.

    Parameters
    ----------
    folder : path
        Made if missing.
    project : str
    mode : {"offline", "online", "disabled"}, optional
        Default: ``WANDB_MODE`` of the environment, or "offline".
    image_every : int
        Rounds between two images of who was picked; one more is logged at the end.
    """

    name = "wandb"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        project: str = "cvrcore",
        mode: str | None = None,
        image_every: int = 10,
    ) -> None:
        require("wandb", "0.19", "track")
        self._folder, self._project = Path(folder), project
        self._mode = mode or os.environ.get("WANDB_MODE") or "offline"
        self._image_every = image_every
        self._history = PickHistory()
        self._incidents: list[list[Any]] = []
        self._last = 0
        self._run: Any = None

    def start(self, facts: Facts) -> None:
        """Begin a run; a continued run keeps the id of its first part."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        self._history = PickHistory(facts.earlier)
        note = self._folder / "run_id.txt"
        known = read_run_id(note) if facts.done else None
        self._run = wandb.init(
            project=self._project,
            name=facts.title,
            id=known,
            resume="allow" if known else None,
            dir=str(self._folder),
            mode=self._mode,
            config={**facts.plain(), **facts.settings},
            settings=wandb.Settings(silent=True, console="off", init_timeout=60),
        )
        note.write_text(self._run.id, encoding="utf-8")

    def round(self, record: RoundRecord) -> None:
        """Log one round as one step."""
        import wandb

        self._history.add(record)
        self._last = record.round
        row: dict[str, Any] = dict(record.scalars())
        if record.coalition_sizes:
            row["coalitions/sizes"] = wandb.Histogram(list(record.coalition_sizes))
        room = MAX_ROWS - len(self._incidents)
        found = [[record.round, i.client, i.kind, i.detail] for i in record.incidents]
        self._incidents += found[:room]
        if record.round % self._image_every == 0:
            row |= self._views()
        self._run.log(row, step=record.round)

    def finish(self, summary: Summary) -> None:
        """Log the last image and the tables, and end the run."""
        import wandb

        if self._run is None:
            return
        names, counts, shares = self._history.names, self._history.counts, self._history.shares
        order = (-counts).argsort(kind="stable")[:MAX_ROWS].tolist()
        rows = [[k, names.get(k, str(k)), int(counts[k]), float(shares[k])] for k in order]
        last = self._views()
        last["selection/shares"] = wandb.Table(["client", "name", "picks", "share"], rows)
        columns = ["round", "client", "kind", "detail"]
        last["guards/incident_list"] = wandb.Table(columns, self._incidents)
        self._run.log(last, step=self._last)
        self._run.summary.update({f"summary/{name}": value for name, value in summary.items()})
        self._run.finish()

    def _views(self) -> dict[str, Any]:
        import wandb

        path = self._folder / "who_was_picked.png"
        path.write_bytes(png(self._history.image()))
        return {
            "selection/who_was_picked": wandb.Image(str(path)),
            "selection/share_by_client": wandb.Histogram(self._history.shares.tolist()),
        }
