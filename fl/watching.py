"""The folder of a run in, its live page out: files are read again as they grow, and checked."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, Final

from cvrcore.tracking import RoundRecord
from cvrcore.tracking.details import FILE
from cvrcore.tracking.reading import read_record
from cvrcore.watch import Board

from .history import TIMING, History
from .records import StoreError, check_plain, read_json, read_regular
from .store import read_history
from .tracking import FOLDER, round_record, run_facts

#: Details of rounds in the folder of a run, see `cvrcore.tracking.details`.
DETAILS: Final = Path(FOLDER) / "details" / FILE
_FILES: Final = ("config.json", "facts.json", "rounds.jsonl", "summary.json", str(DETAILS))
MIN_WAIT, MAX_WAIT = 0.5, 10.0  # seconds between two looks
SILENT: Final = 30.0  # seconds without a round, at least, until a run counts as silent


class RunFollower:
    """Keeps a board up to date with the folder of a run.

    Parameters
    ----------
    folder : path
    board : Board

    Raises
    ------
    StoreError
        If the folder holds no run at all.
    """

    def __init__(self, folder: str | os.PathLike[str], board: Board) -> None:
        self._folder, self._board = Path(folder), board
        if not (self._folder / "config.json").exists():
            raise StoreError(f"{self._folder} holds no run: config.json is missing")
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._begun: Any = None  # config of the run that the board shows
        self._n_rounds = 0
        self._changed = time.time()
        self._pace = 0.0  # median seconds of a round
        self._last = "running", ""
        self.wait = MIN_WAIT

    def poll(self) -> None:
        """Read what has changed; a damaged file is told on the page and raises nothing."""
        began = time.monotonic()
        found = [_stamp(self._folder / name) for name in _FILES]
        if found != self._seen:
            self._seen = found
            try:
                self._read()
            except StoreError as error:
                self._last = "problem", str(error)
        state, text = self._last
        age = time.time() - self._changed
        if state == "running" and age > max(SILENT, 20 * self._pace):
            state = "silent"
            text = "no new round for a while: it is slow, or was stopped (cvrcore resume RUN)"
        if state != "finished":
            self._board.status(state, text)
        # A large file is read less often.
        self.wait = min(max(MIN_WAIT, 10 * (time.monotonic() - began)), MAX_WAIT)

    def _read(self) -> None:
        history = read_history(self._folder)
        n_clients = int(history.facts.get("n_clients", history.config.data.n_clients))
        details, problem = self._details(n_clients)
        if history.config != self._begun or len(history) < self._n_rounds:  # resumed, or replaced
            self._board.begin(run_facts(History(history.config, history.facts)))
            self._begun = history.config
        for record in history:
            own = round_record(record, n_clients)
            detail = details.get(own.round)
            same = detail is not None and [p.client for p in detail.picks] == record.get("picked")
            self._board.put(detail if same and detail is not None else own)
        self._n_rounds = len(history)
        stamps = [stamp[1] for stamp in (self._seen or [])[1:3] if stamp is not None]
        self._changed = max(stamps, default=0) / 1e9
        recent = [r[TIMING].get("round", 0.0) for r in history.rounds[-20:] if TIMING in r]
        self._pace = statistics.median(recent) if recent else 0.0
        path = self._folder / "summary.json"
        self._last = "running", problem
        if path.exists():
            self._last = "finished", problem
            self._board.status("finished", problem, _summary(path))

    def _details(self, n_clients: int) -> tuple[dict[int, RoundRecord], str]:
        """Return the details by round, and what is wrong with them if anything is."""
        path = self._folder / DETAILS
        found: dict[int, RoundRecord] = {}
        try:
            lines = read_regular(path).split(b"\n")[:-1] if path.exists() else []
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                value = json.loads(line)
                check_plain(value, where)
                record = read_record(value)
                if record.n_clients != n_clients:
                    raise ValueError(f"n_clients must be {n_clients}, got {record.n_clients}")
                found[record.round] = record
        except (OSError, ValueError, RecursionError, StoreError) as error:
            return found, f"{DETAILS} cannot be used: {error}"
        return found, ""


def _summary(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise StoreError(f"{path} must be a table, got {value!r:.40}")
    return {str(k): v for k, v in value.items() if v is None or isinstance(v, (str, int, float))}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns, about.st_ino
