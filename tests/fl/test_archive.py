"""Runs packed into an archive and back: the same tables, and hostile files refused."""

import json
import lzma

import numpy as np
import pytest
from report_runs import make_run

import fl
from fl.experiments import Request, reproduce
from fl.experiments.archive import join, pack, read_lines, unpack
from fl.experiments.export import export
from fl.experiments.measures import rows_of
from fl.experiments.statistics import readers
from fl.store import StoreError, read_history, write_json


@pytest.fixture
def runs(tmp_path):
    """Two real runs of digits below an experiment's folder."""
    for seed in (0, 1):
        config = fl.make_config("digits", "fedavg", rounds=3, n_clients=6, n_select=2, seed=seed)
        folder = tmp_path / "runs" / "mine" / "digits" / "fedavg" / f"seed-{seed}"
        fl.run(config.replace(save_models=False, engine__name="serial"), folder)
    write_json(tmp_path / "runs" / "mine" / "experiment.json", {"cells": []})
    return tmp_path / "runs"


def test_numbers_of_tables_survive_packing(runs, tmp_path):
    [path] = pack(runs, tmp_path / "archive")
    assert path.name == "mine.jsonl.xz"
    assert unpack(tmp_path / "archive", tmp_path / "again") == 2
    for seed in (0, 1):
        inner = f"mine/digits/fedavg/seed-{seed}"
        before, after = read_history(runs / inner), read_history(tmp_path / "again" / inner)
        assert after.config == before.config
        for name, read in readers(100.0, 0.2).items():
            ours, theirs = read(after), read(before)
            assert (ours is None) == (theirs is None), name
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9, err_msg=name)
    assert (tmp_path / "again" / "mine" / "experiment.json").exists()


def test_packing_again_adds_and_keeps(runs, tmp_path):
    archive = tmp_path / "archive"
    pack(runs, archive)
    kept = read_history(runs / "mine/digits/fedavg/seed-0")
    for path in sorted((runs / "mine/digits/fedavg/seed-0").iterdir()):
        path.unlink()
    (runs / "mine/digits/fedavg/seed-0").rmdir()
    [path] = pack(runs, archive)  # seed 0 is gone from the disk, not from the archive
    folders = [line["folder"] for line in read_lines(path)]
    assert folders == ["mine", "mine/digits/fedavg/seed-0", "mine/digits/fedavg/seed-1"]
    line = next(line for line in read_lines(path) if line["folder"].endswith("seed-0"))
    np.testing.assert_allclose(line["rounds"]["accuracy"], kept.column("accuracy")[1], rtol=1e-5)
    assert line["facts"]["origin"]["commit"]


def test_an_unpacked_experiment_is_finished_and_gives_the_same_table(tmp_path, monkeypatch):
    plan = Request(quick=True, dataset="digits", rounds=4, seeds=2, methods=("fedavg", "active"))
    (made,) = reproduce("classification", plan, tmp_path / "runs")
    pack(tmp_path / "runs", tmp_path / "archive", "0123456789")
    assert unpack(tmp_path / "archive", tmp_path / "again") == 4
    monkeypatch.setattr("fl.loop.run", lambda *a, **k: pytest.fail("ran again"))
    (again,) = reproduce("classification", plan, tmp_path / "again")
    for ours, theirs in zip(again.rows, made.rows, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if isinstance(value, float):
                assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-3), name
            else:
                assert ours[name] == value, name
    [path] = (tmp_path / "archive").glob("*.xz")
    lines = [line for line in read_lines(path) if "config" in line]
    assert all("reproduce classification" in ln["facts"]["origin"]["command"] for ln in lines)
    assert all(ln["facts"]["origin"]["commit"] not in ("", "unknown") for ln in lines)
    assert path.stat().st_size < 4 * 4000
    assert str(tmp_path) not in "".join(map(json.dumps, lines))


