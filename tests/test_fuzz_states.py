"""Saved states, damaged in bytes and in content: ValueError, or a selector that works."""

import copy
import functools
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from first_policies import FIRST_POLICIES
from fuzzing import bounded_memory, damaged, fuzz
from hypothesis import given
from hypothesis import strategies as st

import cvrcore
from cvrcore.selectors import policy_class
from cvrcore.state import load_state, save_state

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.npz"))


@functools.cache
def content(path):
    return path.read_bytes()


@fuzz(150)
@given(data=st.data())
def test_damaged_files_are_refused_or_whole(tmp_path_factory, data):
    path = data.draw(st.sampled_from(FILES))
    raw = data.draw(st.one_of(damaged(content(path)), st.binary(max_size=200)))
    broken = tmp_path_factory.getbasetemp() / "fuzzed.npz"
    broken.write_bytes(raw)
    with bounded_memory(len(raw)):
        try:
            found = cvrcore.Selector.load(broken)
        except ValueError:
            return
    whole = cvrcore.Selector.load(path)  # the damage hit a byte without meaning
    np.testing.assert_equal(found.state_dict(), whole.state_dict())


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just(np.empty(0)),
    st.just(np.array([np.nan, 1.0])),
    st.just(np.arange(12)),
    st.just(np.full(12, -1)),
    st.just(np.full((12, 4), np.inf)),
    st.just(np.array(["a"])),
)


def places(state, path=()):
    """Yield the path of every value inside a nested state."""
    items = state.items() if isinstance(state, dict) else enumerate(state)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict) or (isinstance(value, list) and value):
            yield from places(value, (*path, key))


def play(selector):
    for _ in range(3):
        asked = selector.probe()
        losses = None if asked is None else np.ones(asked.size)
        picked = selector.select(losses=losses).clients
        assert np.unique(picked).size == picked.size
        selector.observe(picked, np.ones((picked.size, 4)), np.ones(picked.size))


@functools.cache
def compiled(policy):
    """Go a few rounds first: the memory that a compiler takes is not the file's."""
    play(cvrcore.Selector.load(GOLDEN / f"format2-{policy}.npz"))


@pytest.mark.parametrize("policy", FIRST_POLICIES)
@fuzz(120)
@given(data=st.data())
def test_forged_states_are_refused_or_work(policy, data):
    """A checksum keeps accidents out, not forgers: every field is changed in turn."""
    number = data.draw(st.sampled_from([1, 2]))
    state = copy.deepcopy(load_state(GOLDEN / f"format{number}-{policy}.npz"))
    path = data.draw(st.sampled_from(sorted(places(state), key=str)))
    target = state
    for key in path[:-1]:
        target = target[key]
    if isinstance(target, dict) and data.draw(st.integers(0, 4)) == 0:
        del target[path[-1]]
    else:
        target[path[-1]] = data.draw(LEAVES)
    compiled(policy)
    with bounded_memory(100_000):
        try:
            selector = policy_class(policy).from_state_dict(state)
        except ValueError:
            return
        selector.state_dict()
        try:
            play(selector)
        except ValueError:
            return  # a setting that the rounds above do not fit, such as n_features


def test_every_forged_field_of_a_window_is_refused():
    """Residuals are kept in a ring: what is said about it must fit together."""
    selector = cvrcore.CoalitionSelector(20, 3, 4, warmup=0, seed=0, store="window", window=3)
    rng = np.random.default_rng(0)
    for _ in range(5):
        selector.observe(selector.select().clients, rng.normal(size=(4, 3)))
    state = selector.state_dict()
    held = state["learned"]["covariance"]
    (block,), squares = held["history"], held["squares"]
    for name, value in (
        ("history", [block[:-1]]),
        ("history", [block[:, :, :-1]]),
        ("history", [block, block]),
        ("history", [block * np.nan]),
        ("squares", squares[:-1]),
        ("squares", -squares),
        ("total", 0.5 * squares.sum()),
        ("total", -1.0),
        ("next", 4),
        ("next", 3),
        ("wrapped", False),
    ):
        forged = copy.deepcopy(state)
        forged["learned"]["covariance"][name] = value
        with pytest.raises(ValueError, match="must"):
            cvrcore.CoalitionSelector.from_state_dict(forged)
    cvrcore.CoalitionSelector.from_state_dict(state)


