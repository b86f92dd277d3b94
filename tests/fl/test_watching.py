"""A board that follows the folder of a run: growing, resumed, killed, damaged, hostile."""

import json
import os
import shutil

import pytest
from tiny import tiny_config, tiny_federation

import fl
from cvrcore.watch import Board
from fl.records import StoreError
from fl.watching import DETAILS, RunFollower

CONFIG = tiny_config(
    rounds=8, selection__policy="fedcvr-bolt", selection__options={"warmup": 2, "max_norm": 0.1}
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched") / "run"
    fl.run(CONFIG, folder, federation=tiny_federation(), track=["details"])
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


class Page:
    """What a browser would hold after each look."""

    def __init__(self, folder):
        self.board = Board()
        self.follower = RunFollower(folder, self.board)
        self.seen, self.resets = 0, 0
        self.rounds, self.values = {}, {}

    def look(self):
        self.follower.poll()
        events, self.seen = self.board.news(self.seen)
        for name, text in events:
            value = json.loads(text)
            if name == "reset":
                self.rounds, self.resets = {}, self.resets + 1
            elif name == "rounds":
                self.rounds |= {r["round"]: r for r in value}
            else:
                self.values[name] = value
        return self

    @property
    def state(self):
        return self.values["status"]["state"]


def test_a_finished_run_is_shown_with_its_details(folder):
    page = Page(folder).look()
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [[p["client"] for p in page.rounds[t]["picks"]] for t in range(1, 9)] == [
        line["picked"] for line in lines
    ]
    assert page.state == "finished"
    assert page.values["status"]["summary"]["rounds"] == 8
    assert page.values["facts"]["title"] == "fedavg on digits, seed 0"
    assert all(p["score"] is not None for p in page.rounds[8]["picks"])
    assert sum(len(r["incidents"]) for r in page.rounds.values()) > 0
    assert page.values["snapshot"]["round"] == 6
    assert page.look().resets == 1  # nothing changed: nothing is sent again


def test_a_run_without_details_is_shown_too(folder):
    shutil.rmtree(folder / "tracking")
    page = Page(folder).look()
    assert len(page.rounds) == 8
    assert page.rounds[8]["picks"][0]["score"] is None
    assert "snapshot" not in page.values


def test_a_growing_run_is_followed_line_by_line(folder):
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (folder / "summary.json").unlink()
    path.write_bytes(b"")
    page = Page(folder).look()
    assert page.rounds == {}
    for i, line in enumerate(lines):
        with path.open("ab") as file:
            file.write(line[:20])  # half a line: not a round yet
            file.flush()
            assert len(page.look().rounds) == i
            file.write(line[20:])
        assert len(page.look().rounds) == i + 1
        assert page.state == "running"
    assert page.resets == 1


def test_details_that_come_after_their_round_are_added(folder):
    details = folder / DETAILS
    text = details.read_bytes()
    details.write_bytes(b"".join(text.splitlines(keepends=True)[:-1]))
    page = Page(folder).look()
    assert page.rounds[8]["picks"][0]["score"] is None
    details.write_bytes(text)
    assert page.look().rounds[8]["picks"][0]["score"] is not None
    assert page.resets == 1


def test_a_killed_run_is_silent_and_its_resumption_is_shown(folder):
    path = folder / "rounds.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (folder / "summary.json").unlink()
    path.write_bytes(b"".join(lines[:7]) + lines[7][:9])
    for name in ("rounds.jsonl", "facts.json"):
        os.utime(folder / name, (1e9, 1e9))
    page = Page(folder).look()
    assert len(page.rounds) == 7
    assert page.state == "silent"
    assert "cvrcore resume" in page.values["status"]["text"]
    path.write_bytes(b"".join(lines[:4]))  # `resume` cuts back to the checkpoint
    assert sorted(page.look().rounds) == [1, 2, 3, 4]
    assert page.resets == 2
    assert page.state == "running"
    path.write_bytes(b"".join(lines))
    assert len(page.look().rounds) == 8


def test_a_damaged_line_is_told_and_ends_nothing(folder):
    page = Page(folder).look()
    path = folder / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round": 3}\n')
    assert page.look().state == "problem"
    assert "line 9 of rounds.jsonl is not round 9" in page.values["status"]["text"]
    path.write_bytes(whole)
    assert page.look().state == "finished"


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"round": 1, "n_clients": 12, "available": 3, "picks": [{"client": 99}]}\n',
        b'{"round": 1, "n_clients": 99999, "available": 3}\n',
        b'{"round": 1e999}\n',
        b"[" * 5000 + b"]" * 5000 + b"\n",
    ],
)
def test_hostile_details_are_left_out(folder, line):
    (folder / DETAILS).write_bytes(line)
    page = Page(folder).look()
    assert len(page.rounds) == 8
    assert page.rounds[1]["picks"][0]["score"] is None
    assert "details.jsonl cannot be used" in page.values["status"]["text"]


def test_details_of_other_picks_are_not_believed(folder):
    text = (folder / DETAILS).read_text().splitlines()
    record = json.loads(text[-1])
    record["picks"] = record["picks"][:1]
    (folder / DETAILS).write_text("\n".join([*text[:-1], json.dumps(record)]) + "\n")
    page = Page(folder).look()
    assert len(page.rounds[8]["picks"]) == 4
    assert page.rounds[8]["picks"][0]["score"] is None


def test_links_and_pipes_are_not_followed(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("{}\n")
    (folder / "rounds.jsonl").unlink()
    (folder / "rounds.jsonl").symlink_to(secret)
    assert Page(folder).look().state == "problem"
    (folder / DETAILS).unlink()
    os.mkfifo(folder / DETAILS)
    page = Page(folder)
    page.look()  # and it does not wait for a writer
    assert page.state == "problem"


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no run"):
        RunFollower(tmp_path, Board())


def test_the_board_is_bounded(monkeypatch):
    from cvrcore.tracking import RoundRecord
    from cvrcore.watch import board as module

    monkeypatch.setattr(module, "MAX_ROUNDS", 10)
    board = Board()
    for t in range(1, 31):
        board.put(RoundRecord(t, 5))
    events, _ = board.news(0)
    (rounds,) = [json.loads(text) for name, text in events if name == "rounds"]
    assert [r["round"] for r in rounds] == list(range(21, 31))
