"""Readers against bytes written here by hand, and against the real files where present."""

import gzip
import io
import lzma
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from numpy.testing import assert_array_equal

from fl.data import DATASETS, DataError, cache_dir, check_files, fetch, find_files, load_federation
from fl.data.batches import read_pickled, read_records
from fl.data.fetching import _Progress, unpack
from fl.data.files import read_unpacked
from fl.data.idx import read_idx
from fl.data.pickles import read_pickle

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """No cache, no environment, no network: whoever wants one provides it."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.delenv("CVRCORE_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", no_network)


def no_network(url, **_):
    raise OSError(f"no route to {url}")


def idx_bytes(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, n=20, packing=""):
    folder.mkdir(parents=True, exist_ok=True)
    x = np.arange(n * 4).reshape(n, 2, 2) % 256
    y = np.arange(n) % 10
    for name, array in ((IMAGES, x), (LABELS, y)):
        (folder / (name + packing)).write_bytes(PACK[packing](idx_bytes(array)))
    return x, y


def cifar_pixels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


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


# ---- downloads


def cifar_archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def cifar10_records(n=4):
    """Five binary batches; image i of batch b has the label (b + i) % 10."""
    batches = {}
    for b in range(1, 6):
        pixels = cifar_pixels(n, seed=b)
        labels = [(b + i) % 10 for i in range(n)]
        batches[f"data_batch_{b}.bin"] = b"".join(
            bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
        )
    return batches


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
        for item in spec.source.downloads if spec.source else ():
            assert len(item.md5) == 32, name
            assert len({url.split("/")[2] for url in item.urls}) >= 2, name


# ---- CIFAR


def test_cifar10_binary_batches_in_order_and_scaled(tmp_path):
    for name, data in cifar10_records().items():
        (tmp_path / name).write_bytes(data)
    federation = load_federation("cifar10", n_clients=2, partition="iid", data_dir=tmp_path)
    assert federation.x.shape == (20, 3, 32, 32)
    assert federation.y.tolist() == [(b + i) % 10 for b in range(1, 6) for i in range(4)]
    raw = cifar_pixels(4, seed=3)[1].reshape(3, 32, 32)  # batch 3, image 1
    np.testing.assert_allclose(federation.x[9], (raw / 255 - 0.5) / 0.5, atol=1e-6)
    assert federation.record["form"] == "binary"


def test_cifar10_python_batches_equal_binary_ones(tmp_path):
    for name, data in cifar10_records().items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_bytes(data)
        records = np.frombuffer(data, np.uint8).reshape(-1, 3073)
        batch = {b"data": records[:, 1:].copy(), b"labels": records[:, 0].tolist()}
        folder = tmp_path / "py" / "cifar-10-batches-py"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name.removesuffix(".bin")).write_bytes(pickle.dumps(batch, protocol=2))
    a = load_federation("cifar10", n_clients=2, data_dir=tmp_path / "bin")
    b = load_federation("cifar10", n_clients=2, data_dir=tmp_path / "py")
    assert_array_equal(a.x, b.x)
    assert_array_equal(a.y, b.y)
    assert b.record["form"] == "python"


def test_cifar100_reads_the_fine_label(tmp_path):
    pixels = cifar_pixels(3)
    fine, coarse = [99, 0, 19], [1, 2, 11]
    rows = zip(coarse, fine, pixels, strict=True)
    binary = b"".join(bytes([c, f]) + row.tobytes() for c, f, row in rows)
    (tmp_path / "train.bin").write_bytes(binary)
    batch = {"data": pixels, "fine_labels": fine, "coarse_labels": coarse, "filenames": [b"a"] * 3}
    python = tmp_path / "python" / "cifar-100-python"
    python.mkdir(parents=True)
    (python / "train.xz").write_bytes(lzma.compress(pickle.dumps(batch, protocol=2)))
    for place, form in ((tmp_path, "binary"), (tmp_path / "python", "python")):
        federation = load_federation("cifar100", n_clients=1, data_dir=place)
        assert federation.y.tolist() == fine
        assert federation.n_classes == 100
        assert federation.record["form"] == form
        assert_array_equal(np.rint(federation.x * 127.5 + 127.5).reshape(3, -1), pixels)


def test_damaged_records_are_refused(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(DataError, match="whole records of 3073 bytes, got 6145 bytes"):
        read_records(path, 1, 10)
    path.write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(DataError, match="must hold labels 0..9, got 10..10"):
        read_records(path, 1, 10)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1]}, "must hold 'data' as bytes"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "must hold 'data' as bytes"),
        ({"data": np.zeros((1, 3072), np.int64), "labels": [1]}, "must hold 'data' as bytes"),
        ({"data": cifar_pixels(2), "labels": [1]}, "must hold 2 labels as 'labels'"),
        ({"data": cifar_pixels(1), "labels": [-1]}, "must hold labels 0..9, got -1..-1"),
        ({"data": cifar_pixels(1), "labels": [2**70]}, "must hold labels 0..9"),
        ({"data": cifar_pixels(1), "labels": ["cat"]}, "must hold integers as 'labels'"),
        ([1, 2], "must hold a dictionary, got list"),
    ],
)
def test_pickles_of_another_shape_are_refused(tmp_path, batch, message):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=message):
        read_pickled(path, "labels", 10)


def test_python_2_pickle_is_read():
    # As Python 2 wrote it: strings are BINSTRING, NumPy under its old module name.
    def string(text):
        return b"U" + bytes([len(text)]) + text

    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + string(b"b") + b"tR"
    )
    array += b"(K\x01(K\x02K\x03t" + dtype + b"\x89" + string(bytes(range(6))) + b"tb"
    data = b"\x80\x02}(" + string(b"data") + array + string(b"labels") + b"]K\x07au."
    batch = read_pickle(data, "file")
    assert batch["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["labels"] == [7]


class Call:
    """Pickles as a call of any function."""

    def __init__(self, function, *arguments):
        self.how = (function, arguments)

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_cannot_run_code(tmp_path, protocol):
    trace = tmp_path / "trace"
    for function, argument in ((os.system, f"touch {trace}"), (eval, "1"), (np.fromfile, "x")):
        data = pickle.dumps({"data": Call(function, argument)}, protocol=protocol)
        with pytest.raises(DataError, match="must name only NumPy arrays, got"):
            read_pickle(data, "file")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged pickle"),
        (b"\x80\x02}q\x00(U\x04da", "damaged pickle"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "must number at most 9 objects, got 2147483647"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.", "damaged pickle"),
        (pickle.dumps({"data": np.array(["a"], dtype=object)}, protocol=2), "must hold one of u1"),
        (pickle.dumps({"data": np.zeros(3, ">i4")}, protocol=2), "must be little-endian"),
    ],
)
def test_lying_pickles_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        read_pickle(data, "file")


def test_an_array_must_have_the_bytes_it_declares():
    data = pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, protocol=2)
    lying = data.replace(b"K\x02K\x03\x86", b"K\xffK\xff\x86")
    assert lying != data
    with pytest.raises(DataError, match=r"shape \(255, 255\) must have 65025 bytes, got 6"):
        read_pickle(lying, "file")


@pytest.mark.parametrize("order", ["C", "F"])
def test_array_layout_survives(order):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=np.int64, order=order)
    batch = read_pickle(pickle.dumps({"data": array}, protocol=2), "file")
    assert_array_equal(batch["data"], array)


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
