import os
import stat
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_equal

from cvrcore.state import load_state, save_state

STATE = {
    "a": np.arange(6.0).reshape(2, 3),
    "b": {"c": None, "d": [1, 2.5, "x", np.array([True, False])], "e": 2**100},
    "f": np.empty((0, 4), dtype=np.float32),
}


def test_arrays_and_plain_values_come_back(tmp_path):
    save_state(tmp_path / "s.npz", STATE)
    assert_equal(load_state(tmp_path / "s.npz"), STATE)
    assert os.listdir(tmp_path) == ["s.npz"]


def test_no_pickle_is_written_or_read(tmp_path):
    with pytest.raises((TypeError, ValueError)):
        save_state(tmp_path / "s.npz", {"a": object()})
    with pytest.raises((TypeError, ValueError)):
        save_state(tmp_path / "s.npz", {"a": np.array([object()])})
    assert os.listdir(tmp_path) == []
    np.savez(tmp_path / "evil.npz", meta=np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="not a readable cvrcore state"):
        load_state(tmp_path / "evil.npz")


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "s.npz"
    save_state(path, STATE)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), size=200, replace=False):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = load_state(path)
        except ValueError:
            continue
        assert_equal(found, STATE)  # a byte that carries no content (zip dates and the like)
    for length in rng.choice(len(whole), size=50, replace=False):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a readable|damaged"):
            load_state(path)


def test_content_changed_with_care_is_noticed(tmp_path):
    """Each entry is sound by itself, as the archive's own checks see it; the digest is not."""
    save_state(tmp_path / "s.npz", {"a": np.arange(3.0)})
    with np.load(tmp_path / "s.npz") as file:
        entries = dict(file)
    entries["array_0"] = np.arange(3.0) + 1
    np.savez(tmp_path / "s.npz", **entries)
    with pytest.raises(ValueError, match="damaged: its checksum does not fit"):
        load_state(tmp_path / "s.npz")


def test_foreign_files_and_missing_ones(tmp_path):
    path = tmp_path / "s.npz"
    np.savez(path, x=np.ones(3))
    with pytest.raises(ValueError, match="not a readable cvrcore state"):
        load_state(path)
    path.write_text("hello")
    with pytest.raises(ValueError, match="not a readable cvrcore state"):
        load_state(path)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "none.npz")


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "s.npz"
    save_state(path, {"v": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_state(path, {"v": 2})
    assert load_state(path) == {"v": 1}
    assert os.listdir(tmp_path) == ["s.npz"]
    assert stat.S_ISREG(path.stat().st_mode)


def test_numbers_of_numpy_come_back_as_plain_ones(tmp_path):
    save_state(tmp_path / "s.npz", {"a": np.float64(2.5), "b": [np.int64(3), np.bool_(True)]})
    found = load_state(tmp_path / "s.npz")
    assert found == {"a": 2.5, "b": [3, True]}
    assert [type(found["a"]), *map(type, found["b"])] == [float, int, bool]


def test_arrays_of_another_npy_version_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive, archive.open("a.npy", "w") as file:
        np.lib.format.write_array(file, np.zeros(3), version=(2, 0))
    with pytest.raises(ValueError, match="not a readable cvrcore state"):
        load_state(tmp_path / "s.npz")
