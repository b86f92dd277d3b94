"""Downloads from several mirrors, and archives unpacked inside their folder."""

import os
import tarfile

import pytest
from data_files import (
    cifar10_records,
    cifar_archive,
)
from typer.testing import CliRunner

from fl.cli import app
from fl.data import DATASETS, DataError, cache_dir, fetch, find_files
from fl.data.fetching import _Progress, unpack
from fl.data.packages import Package

pytestmark = pytest.mark.usefixtures("alone")


def test_second_mirror_is_tried_and_its_archive_unpacked(tmp_path, monkeypatch):
    asked = []

    def retrieve(url, known_hash, fname, path, downloader):
        asked.append(url)
        if len(asked) == 1:
            raise ValueError("hash differs")
        assert known_hash == "md5:c32a1d4ab5d03f1284b67883e8d87530"
        assert downloader.kwargs["timeout"] > 0
        path.mkdir(parents=True)
        batches = cifar10_records().items()
        cifar_archive(path / fname, {f"cifar-10-batches-bin/{n}": data for n, data in batches})
        return str(path / fname)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    files = fetch("cifar10")
    assert len(asked) == 2
    assert sorted(files) == sorted(cifar10_records())
    assert {path.parent for path in files.values()} == {cache_dir() / "cifar10"}
    assert not list(cache_dir().rglob("*.tar.gz"))
    assert fetch("cifar10") == files
    assert len(asked) == 2


def test_a_failed_download_has_one_address_a_line_with_a_short_reason(monkeypatch):
    from requests.exceptions import ConnectionError as Refused
    from urllib3.exceptions import MaxRetryError, NameResolutionError

    def retrieve(url, **options):
        host = url.split("/")[2]
        if host.startswith("www"):
            cause = NameResolutionError(host, None, OSError("Name or service not known"))
            raise Refused(MaxRetryError(None, url, cause))
        raise ValueError("MD5 hash of downloaded file does not match: " + "0123456789" * 20)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    result = CliRunner().invoke(app, ["data", "fetch", "cifar10"])
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if "could not be downloaded from" in line)
    first, second = lines[at + 1 :]
    assert first.startswith("  https://www.cs.toronto.edu/")
    assert first.endswith(": the host name cannot be resolved; is there a network?")
    assert "does not match" in second
    assert len(second) < 200


def test_a_slow_download_is_given_up():
    with _Progress("file", deadline=0.0) as progress:
        progress.total = 10
        with pytest.raises(TimeoutError, match="not complete after 0 s"):
            progress.update(1)


def test_an_archive_in_place_is_unpacked_without_network(tmp_path, monkeypatch):
    place = tmp_path / "here"
    place.mkdir()
    batches = cifar10_records()
    cifar_archive(place / "cifar-10-binary.tar.gz", batches)
    assert find_files("cifar10", place) is None
    with pytest.raises(DataError, match="data not found"):  # not the official archive
        fetch("cifar10", place, download=False)
    monkeypatch.setattr(
        "fl.data.fetching._file_md5", lambda path: "c32a1d4ab5d03f1284b67883e8d87530"
    )
    files = fetch("cifar10", place, download=False)
    assert {name: path.read_bytes() for name, path in files.items()} == batches


def test_archives_cannot_write_outside_their_folder(tmp_path):
    victim = tmp_path / "train.bin"
    victim.write_bytes(b"mine")
    cifar_archive(
        tmp_path / "evil.tar.gz",
        {"../train.bin": b"1", str(victim): b"2", "a/b/train.bin": b"3", "x/other.bin": b"4"},
    )
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("train.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    unpack(tmp_path / "evil.tar.gz", tmp_path / "out", {"train.bin"})
    assert victim.read_bytes() == b"mine"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.bin"]
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"3"
    unpack(tmp_path / "link.tar.gz", tmp_path / "none", {"train.bin"})
    assert list((tmp_path / "none").iterdir()) == []


def test_truncated_archive_is_refused(tmp_path):
    cifar_archive(tmp_path / "a.tar.gz", {"train.bin": os.urandom(10_000)})
    data = (tmp_path / "a.tar.gz").read_bytes()
    (tmp_path / "a.tar.gz").write_bytes(data[:5000])
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "out", {"train.bin"})
    assert list((tmp_path / "out").iterdir()) == []


def test_every_download_has_a_hash_and_mirrors():
    for name, spec in DATASETS.items():
        if isinstance(spec.source, Package):
            assert len(spec.source.sha256) == 64, name
            continue
        for item in spec.source.downloads if spec.source else ():
            assert len(item.md5) == 32, name
            assert len({url.split("/")[2] for url in item.urls}) >= 2, name
