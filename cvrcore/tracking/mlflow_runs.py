"""Rounds in, a run of MLflow out: metrics by round, settings, image and tables as artifacts."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..guards import Incident
from ..integrations.extras import require
from .base import Summary, Tracker
from .csv_files import spreadsheet_safe
from .records import Facts, RoundRecord, read_run_id
from .views import PickHistory, png

ALLOW = "MLFLOW_ALLOW_FILE_STORE"
MAX_PARAMETERS = 100
MAX_INCIDENTS = 10_000


class MlflowTracker(Tracker):
    """Logs to a folder, or to the server that ``MLFLOW_TRACKING_URI`` names.

    MLflow's global run and address are left alone.

    Parameters
    ----------
    folder : path
        A file store is made here if `uri` is not given and the environment names none.
    uri : str, optional
        Address of a tracking server or store.
    experiment : str
        Name of the experiment; made if missing.
    artifact_every : int
        Rounds between two versions of the image of who was picked.
    """

    name = "mlflow"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        uri: str | None = None,
        experiment: str = "cvrcore",
        artifact_every: int = 50,
    ) -> None:
        require("mlflow", "2.10", "track", "mlflow-skinny")
        self._folder = Path(folder)
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._experiment, self._every = experiment, artifact_every
        self._history, self._sizes = PickHistory(), list[tuple[int, list[int]]]()
        self._incidents: list[tuple[int, Incident]] = []
        self._client: Any = None
        self._run = ""

    def start(self, facts: Facts) -> None:
        """Make the run, or find the one that is continued."""
        from mlflow.tracking import MlflowClient

        self._folder.mkdir(parents=True, exist_ok=True)
        self._history = PickHistory(facts.earlier)
        with _file_store_allowed():
            self._client = MlflowClient(self._uri or (self._folder / "store").resolve().as_uri())
            found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._make_experiment()
        note = self._folder / "run_id.txt"
        if facts.done and (known := read_run_id(note)):
            self._run = known
            self._client.update_run(self._run, status="RUNNING")
            return
        made = self._client.create_run(experiment, run_name=facts.title)
        self._run = made.info.run_id
        note.write_text(self._run, encoding="utf-8")
        told = {**facts.plain(), **facts.settings}
        for name, value in list(told.items())[:MAX_PARAMETERS]:
            self._client.log_param(self._run, name, str(value)[:500])

    def round(self, record: RoundRecord) -> None:
        """Log one round in one call."""
        from mlflow.entities import Metric

        self._history.add(record)
        if record.coalition_sizes:
            self._sizes.append((record.round, list(record.coalition_sizes)))
        room = MAX_INCIDENTS - len(self._incidents)
        self._incidents += [(record.round, one) for one in record.incidents][:room]
        now = int(1000 * time.time())
        metrics = [Metric(n, v, now, record.round) for n, v in record.scalars().items()]
        self._client.log_batch(self._run, metrics=metrics)
        if record.round % self._every == 0:
            self._image()

    def finish(self, summary: Summary) -> None:
        """Log image, tables and summary, and end the run."""
        if self._client is None:
            return
        self._image()
        names, shares = self._history.names, self._history.shares
        counts = self._history.counts
        rows = [(k, names.get(k, k), counts[k], shares[k]) for k in range(len(counts))]
        self._table("shares.csv", ("client", "name", "picks", "share"), rows)
        sizes = [(number, " ".join(map(str, sizes))) for number, sizes in self._sizes]
        self._table("coalition_sizes.csv", ("round", "sizes"), sizes)
        incidents = [(number, i.client, i.kind, i.detail) for number, i in self._incidents]
        self._table("incidents.csv", ("round", "client", "kind", "detail"), incidents)
        for name, value in summary.items():
            self._client.set_tag(self._run, f"summary.{name}", str(value)[:500])
        self._client.set_terminated(self._run)

    def _make_experiment(self) -> str:
        with _file_store_allowed():
            made: str = self._client.create_experiment(self._experiment)
        return made

    def _image(self) -> None:
        self._artifact("who_was_picked.png", png(self._history.image()))

    def _table(self, name: str, header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows([header, *([spreadsheet_safe(v) for v in row] for row in rows)])
        self._artifact(name, text.getvalue().encode())

    def _artifact(self, name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder, _file_store_allowed():
            path = Path(folder) / name
            path.write_bytes(content)
            self._client.log_artifact(self._run, str(path), "selection")


@contextlib.contextmanager
def _file_store_allowed() -> Iterator[None]:
    """Let MLflow 3 open a store of plain files, which it refuses unless a variable is set."""
    before = os.environ.get(ALLOW)
    os.environ[ALLOW] = before or "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALLOW]