def entry(header, body=b""):
    """Return the bytes of one .npy file with a header of our choice."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def archive(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in entries.items():
            file.writestr(f"{name}.npy", data)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296, 0, 3)}",
        "{'descr': '|V1000000000', 'fortran_order': False, 'shape': (9,)}",
        "{'descr': '<f8', 'shape': (1,)}",
        "__import__('os').system('true')",
    ],
)
def test_a_lying_array_header_costs_nothing(tmp_path, header):
    archive(tmp_path / "s.npz", {"meta": entry(header, b"12345678")})
    with (
        bounded_memory(1000, slack=2_000_000),
        pytest.raises(ValueError, match="not a readable cvrcore state"),
    ):
        load_state(tmp_path / "s.npz")


def test_a_packed_bomb_is_not_unpacked(tmp_path):
    save_state(tmp_path / "good.npz", {"a": np.zeros(3_000_000)})
    with zipfile.ZipFile(tmp_path / "good.npz") as file:
        entries = {n.removesuffix(".npy"): file.read(n) for n in file.namelist()}
    archive(tmp_path / "bomb.npz", entries, zipfile.ZIP_DEFLATED)
    size = (tmp_path / "bomb.npz").stat().st_size
    assert size < 100_000
    with bounded_memory(size), pytest.raises(ValueError, match="stored, not packed"):
        load_state(tmp_path / "bomb.npz")


def test_entries_that_share_bytes_are_refused(tmp_path):
    """A thousand names for one block: the sum of sizes gives it away."""
    archive(tmp_path / "s.npz", {"meta": bytes(10_000)})
    whole = (tmp_path / "s.npz").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        start = file.start_dir
    directory, end = whole[start:-22], bytearray(whole[-22:])
    end[8:10] = end[10:12] = (500).to_bytes(2, "little")
    end[12:16] = (500 * len(directory)).to_bytes(4, "little")
    (tmp_path / "s.npz").write_bytes(whole[:start] + directory * 500 + bytes(end))
    with bounded_memory(60_000, slack=2_000_000), pytest.raises(ValueError, match="larger than"):
        load_state(tmp_path / "s.npz")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"magic": "cvrcore-state", "state": [1]}, "must hold a table of state"),
        ({"magic": "cvrcore-state", "state": {"a": {"__array__": "no"}}}, "not a readable"),
        ({"magic": "cvrcore-state", "state": {"a": {"__array__": [1]}}}, "not a readable"),
        ({"magic": "other", "state": {}}, "damaged"),
    ],
)
def test_forged_skeletons_are_refused(tmp_path, meta, message):
    from cvrcore.state import _digest

    entries = {"meta": np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)}
    digest = np.frombuffer(_digest(entries), dtype=np.uint8)
    np.savez(tmp_path / "s.npz", **entries, sha256=digest)
    with pytest.raises(ValueError, match=message):
        load_state(tmp_path / "s.npz")


def test_newer_and_foreign_states_are_named(tmp_path):
    state = cvrcore.make_selector("uniform", 4, 2).state_dict()
    save_state(tmp_path / "new.npz", {**state, "format": 9})
    with pytest.raises(ValueError, match="state must be of format 1 or 2 or 3, got 9"):
        cvrcore.Selector.load(tmp_path / "new.npz")
    for name in ("policy", "format"):
        for value in (None, np.empty(0), np.array([1, 2]), [1], {}):
            with pytest.raises(ValueError, match=f"state must be of {name}"):
                cvrcore.selectors.policy_class("uniform").from_state_dict({**state, name: value})
    save_state(tmp_path / "run.npz", {"rounds": 3})
    with pytest.raises(ValueError, match="must hold the state of a selector"):
        cvrcore.Selector.load(tmp_path / "run.npz")
    save_state(tmp_path / "other.npz", {**state, "policy": "lottery"})
    with pytest.raises(ValueError, match="name must be one of .*got 'lottery'"):
        cvrcore.Selector.load(tmp_path / "other.npz")
