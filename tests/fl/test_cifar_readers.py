"""CIFAR records and pickles, written by hand; a pickle runs no code."""

import lzma
import os
import pickle
import struct

import numpy as np
import pytest
from data_files import (
    cifar10_records,
    cifar_pixels,
)
from numpy.testing import assert_array_equal

from fl.data import DataError, load_federation
from fl.data.batches import read_pickled, read_records
from fl.data.pickles import read_pickle

pytestmark = pytest.mark.usefixtures("alone")


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


@pytest.mark.parametrize(
    "program",
    [
        # BUILD on a function: its defaults were changed before the pickle was refused.
        b"\x80\x02c_codecs\nencode\n(N}U\x0c__defaults__(U\x03hexttb.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x01aK\x01sb.",
        b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb.",
        b"\x80\x02}cos\nsystem\n.",  # refused although nothing is called
        b"\x80\x02(cnumpy\nndarray\nK\x01o.",  # OBJ, INST, NEWOBJ call without REDUCE
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x02K\x01K\x02a.",  # APPEND to a number
        b"\x80\x02c_codecs\nencode\nK\x01R.",  # REDUCE with a number
    ],
)
def test_nothing_is_built_before_the_program_is_checked(program, monkeypatch):
    from fl.data import pickles

    def built(*_):
        raise AssertionError("something was built")

    monkeypatch.setattr(pickles._Unpickler, "load", built)
    with pytest.raises(DataError, match="a pickle must"):
        read_pickle(program, "file")
    assert pickles._encode.__defaults__ == ("latin1",)
