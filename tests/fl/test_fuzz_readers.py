"""Readers of files that somebody else made: DataError or ConfigError, and nothing worse."""

import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import struct
import tarfile

import numpy as np
import pytest
from fuzzing import bounded_memory, damaged, fuzz
from hypothesis import given
from hypothesis import strategies as st

from fl.commands.settings import changes, read_file
from fl.config import ConfigError, RunConfig
from fl.data import DataError
from fl.data.batches import read_pickled, read_records
from fl.data.fetching import unpack
from fl.data.idx import read_idx, read_images_and_labels
from fl.data.pickles import read_pickle

PACK = {"": bytes, ".gz": lambda b: gzip.compress(b, mtime=0), ".xz": lzma.compress}
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
IDX = bytes([0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(16))
RECORDS = b"".join(bytes([7]) + row.tobytes() for row in PIXELS)
PICKLES = [
    pickle.dumps({"data": PIXELS, "labels": [1, 2], "batch_label": b"x"}, protocol=p)
    for p in (0, 2, 4)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


def outcome(error, read, *arguments, size):
    """Return what `read` returns, or None if it raises `error`; anything else is a failure."""
    with bounded_memory(size):
        try:
            return read(*arguments)
        except error:
            return None


@fuzz(150)
@given(data=st.data())
def test_idx(place, data):
    packing = data.draw(st.sampled_from(list(PACK)))
    raw = data.draw(st.one_of(damaged(IDX), st.binary(max_size=40)).map(PACK[packing]))
    if packing and data.draw(st.booleans()):
        raw = data.draw(damaged(PACK[packing](IDX)))
    path = place / f"file{packing}"
    path.write_bytes(raw)
    found = outcome(DataError, read_idx, path, 3, size=len(raw))
    if found is not None:
        assert found[0].dtype == np.uint8
        assert found[0].ndim == 3


@fuzz(60)
@given(data=st.data())
def test_idx_pairs(place, data):
    images, labels = place / "images", place / "labels"
    images.write_bytes(data.draw(damaged(IDX)))
    labels.write_bytes(bytes([0, 0, 8, 1]) + data.draw(st.binary(max_size=12)))
    found = outcome(DataError, read_images_and_labels, images, labels, 10, size=100)
    if found is not None:
        assert len(found[0]) == len(found[1]) > 0
        assert found[1].max() < 10


@fuzz(60)
@given(data=st.data())
def test_cifar_records(place, data):
    path = place / "batch.bin"
    path.write_bytes(data.draw(st.one_of(damaged(RECORDS), st.binary(max_size=9))))
    found = outcome(DataError, read_records, path, 1, 10, size=len(RECORDS))
    if found is not None:
        assert found[0].shape[1:] == (3, 32, 32)
        assert found[1].max() < 10


@st.composite
def programs(draw):
    """Return a pickle of random but well-formed opcodes: what bytes at random never reach."""
    codes = draw(st.lists(st.sampled_from(pickletools.opcodes), max_size=25))
    names = [b"numpy\nndarray\n", b"numpy\ndtype\n", b"_codecs\nencode\n", b"os\nsystem\n"]
    data = b"\x80\x02"
    for code in codes:
        data += code.code.encode("latin1")
        if code.name in ("GLOBAL", "INST"):
            data += draw(st.sampled_from(names))
        elif code.arg is not None:
            size = code.arg.n
            if size > 0:
                data += draw(st.sampled_from([bytes(size), b"\xff" * size, b"\x01" + bytes(size)]))[
                    :size
                ]
            elif size == pickletools.UP_TO_NEWLINE:
                data += draw(st.sampled_from([b"1\n", b"'a'\n", b"99999999999\n", b"\n"]))
            else:
                width = {-2: 1, -3: 4, -4: 4, -5: 8}[size]
                data += draw(st.sampled_from([bytes(width), b"\x02" + bytes(width - 1) + b"ab"]))
    return data + b"."


@fuzz(200)
@given(data=st.one_of(st.sampled_from(PICKLES).flatmap(damaged), programs(), st.binary()))
def test_pickles(place, data):
    found = outcome(DataError, read_pickle, data, "file", size=len(data))
    assert found is None or isinstance(found, dict)


@fuzz(60)
@given(data=st.sampled_from(PICKLES).flatmap(damaged))
def test_pickled_batches(place, data):
    path = place / "data_batch_1"
    path.write_bytes(data)
    found = outcome(DataError, read_pickled, path, "labels", 10, size=len(data))
    if found is not None:
        assert found[0].shape == (len(found[1]), 3, 32, 32)


def test_a_pickle_of_allowed_names_only_still_builds_no_bomb():
    """Repeated references, sizes without bytes, states of the wrong kind."""
    bombs = [
        b"\x80\x02]q\x00" + b"(h\x00h\x00h\x00h\x00e" * 40 + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x02X" + struct.pack("<I", 2**31 - 1) + b"a.",
        b"I" + b"9" * 5000 + b"\n.",
        b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b".",
        b"(" * 100_000 + b"t.",
        b"\x80\x02cnumpy\ndtype\n(U\x02u1tR(K\x03U\x01|tb.",
        b"\x80\x02cnumpy\nndarray\n)\x81}b.",
    ]
    for data in bombs:
        assert outcome(DataError, read_pickle, data, "file", size=len(data)) is None


@fuzz(40)
@given(data=st.data())
def test_archives(place, data):
    """Names with dots, roots, links and devices; damaged bytes. Nothing lands outside."""
    folder = place / "archive"
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for _ in range(data.draw(st.integers(1, 4))):
            parts = data.draw(st.lists(st.sampled_from(["..", "a", "", "."]), max_size=4))
            info = tarfile.TarInfo("/".join([*parts, "train.bin"]))
            kinds = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE]
            info.type = data.draw(st.sampled_from([*kinds, tarfile.CHRTYPE, tarfile.DIRTYPE]))
            info.linkname = data.draw(st.sampled_from(["/etc/passwd", "../../x", "train.bin"]))
            info.mode, info.uid = data.draw(st.sampled_from([0, 0o7777])), 12345
            body = b"body" if info.type == tarfile.REGTYPE else b""
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    raw = buffer.getvalue()
    if data.draw(st.booleans()):
        raw = data.draw(damaged(raw))
    (folder / "a.tar.gz").write_bytes(raw)
    outcome(DataError, unpack, folder / "a.tar.gz", out, {"train.bin"}, size=len(raw))
    assert set(os.listdir(folder)) == {"a.tar.gz", "out"}
    assert set(os.listdir(out)) <= {"train.bin"}
    for path in out.iterdir():
        assert path.is_file()
        assert not path.is_symlink()
        assert not path.stat().st_mode & 0o7000
        path.unlink()


TOML = b"""
rounds = 5
[data]
dataset = "mnist"
alpha = 0.5
[selection]
policy = "oort"
options = { max_share = 1.5 }
"""
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzz(150)
@given(raw=st.one_of(damaged(TOML), st.binary(max_size=60)), json_file=st.booleans())
def test_config_files(place, raw, json_file):
    path = place / ("config.json" if json_file else "config.toml")
    path.write_bytes(raw)
    found = outcome(ConfigError, lambda: RunConfig.from_dict(read_file(path)), size=len(raw))
    assert found is None or isinstance(found, RunConfig)


@fuzz(150)
@given(data=st.data())
def test_settings_of_any_type(data):
    settings = json.loads(json.dumps(RunConfig().to_dict()))
    target, name = settings, data.draw(st.sampled_from(sorted(settings)))
    if target[name] and isinstance(target[name], dict) and data.draw(st.booleans()):
        target = target[name]
        name = data.draw(st.sampled_from(sorted(target)))
    target[name] = data.draw(VALUES)
    found = outcome(ConfigError, RunConfig.from_dict, settings, size=1000)
    assert found is None or isinstance(found, RunConfig)


@fuzz(100)
@given(text=st.one_of(st.text(max_size=30), st.text(max_size=8).map(lambda t: f"training.lr={t}")))
def test_arguments_of_any_text(text):
    def parse():
        return RunConfig().replace(**changes([text]))

    outcome(ConfigError, parse, size=1000)


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "a = " + "[" * 50_000, "a." * 900 + "b = 1", " " * 70_000]
)
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_deep_nesting_is_refused(tmp_path, text, suffix):
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    with pytest.raises(ConfigError):
        RunConfig.from_dict(read_file(path))
