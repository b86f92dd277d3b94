"""Readers against bytes written here by hand, and against the real files where present."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from data_files import (
    IMAGES,
    LABELS,
    PACK,
    idx_bytes,
    no_network,
    write_mnist,
)
from numpy.testing import assert_array_equal

from fl.data import DataError, cache_dir, check_files, find_files, load_federation
from fl.data.files import read_unpacked
from fl.data.idx import read_idx

pytestmark = pytest.mark.usefixtures("alone")

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


# ---- idx


@pytest.mark.parametrize("packing", PACK)
def test_idx_is_read_in_any_packing(tmp_path, packing):
    data = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 255])
    path = tmp_path / f"file{packing}"
    path.write_bytes(PACK[packing](data))
    array, _ = read_idx(path, ndim=2)
    assert array.tolist() == [[10, 11, 12], [13, 14, 255]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must start as an idx file of unsigned bytes in 1 dimensions, got ''"),
        (bytes([0, 0, 8, 3, 0, 0, 0, 1, 7]), "in 1 dimensions, got '00000803'"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 7]), "got '00000d01'"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7]), "declares 2 bytes, got 1"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 7, 7]), "declares 2 bytes, got 3"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255, 7]), "declares 4294967295 bytes, got 1"),
        (bytes([0, 0, 8, 1, 0, 0]), "must start as an idx file"),
    ],
)
def test_damaged_idx_is_refused(tmp_path, data, message):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_idx(path, ndim=1)


@pytest.mark.parametrize("packing", [".gz", ".xz"])
def test_truncated_packing_is_refused(tmp_path, packing):
    path = tmp_path / f"file{packing}"
    path.write_bytes(PACK[packing](os.urandom(5000))[:3000])
    with pytest.raises(DataError, match="cannot be read"):
        read_unpacked(path)


def test_unpacking_stops_at_the_limit(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))  # 50 kB on disk
    with pytest.raises(DataError, match="must unpack to at most 2000000 bytes"):
        read_unpacked(path, limit=2_000_000)


def test_mnist_federation_from_small_files(tmp_path):
    x, y = write_mnist(tmp_path / "mnist", packing=".gz")
    federation = load_federation("mnist", n_clients=2, partition="iid", data_dir=tmp_path)
    assert federation.x.shape == (20, 1, 2, 2)
    np.testing.assert_allclose(federation.x[:, 0], x / 255, rtol=1e-6)
    assert_array_equal(federation.y, y)
    assert federation.record["official"] is False


def test_labels_must_fit_the_images_and_the_classes(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / LABELS).write_bytes(idx_bytes(np.zeros(19)))
    with pytest.raises(DataError, match=r"one label per image \(20\), got 19"):
        load_federation("mnist", data_dir=tmp_path)
    (tmp_path / LABELS).write_bytes(idx_bytes(np.full(20, 10)))
    with pytest.raises(DataError, match="must hold labels 0..9, got 10"):
        load_federation("mnist", data_dir=tmp_path)


# ---- where files are found


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_files_are_found_in_usual_folders(tmp_path, folder):
    write_mnist(tmp_path / folder)
    files = find_files("mnist", tmp_path)
    assert {path.parent for path in files.values()} == {tmp_path / folder}


def test_places_are_searched_in_order(tmp_path, monkeypatch):
    places = [tmp_path / "argument", tmp_path / "variable", tmp_path / "cache" / "data"]
    monkeypatch.setenv("CVRCORE_DATA", str(places[1]))
    for place in reversed(places):
        write_mnist(place / "mnist")
        assert find_files("mnist", places[0])[IMAGES].parent == place / "mnist"


def test_half_a_data_set_is_not_found(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / LABELS).unlink()
    assert find_files("mnist", tmp_path) is None


def test_missing_files_give_one_message_that_says_what_to_do(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("pooch.retrieve", lambda url, **_: asked.append(url) or no_network(url))
    with pytest.raises(DataError) as caught:
        load_federation("mnist", data_dir=tmp_path / "here")
    message = str(caught.value)
    assert IMAGES in message
    assert LABELS in message
    assert str(tmp_path / "here" / "mnist") in message
    assert str(cache_dir() / "mnist") in message
    assert "no route to" in message
    assert caught.value.__cause__ is None
    assert len(asked) == 2  # every mirror of the first file
    assert len({url.split("/")[2] for url in asked}) == 2


def test_download_off_never_asks(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("asked the network"))
    with pytest.raises(DataError, match="Download is off"):
        load_federation("cifar10", data_dir=tmp_path, download=False)


def test_check_files_tells_missing_different_and_damaged(tmp_path):
    assert [c.status for c in check_files("mnist", tmp_path)] == ["missing", "missing"]
    write_mnist(tmp_path, packing=".gz")
    path = tmp_path / (LABELS + ".gz")
    path.write_bytes(path.read_bytes()[:-9])
    checks = {check.name: check for check in check_files("mnist", tmp_path)}
    assert checks[IMAGES].status == "differs"
    assert "md5 must be 6bbc9ace898e44ae57da46a324031adb" in checks[IMAGES].detail
    assert checks[LABELS].status == "damaged"
    assert check_files("digits") == []
    assert find_files("digits") == {}


# ---- the real files


def real(folder):
    if not (SHARED / folder).is_dir():
        pytest.skip(f"no real {folder} files beside the project")
    return SHARED


def test_real_mnist():
    federation = load_federation("mnist", data_dir=real("mnist"), download=False)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(federation.y).tolist() == counts
    assert federation.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(federation.x.mean() - 0.1307) < 1e-4
    assert abs(federation.x.std() - 0.3081) < 1e-4
    assert federation.record["official"] is True


def test_real_mnist_is_not_taken_for_fashion():
    place = real("mnist") / "mnist"
    assert find_files("mnist", place) is not None
    assert find_files("fashion-mnist", place) is None or (
        find_files("fashion-mnist", place)[LABELS].parent != place
    )


def test_real_mnist_files_are_official():
    assert [c.status for c in check_files("mnist", real("mnist"))] == ["ok", "ok"]


def test_real_cifar100():
    place = real("cifar-100-python")
    federation = load_federation("cifar100", data_dir=place, download=False)
    assert np.bincount(federation.y).tolist() == [500] * 100
    assert federation.y[0] == 19  # bos_taurus_s_000507.png, cattle
    means = federation.x.mean(axis=(0, 2, 3), dtype=np.float64) / 2 + 0.5
    np.testing.assert_allclose(means, [0.5071, 0.4865, 0.4409], atol=1e-4)
    assert federation.record["official"] is True
    assert federation.sizes.min() > 100  # never near empty, unlike ten classes


def test_real_fashion_mnist():
    if find_files("fashion-mnist") is None:
        pytest.skip("no real Fashion-MNIST files in a distribution's package")
    federation = load_federation("fashion-mnist", download=False)
    assert np.bincount(federation.y).tolist() == [6000] * 10
    assert abs(federation.x.mean() - 0.2860) < 1e-4
