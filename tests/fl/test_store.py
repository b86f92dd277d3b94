import errno
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny import tiny_config, tiny_federation

from fl.loop import run
from fl.presets import make_config
from fl.store import RunStore, StoreError, read_history

#: Policies whose state is of different kinds, and an algorithm with state of its own.
CASES = {
    "uniform": {},
    "oort": {"selection__policy": "oort", "selection__shared_warmup": 3},
    "active": {"selection__policy": "active"},
    "fedcvr-bolt": {"selection__policy": "fedcvr-bolt", "selection__options": {"warmup": 2}},
    "memory": {"aggregator": "memory"},
    "memory in a file": {
        "aggregator": "memory",
        "aggregator_options": {"limit": 0, "dtype": "bfloat16"},
    },
    "coalition-memory": {
        "aggregator": "coalition-memory",
        "selection__policy": "fedcvr-bolt",
        "selection__options": {"warmup": 2},
    },
    "fesem": {"algorithm__name": "fesem", "algorithm__options": {"k": 2, "initial_rounds": 2}},
}


class Stop(Exception):
    pass


def stop_after(n):
    def tell(record):
        if record["round"] == n:
            raise Stop

    return tell


@pytest.mark.parametrize("case", CASES)
def test_run_stopped_in_any_round_resumes_to_the_same_history(tmp_path, case):
    config = tiny_config(
        rounds=7, availability__probability=0.8, availability__dropout=0.2, **CASES[case]
    )
    federation = tiny_federation()
    whole = run(config, federation=federation)
    for n in range(1, 7):
        folder = tmp_path / str(n)
        with pytest.raises(Stop):
            run(config, folder, progress=stop_after(n), federation=federation)
        resumed = run(config, folder, resume=True, federation=federation)
        assert resumed == whole
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(1, 8))


PROGRAM = """
import json, sys, time
sys.path[:0] = sys.argv[3:]
from fl import RunConfig, run
config = RunConfig.from_dict(json.loads(sys.argv[2]))
run(config, sys.argv[1], progress=lambda record: time.sleep(0.02))
"""


def read_rounds(folder):
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "timing"} for record in records]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("changes", [{}, CASES["memory in a file"]], ids=["sizes", "memory"])
def test_killed_run_resumes_to_the_same_rounds(tmp_path, changes):
    """kill -9 a real process in the middle of a run; another one takes over."""
    config = make_config(
        "digits",
        "fedcvr-bolt",
        rounds=30,
        data__n_clients=20,
        selection__n_select=4,
        selection__options__warmup=3,
        training__epochs=1,
        checkpoint_every=3,
        engine__name="serial",
        engine__workers=2,
        **changes,
    )

    rounds, settings = tmp_path / "killed" / "rounds.jsonl", json.dumps(config.to_dict())
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), settings]
    process = subprocess.Popen([*command, *map(str, sys.path)])
    deadline = time.monotonic() + 100
    while not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 8):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "summary.json").exists()
    # The second leg runs in worker processes: the engine may change, the rounds may not.
    run(config.replace(engine__name="processes"), tmp_path / "killed", resume=True)
    run(config, tmp_path / "whole")
    assert read_rounds(tmp_path / "killed") == read_rounds(tmp_path / "whole")


def test_half_written_last_line_is_dropped(tmp_path):
    config, federation = tiny_config(rounds=5, checkpoint_every=2), tiny_federation()
    whole = run(config, federation=federation)
    with pytest.raises(Stop):
        run(config, tmp_path, progress=stop_after(3), federation=federation)
    with (tmp_path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "acc')
    assert run(config, tmp_path, resume=True, federation=federation) == whole


def test_finished_run_is_read_back_and_not_run_again(tmp_path):
    config, federation = tiny_config(), tiny_federation()
    first = run(config, tmp_path, federation=federation)
    calls = []
    again = run(config, tmp_path, resume=True, progress=calls.append, federation=federation)
    assert again == first
    assert calls == []
    assert json.loads((tmp_path / "summary.json").read_text())["final"] == first.final()


def test_folder_is_read_back_as_a_history(tmp_path):
    config, federation = tiny_config(), tiny_federation()
    history = run(config, tmp_path, federation=federation)
    with (tmp_path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 7')
    again = read_history(tmp_path)
    assert again == history
    assert (again.config, again.facts) == (history.config, history.facts)
    with pytest.raises(StoreError, match="holds no run: config.json is missing"):
        read_history(tmp_path / "else")


def test_full_disk_is_one_clear_line_and_the_run_can_go_on(tmp_path):
    config, federation = tiny_config(), tiny_federation()
    whole = run(config, federation=federation)

    class FullDisk(io.BytesIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with RunStore(tmp_path, config) as store:
        store.restore()
        store._rounds.close()
        store._rounds = FullDisk()
        with pytest.raises(StoreError, match="cannot be written.*No space left on device"):
            store.append({"round": 1})
    assert run(config, tmp_path, resume=True, federation=federation) == whole


def test_folder_of_another_config_is_refused(tmp_path):
    federation = tiny_federation()
    run(tiny_config(), tmp_path, federation=federation)
    other = tiny_config(training__lr=0.5)
    with pytest.raises(StoreError, match="another config: its training.lr is 0.05, not 0.5"):
        run(other, tmp_path, resume=True, federation=federation)


def test_folder_that_holds_the_run_needs_resume(tmp_path):
    federation = tiny_federation()
    run(tiny_config(), tmp_path, federation=federation)
    with pytest.raises(StoreError, match="already holds this run; resume it"):
        run(tiny_config(), tmp_path, federation=federation)


def test_engine_may_change_between_runs(tmp_path):
    with RunStore(tmp_path, tiny_config()):
        pass
    with RunStore(tmp_path, tiny_config(engine__name="auto", checkpoint_every=9), resume=True):
        pass


def test_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="must be empty or hold a run, got 'thesis.tex'"):
        RunStore(tmp_path, tiny_config())


def test_folder_in_use_is_refused(tmp_path):
    with (
        RunStore(tmp_path, tiny_config()),
        pytest.raises(StoreError, match="in use by another process"),
    ):
        RunStore(tmp_path, tiny_config(), resume=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b'{"rounds": ', "config.json is damaged"),
        ("checkpoint.npz", b"PK but not really", "delete it to run again"),
        ("rounds.jsonl", b"", "holds 0 of the 6 rounds before its checkpoint"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    federation = tiny_federation()
    run(tiny_config(), tmp_path, federation=federation)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=message):
        run(tiny_config(), tmp_path, resume=True, federation=federation)


def test_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be opened"):
        RunStore(tmp_path / "file" / "run", tiny_config())
