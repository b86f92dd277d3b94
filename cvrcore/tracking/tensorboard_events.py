"""Rounds in, event files of TensorBoard out; neither torch nor TensorFlow is imported."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np

from ..integrations.extras import require
from .base import Summary, Tracker
from .records import Facts, RoundRecord
from .views import PickHistory, png


class TensorBoardTracker(Tracker):
    """Writes scalars, histograms (coalition sizes, shares), the image of picks, and texts.

    Parameters
    ----------
    folder : path
        ``tensorboard --logdir FOLDER`` shows it.
    image_every : int
        Rounds between two images of who was picked; one more is written at the end.
    """

    name = "tensorboard"

    def __init__(self, folder: str | os.PathLike[str], image_every: int = 10) -> None:
        require("tensorboard", "2.16", "track")
        self._folder, self._image_every = os.fspath(folder), image_every
        self._history = PickHistory()
        self._last = 0
        self._writer: Any = None

    def start(self, facts: Facts) -> None:
        """Open the event file; a continued run hides the steps after ``facts.done``."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        os.makedirs(self._folder, exist_ok=True)
        self._history = PickHistory(facts.earlier)
        self._writer = EventFileWriter(self._folder)
        if facts.done:
            self._event(facts.done + 1, session_log=SessionLog(status=SessionLog.START))
        told = {**facts.plain(), **facts.settings}
        text = "\n".join(f"    {name}: {value}" for name, value in told.items())
        self._event(facts.done, summary=text_pb("run", text))

    def round(self, record: RoundRecord) -> None:
        """Write one round."""
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        step = self._last = record.round
        self._history.add(record)
        for name, value in record.scalars().items():
            self._event(step, summary=scalar_pb(name, value))
        if record.coalition_sizes:
            self._histogram("coalitions/sizes", record.coalition_sizes, step)
        if record.incidents:
            lines = [f"    client {i.client}: {i.kind}, {i.detail}" for i in record.incidents]
            self._event(step, summary=text_pb("guards/incidents_of_round", "\n".join(lines)))
        if step % self._image_every == 0:
            self._views(step)
        self._writer.flush()

    def finish(self, summary: Summary) -> None:
        """Write the last image and the summary, and close the file."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        if self._writer is None:
            return
        if self._last % self._image_every:
            self._views(self._last)
        if summary:
            text = json.dumps(dict(summary), default=str, indent=1).replace("\n", "\n    ")
            self._event(self._last, summary=text_pb("summary", f"    {text}"))
        self._writer.close()

    def _views(self, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary as Values

        image = self._history.image()
        height, width, _ = image.shape
        encoded = Values.Image(
            height=height, width=width, colorspace=3, encoded_image_string=png(image)
        )
        value = Values.Value(tag="selection/who_was_picked", image=encoded)
        self._event(step, summary=Values(value=[value]))
        self._histogram("selection/share_by_client", self._history.shares, step)

    def _histogram(self, tag: str, values: Any, step: int) -> None:
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb

        data = np.asarray(values, dtype=np.float64)
        self._event(step, summary=histogram_pb(tag, data))

    def _event(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))
