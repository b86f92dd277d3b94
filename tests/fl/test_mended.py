"""Mistakes that were once made, each stated as the promise that it broke."""

import json

import numpy as np
import pytest
from tiny import tiny_config, tiny_federation

from fl.config import ConfigError
from fl.experiments.statistics import difference
from fl.history import History
from fl.loop import run
from fl.presets import make_config, resolve
from fl.store import RunStore, StoreError


def test_a_foreign_folder_is_left_exactly_as_it_was(tmp_path):
    for name in ("facts.json", ".lock", "notes.txt"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(StoreError, match="must be empty or hold a run"):
        RunStore(tmp_path, tiny_config())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "facts.json": "mine",
        ".lock": "mine",
        "notes.txt": "mine",
    }


def test_a_run_that_fails_before_its_first_round_leaves_no_folder(tmp_path):
    wrong = tiny_config(selection__options={"foo": 1})
    with pytest.raises(ConfigError, match="foo"):
        run(wrong, tmp_path / "run", federation=tiny_federation())
    assert not (tmp_path / "run").exists()
    run(tiny_config(rounds=1), tmp_path / "run", federation=tiny_federation())


def test_a_resumed_run_is_not_taken_for_finished(tmp_path):
    config = tiny_config(rounds=2)
    run(config, tmp_path, federation=tiny_federation())
    (tmp_path / "checkpoint.npz").unlink()
    with RunStore(tmp_path, config, resume=True) as store:
        assert store.restore() == ([], None)
        assert not (tmp_path / "summary.json").exists()


def test_a_damaged_line_names_its_file(tmp_path):
    config = tiny_config(rounds=2)
    run(config, tmp_path, federation=tiny_federation())
    lines = (tmp_path / "rounds.jsonl").read_bytes().split(b"\n")
    (tmp_path / "rounds.jsonl").write_bytes(b"\n".join([b"{half", *lines[1:]]))
    store = RunStore(tmp_path, config, resume=True)
    with store, pytest.raises(StoreError, match=r"rounds\.jsonl is damaged"):
        store.restore()


def test_the_method_on_the_command_line_wins_over_the_files():
    file = json.loads(json.dumps(make_config("digits", "fedprox", rounds=7).to_dict()))
    asked = resolve(file, {"method": "oort"})
    assert asked.selection.policy == "oort"
    assert asked.algorithm == make_config("digits", "oort").algorithm
    assert asked.rounds == 7
    assert resolve(file, {}).algorithm.name == "fedprox"


def test_runs_of_different_protocols_are_not_paired():
    def history(rounds):
        rounds_ = [{"round": 1, "accuracy": 0.5}]
        return History(make_config("digits", "fedavg", rounds=rounds), {}, rounds_)

    def last_five(run):
        return run.last_five()

    assert difference({0: history(3)}, {0: history(30)}, last_five).mean is None
    assert difference({0: history(3)}, {0: history(3)}, last_five).mean == 0.0


@pytest.mark.parametrize("method", ["active", "oort"])
def test_an_infinite_loss_counts_as_a_failure(method):
    changes = {"data__n_clients": 12, "selection__n_select": 3, "training__epochs": 1}
    config = make_config(
        "regression", method, rounds=40, training__lr=3.0, engine__name="serial", **changes
    )
    with np.errstate(all="ignore"):
        assert len(run(config)) == 40


def test_no_draw_of_a_shared_warm_up_is_made_again(tmp_path):
    trace = tmp_path / "trace.jsonl"
    rounds = [[], list(range(8)), [], *([list(range(8))] * 9)]
    trace.write_text("".join(json.dumps(ids) + "\n" for ids in rounds))
    picks = {}
    for policy in ("oort", "fedcvr-bolt"):
        config = tiny_config(rounds=12, availability__trace=str(trace)).replace(
            selection__policy=policy, selection__shared_warmup=4
        )
        history = run(config, federation=tiny_federation())
        picks[policy] = [tuple(r["picked"]) for r in history.rounds if not r.get("skipped")]
    assert picks["oort"][:4] == picks["fedcvr-bolt"][:4]
    assert picks["oort"][4:8] != picks["oort"][:4]


def test_the_scripts_preset_is_the_scripts_for_baselines_too():
    config = make_config("mnist", "power-of-choice", "scripts")
    assert config.selection.options["candidates"] == "uniform"
    assert config.empty_test == "zero"
    assert make_config("mnist", "power-of-choice").empty_test == "skip"
