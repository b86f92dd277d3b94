"""Trackers that need no tool: CSV files, details, the group, the image, the plane."""

import csv
import json
import logging
import struct
import zlib

import numpy as np
import pytest

import cvrcore
from cvrcore.guards import Incident
from cvrcore.tracking import Facts, Pick, RoundRecord, Tracker, Trackers, make_tracker
from cvrcore.tracking.projection import MAX_POINTS, Projection
from cvrcore.tracking.reading import read_record
from cvrcore.tracking.records import MAX_METRICS, clean_numbers, read_run_id
from cvrcore.tracking.views import COLOURS, MAX_SIDE, PickHistory, png

FACTS = Facts("demo", "fedcvr-bolt", n_clients=6, n_rounds=4)


def record(t, **changes):
    """Round `t` of a small run: client t and client 0, which fails."""
    base = {
        "available": 5,
        "warmup": t == 1,
        "picks": [
            Pick(t, f"n{t}", 0, 0.5 * t, 0.25),
            Pick(0, "zero", 1, None, None, False, "died"),
        ],
        "coalition_sizes": [4, 2],
        "incidents": [Incident(t - 1, t, "norm", "9 > 3")] if t == 2 else [],
        "metrics": {"accuracy": 0.1 * t},
        "seconds": {"select": 0.01, "round": 0.5},
    }
    return RoundRecord(t, 6, **{**base, **changes})


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def play(tracker, facts=FACTS, rounds=range(1, 5)):
    tracker.start(facts)
    for t in rounds:
        tracker.round(record(t))
    tracker.finish({"final": 0.4})


def test_csv_files_hold_every_round_and_pick(tmp_path):
    play(make_tracker("csv", tmp_path))
    found = rows(tmp_path / "csv" / "rounds.csv")
    assert [row["phase"] for row in found] == ["warm-up", "policy", "policy", "policy"]
    assert [float(row["metric"]) for row in found] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert found[0]["coalition_sizes"] == "4 2"
    picks = rows(tmp_path / "csv" / "picks.csv")
    assert [(row["round"], row["client"], row["reported"]) for row in picks[:2]] == [
        ("1", "1", "1"),
        ("1", "0", "0"),
    ]
    assert picks[1]["reason"] == "died"
    assert [row["detail"] for row in rows(tmp_path / "csv" / "incidents.csv")] == ["9 > 3"]
    shares = rows(tmp_path / "csv" / "shares.csv")
    assert [int(row["picks"]) for row in shares] == [4, 1, 1, 1, 1, 0]
    assert sum(float(row["share"]) for row in shares) == pytest.approx(1.0)


def test_a_continued_run_gives_the_files_of_a_whole_one(tmp_path):
    for name in ("csv", "details"):
        play(make_tracker(name, tmp_path / "whole"))
        tracker = make_tracker(name, tmp_path / "parts")
        tracker.start(FACTS)
        for t in (1, 2, 3):
            tracker.round(record(t))  # killed here; its last checkpoint was after round 2
        earlier = [record(1), record(2)]
        again = Facts("demo", "fedcvr-bolt", 6, 4, done=2, earlier=earlier)
        play(make_tracker(name, tmp_path / "parts"), again, (3, 4))
        for path in (tmp_path / "whole" / name).iterdir():
            assert path.read_bytes() == (tmp_path / "parts" / name / path.name).read_bytes(), path


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x"])
def test_names_of_clients_are_no_formulas(tmp_path, name):
    tracker = make_tracker("csv", tmp_path)
    tracker.start(FACTS)
    tracker.round(record(1, picks=[Pick(1, name)]))
    (row,) = rows(tmp_path / "csv" / "picks.csv")
    assert row["name"] == f"'{name}"


def test_details_come_back_as_they_went(tmp_path):
    play(make_tracker("details", tmp_path))
    lines = (tmp_path / "details" / "details.jsonl").read_text().splitlines()
    for t, line in enumerate(lines, start=1):
        assert read_record(json.loads(line)).plain() == record(t).plain()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"round": -1}, "round must be in"),
        ({"n_clients": 10**12}, "n_clients must be in"),
        ({"picks": [{"client": 6}]}, r"client must be in 0\.\.5"),
        ({"picks": [{"client": 1, "score": "high"}]}, "score must be a finite number"),
        ({"picks": {}}, "picks must be a list"),
        ({"incidents": [[1, 2]]}, "incidents must be lists of 4"),
        ({"snapshot": {"clients": [1], "x": [0.0], "y": []}}, "y of a snapshot must have 1"),
        ({"snapshot": {"clients": [1], "x": [None], "y": [1.0]}}, "numbers x and y"),
        ({"metrics": [1]}, "metrics must be a table"),
    ],
)
def test_a_damaged_record_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        read_record({**record(2).plain(), **change})


class Broken(Tracker):
    name = "broken"

    def __init__(self, *methods):
        self.methods, self.calls = methods, []

    def __getattribute__(self, name):
        if name in ("start", "round", "finish"):
            self.calls.append(name)
            if name in self.methods:
                raise OSError("no space left on device")
        return super().__getattribute__(name)


def test_a_failing_tracker_is_logged_once_and_ends_nothing(caplog, tmp_path):
    broken = Broken("round", "finish")
    with caplog.at_level(logging.WARNING, "cvrcore"):
        play(Trackers([broken, make_tracker("csv", tmp_path)]))
    assert broken.calls == ["start", "round", "round", "round", "round", "finish"]
    (message,) = [one.getMessage() for one in caplog.records]
    assert "tracker 'broken' failed, the run goes on: OSError" in message
    assert len(rows(tmp_path / "csv" / "rounds.csv")) == 4


