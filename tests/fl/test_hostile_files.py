"""Runs and experiments from others: nothing outside their folder is read, copied or written."""

import json
import os

import pytest
from fuzzing import bounded_memory, fuzz
from hypothesis import given
from hypothesis import strategies as st
from report_runs import PIXEL, make_experiment, make_run

from fl.config import ConfigError
from fl.experiments import ReportError, build
from fl.experiments.table import write_csv
from fl.loop import run as run_config
from fl.presets import make_config
from fl.records import NUMBERS
from fl.store import RunStore, StoreError, read_history


def edited(path, **changes):
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "secret.txt", "link.png", "sub/../../secret.png", 3]
)
def test_a_figure_outside_the_folder_is_not_embedded(tmp_path, name):
    (tmp_path / "secret.png").write_bytes(PIXEL)
    folder = make_experiment(tmp_path / "plan", seeds=1, figures=[name])
    (folder / "secret.txt").write_text("secret")
    (folder / "sub").mkdir()
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ReportError, match=r"figures must be \.png or \.svg files in its folder"):
        build([folder], tmp_path / "out")


@pytest.mark.parametrize(
    "svg",
    [
        "<svg><script>alert(1)</script></svg>",
        "<svg onload='alert(1)'></svg>",
        "<svg><a href='javascript:alert(1)'/></svg>",
        "<svg><image href='http://example.org/x.png'/></svg>",
        "<svg><foreignObject><iframe/></foreignObject></svg>",
        "not a picture",
    ],
)
def test_an_svg_with_a_script_is_not_copied(tmp_path, svg):
    folder = make_experiment(tmp_path / "plan", seeds=1, figures=["own.png"])
    (folder / "own.svg").write_text(svg)
    with pytest.raises(ReportError, match=r"own\.svg must be an SVG picture without scripts"):
        build([folder], tmp_path / "out")


def test_runs_outside_the_experiments_are_refused(tmp_path):
    make_run(tmp_path / "elsewhere", "fedavg", 0, [0.5])
    folder = make_experiment(tmp_path / "plans" / "plan", seeds=1)
    values = json.loads((folder / "experiment.json").read_text())
    values["cells"][0]["runs"] = ["../../elsewhere"]
    (folder / "experiment.json").write_text(json.dumps(values))
    with pytest.raises(ReportError, match="runs must lie in"):
        build([folder], tmp_path / "out")


@pytest.mark.parametrize("name", ["rounds.jsonl", "facts.json", "config.json"])
@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_devices_links_and_pipes_are_not_read(tmp_path, name, target):
    make_run(tmp_path / "run", "fedavg", 0, [0.5])
    (tmp_path / "run" / name).unlink()
    if target == "pipe":
        os.mkfifo(tmp_path / "run" / name)
    else:
        (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises(StoreError, match="must be a regular file"):
        read_history(tmp_path / "run")


def test_a_huge_federation_is_not_allocated(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.5, 0.6])
    edited(tmp_path / "run" / "facts.json", n_clients=300_000_000)
    with bounded_memory(10_000), pytest.raises(ReportError, match="n_clients must be in"):
        build([tmp_path / "run"], tmp_path / "out")
    edited(tmp_path / "run" / "facts.json", n_clients=9_000_000)
    values = json.loads((tmp_path / "run" / "config.json").read_text())
    values["data"]["n_clients"] = 300_000_000
    (tmp_path / "run" / "config.json").write_text(json.dumps(values))
    with bounded_memory(10_000, slack=300_000_000):
        build([tmp_path / "run"], tmp_path / "out")


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just([-1]),
    st.just([10**9]),
    st.just(["a"]),
    st.just({}),
    st.just({"a": [1]}),
)
KEYS = ("round", "picked", "failed", "reported", "coalition_sizes", "timing", *NUMBERS)


@fuzz(20)
@given(changes=st.dictionaries(st.sampled_from(KEYS), ODD, min_size=1, max_size=3))
def test_odd_records_raise_one_error_or_are_reported(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("odd")
    make_run(folder / "run", "fedcvr-bolt", 0, [0.5, 0.6, 0.7])
    path = folder / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1] |= changes
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        history = read_history(folder / "run")
    except StoreError:
        return
    history.summary()
    try:
        build([folder / "run"], folder / "out")
    except ReportError:
        return


@fuzz(20)
@given(data=st.data())
def test_odd_manifests_raise_one_error_or_are_reported(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("odd")
    cell = {"row": "r", "column": "c", "method": "fedavg", "runs": [], "paper": [1.0, 2.0]}
    values = {"experiment": "e", "title": "t", "quick": False, "metric": "accuracy"}
    values |= {"cells": [cell], "figures": [], "target": None, "baseline": "c", "command": "x"}
    where = data.draw(st.sampled_from([values, cell]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(ODD)
    (folder / "experiment.json").write_text(json.dumps(values))
    try:
        build([folder], folder / "out")
    except ReportError:
        return


def test_cells_that_look_like_formulas_are_quoted(tmp_path):
    rows = [{"a": "=cmd()", "b": "@x", "c": "-1.5", "d": -2.0, "e": "+1+cmd", "f": "plain"}]
    write_csv(tmp_path / "t.csv", rows)
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "'=cmd(),'@x,-1.5,-2.0,'+1+cmd,plain"


@pytest.mark.parametrize("name", ["rounds.jsonl", ".lock", "checkpoint.npz", "summary.json"])
def test_resuming_follows_no_link(tmp_path, name):
    config = make_config("digits", "fedavg", rounds=1)
    with RunStore(tmp_path / "run", config) as store:
        store.restore()
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(victim)
    with (
        pytest.raises(StoreError, match="must be a regular file"),
        RunStore(tmp_path / "run", config, resume=True) as store,
    ):
        store.restore()
    assert victim.read_text() == "precious\n"


def test_a_settings_file_cannot_choose_where_rows_go(tmp_path):
    config = make_config("digits", "fedavg", rounds=1).replace(
        aggregator="memory", aggregator_options={"folder": str(tmp_path / "else"), "limit": 0}
    )
    with pytest.raises(ConfigError, match="folder must not be set"):
        run_config(config)
    assert not (tmp_path / "else").exists()