def test_tables_and_figures_come_from_the_archive_alone(tmp_path):
    plan = Request(quick=True, dataset="digits", rounds=4, seeds=1, methods=("fedavg", "hics"))
    reproduce("policies", plan, tmp_path / "runs")
    pack(tmp_path / "runs", tmp_path / "archive")
    pages = []
    for source in ("runs", "archive"):
        docs = tmp_path / f"docs-{source}"
        docs.mkdir()
        mark = "policies-quick"
        (docs / "results.md").write_text(f"<!-- table {mark} -->\n<!-- end {mark} -->\n")
        export(tmp_path / source, docs)
        pages.append((docs / "results.md").read_text())
        assert (docs / "figures" / "policies-quick-digits-curves.png").exists()
    assert pages[0] == pages[1]
    assert "| digits | hics | 1 |" in pages[0]


def test_packing_from_a_machine_with_fewer_runs_keeps_the_others_in_the_manifest(tmp_path):
    plan = Request(quick=True, dataset="digits", rounds=2, seeds=2, methods=("fedavg",))
    reproduce("classification", plan, tmp_path / "first")
    pack(tmp_path / "first", tmp_path / "archive")
    one = Request(quick=True, dataset="digits", rounds=2, seeds=1, methods=("active",))
    reproduce("classification", one, tmp_path / "second")
    pack(tmp_path / "second", tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "again")
    rows = {row["column"]: row for row in rows_of(tmp_path / "again" / "classification-quick")}
    assert (rows["fedavg"]["seeds"], rows["active"]["seeds"], rows["oort"]["seeds"]) == (2, 1, 0)


def test_a_cell_of_other_settings_keeps_its_newer_runs():
    def plan(lr, runs, command):
        cell = {"row": "a", "column": "b", "config": {"lr": lr}, "runs": runs, "command": command}
        return {"cells": [cell], "figures": [], "title": command}

    older = plan(1, ["x/seed-2", "x/seed-10"], "older")
    same, other, empty = plan(1, ["x/seed-1"], "new"), plan(2, ["x/seed-1"], "new"), plan(2, [], "")
    assert join(older, same)["cells"][0]["runs"] == ["x/seed-1", "x/seed-2", "x/seed-10"]
    assert join(older, other)["cells"][0]["runs"] == ["x/seed-1"]
    assert join(older, empty)["cells"][0] == older["cells"][0]
    assert join({}, same) == same


@pytest.mark.parametrize(
    "line",
    [
        {"folder": "../outside", "config": {}, "facts": {}, "summary": {}, "rounds": {}},
        {"folder": "/tmp/outside", "manifest": {}},
        {"folder": 3, "manifest": {}},
        {"folder": "a", "manifest": 5},
        {"config": {}},
        {"folder": "a/b", "config": {}, "facts": {}, "summary": {}, "rounds": {"x": [1], "y": []}},
        {"folder": "a/b", "config": {}, "facts": {}, "summary": {}, "rounds": 7},
    ],
)
def test_hostile_lines_are_refused(line, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / "bad.jsonl.xz").write_bytes(lzma.compress(json.dumps(line).encode()))
    with pytest.raises(StoreError, match="bad.jsonl.xz"):
        unpack(archive, tmp_path / "runs")
    assert not (tmp_path / "outside").exists()


def test_damaged_files_are_refused(tmp_path):
    whole = lzma.compress(b'{"folder": "a", "manifest": {}}\n' * 100)
    files = {"cut": whole[:-8], "text": b"no archive", "lines": lzma.compress(b"{")}
    for name, data in files.items():
        path = tmp_path / f"{name}.jsonl.xz"
        path.write_bytes(data)
        with pytest.raises(StoreError, match=name):
            list(read_lines(path))


def test_unfinished_runs_stay_out(tmp_path):
    make_run(tmp_path / "runs" / "mine" / "a" / "seed-0", "fedavg", 0, [0.1, 0.2])
    assert pack(tmp_path / "runs", tmp_path / "archive") == []
