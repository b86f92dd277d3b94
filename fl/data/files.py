"""Where data files may lie, and whether they are the official ones.

Places are searched in this order: the `data_dir` argument, ``$CVRCORE_DATA``, the user's
cache, then places known to one data set (a distribution's package). In each place the
files may lie in a sub-folder of the usual name or directly, plain, as .gz or as .xz.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from .federation import DataError

PACKINGS = ("", ".gz", ".xz")
MAX_UNPACKED = 1 << 30  # no supported file comes near; a lying one stops here
CHUNK = 1 << 20

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Form:
    """One form in which the training files of a data set come.

    Parameters
    ----------
    folders : tuple of str
        Sub-folders that may hold them.
    md5 : mapping of str to str
        The md5 of each file, unpacked, by name.
    foreign : frozenset of str
        The md5 of namesakes: another data set's files that must not be taken for these.
    """

    folders: tuple[str, ...]
    md5: Mapping[str, str]
    foreign: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Download:
    """A file or .tar.gz archive to fetch: its name, md5 and addresses in order of trial."""

    name: str
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Every form of a data set's files, and what to download when none is found.

    Parameters
    ----------
    folder : str
        Sub-folder for downloads; searched like those of the forms.
    forms : tuple of Form
        In order of preference.
    downloads : tuple of Download
        All of them are needed.
    archives : mapping of str to str
        The md5 of further official archives that are unpacked where found.
    places : tuple of str
        Folders searched last.
    """

    folder: str
    forms: tuple[Form, ...]
    downloads: tuple[Download, ...]
    archives: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileCheck:
    """One expected file: `status` is "ok", "missing", "differs" or "damaged".

    Examples
    --------
    >>> FileCheck("train-images", None, "missing").status
    'missing'
    """

    name: str
    path: Path | None
    status: str
    detail: str = ""


def cache_dir() -> Path:
    """Return the user's cache folder, where downloads go; it may not exist yet.

    Examples
    --------
    >>> cache_dir().is_absolute()
    True
    """
    import platformdirs

    return Path(platformdirs.user_cache_path("cvrcore", appauthor=False)) / "data"


def search_places(data_dir: PathLike | None = None) -> list[Path]:
    """Return the folders searched, in order.

    Examples
    --------
    >>> str(search_places("my-data")[0])
    'my-data'
    """
    places = [data_dir, os.environ.get("CVRCORE_DATA") or None, cache_dir()]
    return [Path(place).expanduser() for place in places if place is not None]


def locate(source: Source, data_dir: PathLike | None = None) -> dict[str, Path] | None:
    """Return the path of each training file by name, or None if no place has them all."""
    for place in [*search_places(data_dir), *map(Path, source.places)]:
        for form in source.forms:
            for folder in (source.folder, *form.folders, "."):
                paths = {name: _packed(place / folder / name) for name in form.md5}
                files = {name: path for name, path in paths.items() if path is not None}
                if len(files) == len(paths) and not _is_foreign(files, form, folder):
                    return files
    return None


def verify(source: Source, data_dir: PathLike | None = None) -> list[FileCheck]:
    """Compare each training file with its published md5; all missing if none is found."""
    files = locate(source, data_dir)
    if files is None:
        return [FileCheck(name, None, "missing") for name in source.forms[0].md5]
    expected = {name: md5 for form in source.forms for name, md5 in form.md5.items()}
    checks = []
    for name, path in files.items():
        try:
            digest = unpacked_md5(path)
        except DataError as error:
            checks.append(FileCheck(name, path, "damaged", str(error)))
            continue
        same = digest == expected[name]
        detail = "" if same else f"md5 must be {expected[name]}, got {digest}"
        checks.append(FileCheck(name, path, "ok" if same else "differs", detail))
    return checks


def read_unpacked(path: Path, limit: int = MAX_UNPACKED) -> bytes:
    """Return the content of a plain, .gz or .xz file; more than `limit` bytes is an error."""
    chunks, size = [], 0
    for chunk in _chunks(path):
        size += len(chunk)
        if size > limit:
            raise DataError(f"{path} must unpack to at most {limit} bytes, got more")
        chunks.append(chunk)
    return b"".join(chunks)


def unpacked_md5(path: Path) -> str:
    """Return the md5 of the unpacked content."""
    digest = hashlib.md5(usedforsecurity=False)
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def md5_of(data: bytes) -> str:
    """Return the md5 of `data`, to compare with a published one."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def missing_message(dataset: str, source: Source, data_dir: PathLike | None) -> str:
    """Say which files to put where."""
    form = source.forms[0]
    wanted = f"{', '.join(form.md5)} (plain, .gz or .xz)"
    archives = [item.name for item in source.downloads if item.name.endswith(".tar.gz")]
    if archives:
        wanted += f", or the archive {archives[0]},"
    places = "\n".join(f"  {place / source.folder}" for place in search_places(data_dir))
    published = "\n".join(f"  {item.urls[0]}" for item in source.downloads)
    return (
        f"{dataset}: data not found. Put {wanted} into one of\n{places}\n"
        f"or name their folder by data_dir or $CVRCORE_DATA. Published as\n{published}"
    )


def _packed(path: Path) -> Path | None:
    """Return `path` as it is packed on disk."""
    for packing in PACKINGS:
        candidate = path.with_name(path.name + packing)
        if os.path.isfile(candidate):  # False, too, where access is denied
            return candidate
    return None


def _is_foreign(files: Mapping[str, Path], form: Form, folder: str) -> bool:
    """Whether files lying loose are another data set's; a folder's name settles it."""
    if folder != "." or not form.foreign:
        return False
    smallest = min(files.values(), key=lambda path: path.stat().st_size)
    try:
        return unpacked_md5(smallest) in form.foreign
    except DataError:
        return False  # damaged: the reader says so


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path))
    return path.open("rb")


def _chunks(path: Path) -> Iterator[bytes]:
    """Read a file piece by piece, unpacking by its suffix."""
    try:
        with _open(path) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
