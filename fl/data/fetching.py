"""Sources in, files in the user's cache out: checked, bounded in time, mirror by mirror."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from cvrcore.integrations.extras import install_line

from .federation import DataError
from .files import MAX_UNPACKED, Source, cache_dir, locate, search_places

TIMEOUT = 20.0  # seconds without an answer, or without a byte
DEADLINE = 1800.0  # seconds for one file from one mirror
MAX_MEMBERS = 1000
REASON = 100  # characters of the reason why an address failed


def download(
    dataset: str, source: Source, timeout: float = TIMEOUT, deadline: float = DEADLINE
) -> dict[str, Path]:
    """Fetch the files of a data set into the user's cache and return their paths.

    `timeout` bounds the wait for a connection and for each piece of an answer, `deadline`
    one file from one mirror, both in seconds. DataError: no mirror delivers a file with the
    published md5.
    """
    folder = cache_dir() / source.folder
    for item in source.downloads:
        path = retrieve(dataset, item.name, f"md5:{item.md5}", item.urls, folder, timeout, deadline)
        if _is_archive(path):
            unpack(path, folder, _names(source))
            path.unlink()  # its content is now twice on disk
    files = locate(source, cache_dir())
    if files is None:
        raise DataError(f"{dataset}: the files downloaded to {folder} are not complete")
    return files


def unpack_local(source: Source, data_dir: str | os.PathLike[str] | None) -> bool:
    """Unpack an official archive that lies in a searched place; say whether one did."""
    known = {item.name: item.md5 for item in source.downloads} | dict(source.archives)
    for place in search_places(data_dir):
        for name, md5 in known.items():
            for path in (place / source.folder / name, place / name):
                if _is_archive(path) and os.path.isfile(path) and _file_md5(path) == md5:
                    unpack(path, cache_dir() / source.folder, _names(source))
                    return True
    return False


def unpack(archive: Path, folder: Path, names: Collection[str]) -> None:
    """Take the files called `names` out of a .tar.gz, flat, into `folder`.

    Members are chosen by base name among regular files and pass tarfile's "data" filter;
    each appears in `folder` only once complete.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder) as scratch,
            tarfile.open(archive, "r:gz") as tar,
        ):
            for count, member in enumerate(tar):
                if count >= MAX_MEMBERS:
                    raise DataError(f"{archive} must hold at most {MAX_MEMBERS} members")
                name = Path(member.name).name
                if member.isfile() and name in names:
                    if member.size > MAX_UNPACKED:
                        raise DataError(f"{archive}: {name} must be below {MAX_UNPACKED} bytes")
                    # Renamed first: a path of the archive is never joined to the folder.
                    tar.extract(member.replace(name=name, deep=False), scratch, filter="data")
                    os.replace(Path(scratch) / name, folder / name)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{archive} cannot be unpacked into {folder}: {error}") from error


def retrieve(
    dataset: str,
    name: str,
    known_hash: str,
    urls: Sequence[str],
    folder: Path,
    timeout: float = TIMEOUT,
    deadline: float = DEADLINE,
) -> Path:
    """Fetch the file `name` into `folder` from the first address that delivers it whole.

    `known_hash` is its checksum with the algorithm, as in ``"md5:..."``.
    """
    try:
        import pooch
    except ImportError as error:
        raise DataError(f"{dataset}: downloading needs pooch: {install_line('fl')}") from error
    failures = []
    for url in urls:
        try:
            with _Progress(name, deadline) as progress:
                downloader = pooch.HTTPDownloader(
                    progressbar=progress, chunk_size=1 << 16, timeout=timeout
                )
                return Path(
                    pooch.retrieve(
                        url,
                        known_hash=known_hash,
                        fname=name,
                        path=folder,
                        downloader=downloader,
                    )
                )
        except (OSError, ValueError) as error:  # the network's errors are OSErrors
            failures.append(f"  {url}: {_reason(error)}")
    reasons = "\n".join(failures)
    raise DataError(f"{dataset}: {name} could not be downloaded from\n{reasons}")


class _Progress:
    """A bar on the terminal, in the form pooch drives, that also enforces the deadline."""

    def __init__(self, name: str, deadline: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

        self._limit = time.monotonic() + deadline
        self._deadline = deadline
        self._bar = Progress(
            "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        )  # fmt: skip
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    @property
    def total(self) -> float | None:
        """Bytes announced by the server; 0 if it did not say."""
        return self._bar.tasks[0].total

    @total.setter
    def total(self, value: float) -> None:
        self._bar.update(self._task, total=value or None)

    def update(self, n_bytes: int) -> None:
        """Advance the bar."""
        self._bar.advance(self._task, n_bytes)
        if time.monotonic() > self._limit:
            raise TimeoutError(f"not complete after {self._deadline:g} s")

    def reset(self) -> None:
        """Return to zero, as pooch does before the final update."""
        self._bar.reset(self._task)

    def close(self) -> None:
        """Do nothing: leaving the context closes the bar."""


def _names(source: Source) -> set[str]:
    return {name for form in source.forms for name in form.md5}


def _is_archive(path: Path) -> bool:
    return path.name.endswith(".tar.gz")


def _file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _reason(error: Exception) -> str:
    """One short line: of a failed connection its innermost cause, else the message itself."""
    cause = getattr(error.args[0], "reason", error) if error.args else error
    line = (str(cause).splitlines() or [type(error).__name__])[0]
    if "resolve" in line:
        return "the host name cannot be resolved; is there a network?"
    return re.sub(r"^\w+\(host=.*?\): ", "", line)[:REASON]
