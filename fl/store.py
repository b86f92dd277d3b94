"""Records of rounds in, the folder of a run out: settings, one line per round, a checkpoint.

``config.json`` and ``facts.json`` are written first; ``rounds.jsonl`` grows by a line each
round; ``checkpoint.npz`` is replaced every few rounds; ``model.safetensors`` and
``best.safetensors`` are written at the end, and ``summary.json`` comes last. A run
killed at any moment continues from its checkpoint: later lines, whole or broken, are cut off,
and their rounds run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

from cvrcore.state import load_state, save_state

from .config import FREE_SETTINGS, ConfigError, RunConfig
from .history import History, Record
from .outputs import FILES, Outputs, read_models, write_models
from .plugins import BUILT_IN_MODELS
from .records import StoreError as StoreError
from .records import check_facts, read_regular, read_rounds
from .records import read_json as read_json


class FolderInUse(StoreError):
    """A run folder that another process writes to at this moment."""


class RunStore:
    """Keeps one run in one folder; use it as a context manager.

    Parameters
    ----------
    folder : path
        Made if missing. It must be empty, or hold a run of the same config.
    config : RunConfig
    resume : bool
        Continue a run that the folder holds; without it, such a folder is refused.
    longer : bool
        The run that the folder holds may have fewer rounds; `restore` writes the new number.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: RunConfig,
        resume: bool = False,
        longer: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self._config = config
        self._rounds: IO[bytes] | None = None
        self._fresh = self._begun = False  # config.json is ours; a round was written
        self._longer = longer
        with self._reported("opened"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._refuse_other_files()
            self._refuse_links()
            self._lock = _lock(self.folder / ".lock")
            try:
                self._claim(resume)
            except BaseException:
                self._lock.close()
                raise

    def restore(self) -> tuple[list[Record], dict[str, Any] | None]:
        """Return the rounds before the checkpoint and its state; cut off what follows."""
        path, records, state = self.folder / "rounds.jsonl", [], None
        with self._reported("read"):
            if (self.folder / "checkpoint.npz").exists():
                try:
                    state = load_state(self.folder / "checkpoint.npz")
                except ValueError as error:
                    raise StoreError(
                        f"{error}; delete it to run again from the first round"
                    ) from None
                wanted = int(state["rounds"])
                lines = read_regular(path).split(b"\n")[:-1] if path.exists() else []
                try:
                    records = [json.loads(line) for line in lines[:wanted]]
                except (ValueError, RecursionError) as error:
                    raise StoreError(f"{path} is damaged: {error}") from None
                if len(records) < wanted:
                    raise StoreError(
                        f"{path} holds {len(records)} of the {wanted} rounds before its "
                        "checkpoint; delete the folder to run again"
                    )
            if self._longer:
                write_json(self.folder / "config.json", self._config.to_dict())
            if len(records) < self._config.rounds:  # a summary means that a run is complete
                (self.folder / "summary.json").unlink(missing_ok=True)
            kept = sum(len(line) + 1 for line in lines[:wanted]) if state else 0
            self._rounds = path.open("r+b" if path.exists() else "w+b")
            self._rounds.truncate(kept)
            self._rounds.seek(kept)
        return records, state

    def read_facts(self) -> Record | None:
        """Return what was found when the run of the folder was set up, if it holds one."""
        path = self.folder / "facts.json"
        found: Record | None = read_json(path) if path.exists() else None
        return found

    def models(self, outputs: Outputs | None, facts: Record) -> None:
        """Write the final and the best models, as safetensors."""
        if outputs is None:
            return
        told = {name: facts[name] for name in ("model", "algorithm", "policy")}
        with self._reported("written"):
            for which in FILES:
                write_models(self.folder, which, outputs.states(which), told)

    def facts(self, facts: Record) -> None:
        """Write what was found when the run was set up."""
        self._write("facts.json", facts)

    def append(self, record: Record) -> None:
        """Write the line of one round."""
        if self._rounds is None:
            raise StoreError("restore must come before append")
        self._begun = True
        with self._reported("written"):
            self._rounds.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._rounds.flush()

    def checkpoint(self, rounds: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint; the lines before it reach the disk first."""
        with self._reported("written"):
            if self._rounds is not None:
                os.fsync(self._rounds.fileno())
            save_state(self.folder / "checkpoint.npz", {"rounds": rounds, **state})

    def finish(self, summary: Record) -> None:
        """Write the summary: the run is complete."""
        self._write("summary.json", summary)

    def close(self) -> None:
        """Close the files and release the folder."""
        try:
            if self._rounds is not None:
                with self._reported("written"):
                    self._rounds.close()
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StoreError:
            if error is None:
                raise  # else the first error says more
        if error is not None and self._fresh and not self._begun:
            self._withdraw()

    def _withdraw(self) -> None:
        """Remove the files of a run that failed before its first round."""
        for name in ("config.json", "facts.json", "rounds.jsonl", ".lock"):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it
            self.folder.rmdir()

    def _refuse_other_files(self) -> None:
        """Refuse a folder that holds files other than those of a run; change nothing in it."""
        names = sorted(path.name for path in self.folder.iterdir())
        ours = [name for name in names if name == ".lock" or name.endswith(".part")]
        if "config.json" not in names and len(names) > len(ours):
            other = next(name for name in names if name not in ours)
            raise StoreError(f"{self.folder} must be empty or hold a run, got {other!r}")

    def _refuse_links(self) -> None:
        """Refuse files that are not regular: writing to a link would change its target."""
        for path in self.folder.iterdir():
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise StoreError(f"{path} must be a regular file; delete it, or choose --out")

    def _claim(self, resume: bool) -> None:
        path = self.folder / "config.json"
        if not path.exists():
            self._write("config.json", self._config.to_dict())
            self._fresh = True
            return
        held = self._config
        if self._longer:
            held = held.replace(rounds=int(read_json(path)["rounds"]))
        refuse_another(self.folder, held)
        if not resume and (self.folder / "rounds.jsonl").exists():
            raise StoreError(
                f"{self.folder} already holds this run; resume it, or choose another folder"
            )

    def _write(self, name: str, value: Any) -> None:
        with self._reported("written"):
            write_json(self.folder / name, value)

    @contextlib.contextmanager
    def _reported(self, verb: str) -> Iterator[None]:
        """Turn an error of the file system into one clear line."""
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be {verb}: {error}") from error


def read_history(folder: str | os.PathLike[str]) -> History:
    """Return what a run folder holds so far; a half-written last line is left out.

    Raises
    ------
    StoreError
        If the folder holds no run, or a damaged one.
    """
    place = Path(folder)
    if not (place / "config.json").exists():
        raise StoreError(f"{place} holds no run: config.json is missing")
    try:
        config = RunConfig.from_dict(read_json(place / "config.json"))
        path = place / "facts.json"
        facts = check_facts(read_json(path), str(path)) if path.exists() else {}
        path = place / "rounds.jsonl"
        rounds = read_rounds(path, facts) if path.exists() else []
        outputs = Outputs(lambda which: read_models(place, which), _maker(facts))
        return History(config, facts, rounds, outputs)
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{place} holds a damaged run: {error}") from None
    except OSError as error:
        raise StoreError(f"{place} cannot be read: {error}") from None


def _maker(facts: Record) -> Callable[[], Any] | None:
    """Return what makes the module of a run, if it is one of ours."""
    if "in_shape" not in facts or facts.get("model") not in BUILT_IN_MODELS:
        return None

    def make() -> Any:
        from .models import build_model

        return build_model(facts["model"], facts["in_shape"], facts["n_classes"])

    return make


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file beside its place, then rename it."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def refuse_another(folder: Path, config: RunConfig) -> None:
    """Raise `StoreError` if a folder holds a run of another config."""
    if not (folder / "config.json").exists():
        return
    # Through RunConfig: a setting that is newer than the folder has its default there.
    held = read_json(folder / "config.json")
    with contextlib.suppress(ConfigError):
        held = RunConfig.from_dict(held).to_dict()
    difference = _first_difference(held, config.to_dict())
    if difference:
        raise StoreError(
            f"{folder} holds a run of another config: {difference}; choose another folder, "
            "or delete this one"
        )


def _first_difference(ours: Any, theirs: Any, path: str = "") -> str:
    """Name the first setting that differs, or return an empty string."""
    if path in FREE_SETTINGS:
        return ""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            where = f"{path}.{key}" if path else key
            found = _first_difference(ours.get(key), theirs.get(key), where)
            if found:
                return found
        return ""
    # Through JSON: a tuple that was written comes back as a list.
    same = json.dumps(ours) == json.dumps(theirs)
    return "" if same else f"its {path} is {ours!r}, not {theirs!r}"


def _lock(path: Path) -> IO[str]:
    """Hold the folder for this process; the lock ends with it, however it ends."""
    file = path.open("a")
    try:
        import fcntl
    except ImportError:  # not POSIX: no lock to be had
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise FolderInUse(f"{path.parent} is in use by another process") from None
    return file