def test_a_tracker_that_cannot_start_gets_no_rounds():
    broken = Broken("start")
    play(Trackers([broken]))
    assert broken.calls == ["start"]


def test_an_interruption_is_not_swallowed():
    class Interrupted(Tracker):
        def round(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Trackers([Interrupted()]).round(record(1))


def test_unknown_trackers_are_named():
    with pytest.raises(ValueError, match="tracker must be one of csv, .* got 'tensorbord'"):
        make_tracker("tensorbord", "x")
    with pytest.raises(TypeError, match="must be names or Tracker objects, got 3"):
        Trackers([3])


@pytest.mark.parametrize("name", ["csv", "details"])
def test_a_folder_from_outside_cannot_direct_writing_elsewhere(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "tracking" / name).mkdir(parents=True)
    file = {"csv": "rounds.csv", "details": "details.jsonl"}[name]
    (tmp_path / "tracking" / name / file).symlink_to(victim)
    with pytest.raises(ValueError, match="must not be a symbolic link"):
        make_tracker(name, tmp_path / "tracking")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / name).symlink_to(tmp_path)
    with pytest.raises(ValueError, match="must not be a symbolic link"):
        make_tracker(name, tmp_path / "other")
    (tmp_path / "linked").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="must not be a symbolic link"):
        make_tracker("csv" if name == "details" else "details", tmp_path / "linked")
    assert victim.read_text() == "precious"


def test_negative_numbers_survive_a_resumed_run(tmp_path):
    below = RoundRecord(round=1, n_clients=5, metrics={"loss": -1.25})
    make_tracker("csv", tmp_path).start(FACTS)
    tracker = make_tracker("csv", tmp_path)
    tracker.start(FACTS)
    tracker.round(below)
    again = make_tracker("csv", tmp_path)
    again.start(Facts("demo", "fedcvr-bolt", 6, 4, done=1, earlier=[below]))
    assert ",-1.25" in (tmp_path / "csv" / "metrics.csv").read_text()


@pytest.mark.parametrize(
    ("text", "known"), [("ab12_-\n", "ab12_-"), ("../../x", None), ("a b", None), ("", None)]
)
def test_ids_of_runs_are_checked(tmp_path, text, known):
    (tmp_path / "run_id.txt").write_text(text)
    assert read_run_id(tmp_path / "run_id.txt") == known
    assert read_run_id(tmp_path / "missing.txt") is None


def test_numbers_of_clients_are_cleaned():
    odd = {"a\nb": 1, "t": True, "s": "x", "n": float("nan"), "l": [1.0], "big": 10**400, "f": 2.5}
    assert clean_numbers(odd) == {"a_b": 1.0, "f": 2.5}
    assert len(clean_numbers({str(i): i for i in range(500)})) == MAX_METRICS


def decoded(data):
    """Return the pixels of a PNG of filter 0, by the letters of its specification."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind + body
        )
        chunks[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_the_image_shows_who_was_picked():
    history = PickHistory([record(1), record(2)])
    cells = history.cells()
    assert cells.tolist() == [[3, 3], [1, 0], [0, 2], [0, 0], [0, 0], [0, 0]]
    image = history.image()
    np.testing.assert_array_equal(decoded(png(image)), image)
    rows, columns = image.shape[0] // 6, image.shape[1] // 2
    np.testing.assert_array_equal(image[::rows, ::columns], COLOURS[cells])


def test_the_image_of_many_clients_is_bounded_and_loses_no_pick():
    many = [RoundRecord(t, 10**6, picks=[Pick(999_999, "last")]) for t in range(1, 3001)]
    cells = PickHistory(many).cells()
    assert cells.shape == (MAX_SIDE, MAX_SIDE)
    assert (cells[-1] == 2).all()
    assert not cells[:-1].any()


def run(n_clients, rounds):
    rng = np.random.default_rng(0)
    goal = 6 * rng.normal(size=(3, 5))
    selector = cvrcore.CoalitionSelector(n_clients, 5, 20, warmup=2, seed=0)
    for _ in range(rounds):
        picked = selector.select()
        before = selector.rows
        selector.observe(picked.clients, goal[picked.clients % 3] + rng.normal(size=(20, 5)))
        yield selector, picked, before


def test_snapshots_are_bounded_and_turn_little():
    projection, last = Projection(), None
    for selector, picked, _ in run(1500, 40):
        found = projection.snapshot(selector, picked)
        if found is None:
            assert picked.warmup
            continue
        assert len(found.clients) <= MAX_POINTS + 20
        assert set(picked.clients.tolist()) <= set(found.clients)
        assert list(found.coalitions) == picked.coalitions[list(found.clients)].tolist()
        points = dict(zip(found.clients, zip(found.x, found.y, strict=True), strict=True))
        if last is not None:
            common = sorted(points.keys() & last.keys())
            now = np.array([points[k] for k in common])
            then = np.array([last[k] for k in common])
            moved = np.linalg.norm(now - then, axis=1).mean()
            mirrored = np.linalg.norm(-now - then, axis=1).mean()
            assert moved < mirrored
        last = points
    assert last is not None


def test_a_policy_without_rows_has_no_snapshot():
    selector = cvrcore.make_selector("uniform", 10, 3, seed=0)
    assert Projection().snapshot(selector, selector.select()) is None


def test_rows_of_some_clients():
    ((selector, picked, _),) = run(30, 1)
    seen = selector.seen()
    assert seen.tolist() == sorted(picked.clients.tolist())
    np.testing.assert_array_equal(selector.rows_of(seen), selector.rows[seen])
    assert selector.seen(np.arange(10)).tolist() == [k for k in range(10) if k in seen]
    with pytest.raises(ValueError, match=r"clients must be ids in 0\.\.29"):
        selector.rows_of([30])
