import csv
import json
import shutil

import numpy as np
import pytest

from fl.config import ConfigError
from fl.experiments import NAMES, ReportError, Request, reproduce
from fl.experiments.definition import slug
from fl.experiments.definitions import classification, kernels, participation, regression
from fl.experiments.definitions.overview import embed
from fl.experiments.export import export, fill
from fl.experiments.measures import rows_of
from fl.experiments.results import read_results
from fl.experiments.statistics import interval
from fl.store import RunStore, StoreError, read_history

SMALL = {"quick": True, "dataset": "digits", "rounds": 6, "seeds": 2}
FIELDS = {"experiment", "title", "quick", "preset", "command", "metric", "cells", "figures"}


def manifest_of(folder):
    return json.loads((folder / "experiment.json").read_text())


@pytest.fixture(scope="module")
def two_methods(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    plan = Request(**SMALL, methods=("fedavg", "fedcvr-bolt"))
    (outcome,) = reproduce("classification", plan, out)
    return out, plan, outcome


def test_manifest_holds_every_cell_and_the_runs_so_far(two_methods):
    out, _, outcome = two_methods
    found = manifest_of(out / "classification-quick")
    assert found.keys() >= FIELDS
    assert found["quick"] is True
    assert "quick" in found["title"]
    assert "--quick" in found["command"]
    assert len(found["cells"]) == 11
    done = {cell["column"]: cell["runs"] for cell in found["cells"] if cell["runs"]}
    runs = [f"digits/fedavg/seed-{s}" for s in range(2)]
    assert done.keys() == {"fedavg", "fedcvr-bolt"}
    assert done["fedavg"] == runs
    assert all((outcome.path.parent / run / "summary.json").exists() for run in runs)
    assert all((outcome.path.parent / name).exists() for name in found["figures"])


def test_finished_runs_are_not_run_again(two_methods, monkeypatch):
    out, plan, outcome = two_methods
    monkeypatch.setattr("fl.loop.run", lambda *a, **k: pytest.fail("ran again"))
    (again,) = reproduce("classification", plan, out)
    assert again.rows == outcome.rows


def test_a_later_command_adds_to_the_table(two_methods):
    out, plan, _ = two_methods
    more = Request(**{**SMALL, "seeds": 1}, methods=("oort",))
    reproduce("classification", more, out)
    cells = {c["column"]: c for c in manifest_of(out / "classification-quick")["cells"]}
    assert len(cells["fedavg"]["runs"]) == 2
    assert len(cells["oort"]["runs"]) == 1
    assert "--methods oort" in cells["oort"]["command"]


def test_interrupted_reproduction_goes_on(tmp_path, monkeypatch):
    from fl.loop import run

    begun = []

    def stop_in_the_second(config, folder, **options):
        begun.append(folder)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return run(config, folder, **options)

    plan = Request(**SMALL, methods=("fedavg", "active"))
    monkeypatch.setattr("fl.loop.run", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        reproduce("classification", plan, tmp_path)
    cells = manifest_of(tmp_path / "classification-quick")["cells"]
    assert [len(c["runs"]) for c in cells if c["column"] in ("fedavg", "active")] == [1, 0]
    reproduce("classification", plan, tmp_path)
    # Seeds outermost: fedavg 0, active 0 (stopped), then the rest; fedavg 0 only once.
    assert len(begun) == 2 + 3
    cells = manifest_of(tmp_path / "classification-quick")["cells"]
    assert [len(c["runs"]) for c in cells if c["column"] in ("fedavg", "active")] == [2, 2]


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path):
    plan = Request(**{**SMALL, "seeds": 1}, methods=("fedavg", "active"))
    config = classification.make(plan).cells[0].config.replace(seed=0)
    told = []
    with RunStore(tmp_path / "classification-quick/digits/fedavg/seed-0", config):
        (outcome,) = reproduce("classification", plan, tmp_path, tell=told.append)
    seeds = {row["column"]: row["seeds"] for row in outcome.rows}
    assert (seeds["fedavg"], seeds["active"]) == (0, 1)
    assert any("left to another process" in line for line in told)
    (outcome,) = reproduce("classification", plan, tmp_path)
    assert {row["column"]: row["seeds"] for row in outcome.rows}["fedavg"] == 1


def test_runs_of_another_process_get_into_the_manifest(tmp_path):
    one = Request(**{**SMALL, "rounds": 2}, methods=("fedavg",))
    (outcome,) = reproduce("classification", one, tmp_path)
    before = outcome.path.read_text()
    more = Request(**{**SMALL, "rounds": 2, "seeds": 3}, methods=("fedavg",))
    reproduce("classification", more, tmp_path)
    outcome.path.write_text(before)  # another process had read it before, and writes it last
    other = Request(**{**SMALL, "rounds": 2}, methods=("active",))
    (outcome,) = reproduce("classification", other, tmp_path)
    assert {row["column"]: row["seeds"] for row in outcome.rows}["fedavg"] == 3


def test_kernels_share_the_run_of_the_classification_table(two_methods):
    out, _, _ = two_methods
    (outcome,) = reproduce("kernels", Request(**SMALL, methods=("fedcvr-bolt",)), out)
    (rbf,) = [c for c in manifest_of(outcome.path.parent)["cells"] if c["column"] == "rbf"]
    assert rbf["runs"][0] == "../classification-quick/digits/fedcvr-bolt/seed-0"
    assert not (outcome.path.parent / "digits").exists()


def test_overview_draws_the_live_state(two_methods):
    out, _, _ = two_methods
    (outcome,) = reproduce("overview", Request(**SMALL), out)
    assert outcome.figures[0].read_bytes().startswith(b"\x89PNG")


def test_settings_of_another_run_are_refused(two_methods):
    out, plan, _ = two_methods
    other = Request(**{**SMALL, "rounds": 5}, methods=("fedavg",))
    with pytest.raises(StoreError, match="another config: its rounds is 6, not 5"):
        reproduce("classification", other, out)


def test_differences_are_paired_by_seed(two_methods):
    out, _, _ = two_methods
    rows = {row["column"]: row for row in rows_of(out / "classification-quick")}
    bolt, base = rows["fedcvr-bolt"], rows["fedavg"]
    assert bolt["difference"] == pytest.approx(bolt["last_five"] - base["last_five"])
    assert bolt["low"] is None is bolt["high"]  # two seeds
    assert (bolt["pairs"], base["pairs"]) == (2, 0)
    first = read_history(out / "classification-quick" / "digits" / "fedavg" / "seed-0")
    assert base["last_five_first"] == pytest.approx(100 * first.last_five())
    assert base["difference"] is None
    assert rows["ifca"]["last_five"] is None


def test_a_run_that_the_manifest_names_must_be_there(two_methods, tmp_path):
    out, _, _ = two_methods
    shutil.copytree(out / "classification-quick", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "digits" / "fedavg" / "seed-1")
    with pytest.raises(ReportError, match="seed-1 holds no run"):
        rows_of(tmp_path / "copy")
    cells = {cell.column: cell for cell in read_results(tmp_path / "copy").cells}
    assert (len(cells["fedavg"].runs), cells["fedavg"].planned) == (1, 2)  # a page says so


def test_interval_covers_nineteen_of_twenty():
    rng = np.random.default_rng(0)
    n_trials = 2000
    found = [interval(sample) for sample in rng.normal(size=(n_trials, 4))]
    hits = [gap.low <= 0 <= gap.high for gap in found]
    assert abs(np.mean(hits) - 0.95) < 4 * np.sqrt(0.95 * 0.05 / n_trials)
    assert (interval([1.0, 2.0]).low, interval([]).mean) == (None, None)


def test_every_experiment_knows_the_papers_settings():
    plan = Request()
    table = classification.make(plan)
    assert len(table.cells) == 33
    assert {c.row for c in table.cells if c.wanted} == {"mnist"}
    assert {c.config.rounds for c in table.cells if c.row == "mnist"} == {200}
    assert {c.config.rounds for c in table.cells if c.row == "cifar10"} == {100}
    ours = {"fedavg-memory", "cvr-steady"}
    assert all((c.paper is None) == (c.column in ours) for c in table.cells)
    lines = regression.make(plan)
    assert (len(lines.cells), lines.seeds, lines.metric) == (16, 20, "mse")
    assert {c.config.data.options["n_groups"] for c in lines.cells} == {1, 2}
    rates = participation.make(plan)
    mnist = [c.config.selection.n_select for c in rates.cells if c.row == "mnist"]
    assert mnist == [5, 10, 20, 30]
    names = [c.config.selection.options.get("kernel", "rbf") for c in kernels.make(plan).cells]
    assert names[:4] == ["rbf", "cosine", "laplacian", "sigmoid"]
    scripts = classification.make(Request(preset="scripts", dataset="cifar10"))
    assert scripts.cells[11].config.training.batch_size == 32


def test_regression_runs_all_four_rows(tmp_path):
    plan = Request(quick=True, rounds=3, seeds=2, methods=("fedavg", "fedcvr-bolt"))
    (outcome,) = reproduce("regression", plan, tmp_path)
    assert [row["seeds"] for row in outcome.rows] == [2, 0, 0, 2] * 4
    assert all(row["last_five"] > 0 for row in outcome.rows if row["seeds"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kernel", {}, "did you mean 'kernels'"),
        ("classification", {"dataset": "mnits"}, "did you mean 'mnist'"),
        ("classification", {"methods": ("fedprx",)}, "did you mean 'fedprox'"),
        ("regression", {"methods": ("ifca",)}, "regression has the methods"),
        ("kernels", {"seeds": 0}, "seeds must be at least 1, got 0"),
        ("all", {"methods": ("fedavg",)}, "methods must be left out"),
    ],
)
def test_mistakes_are_named(tmp_path, name, options, message):
    with pytest.raises(ConfigError, match=message):
        reproduce(name, Request(**options), tmp_path)


def test_names_are_those_of_the_modules():
    assert set(NAMES) >= {"classification", "kernels", "regression", "participation", "all"}
    assert slug("D=1, non-IID") == "d-1-non-iid"


def test_embedding_keeps_outliers_aside():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 5)) * 0.1
    rows[7] += 40
    affinity = np.exp(-((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    points = embed(affinity)
    assert points[:, 0].argmax() == 7
    others = np.delete(points, 7, axis=0)
    assert np.ptp(others[:, 0]) > 0.5 * np.ptp(points[:, 0])


def test_export_writes_tables_that_say_what_was_not_run(two_methods, tmp_path):
    out, _, _ = two_methods
    name = "classification-quick"
    page = tmp_path / "results.md"
    page.write_text(f"Before.\n\n<!-- table {name} -->\nold\n<!-- end {name} -->\n\nAfter.\n")
    export(out, tmp_path)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("Before.")
    assert text.endswith("After.\n")
    assert "| digits | ifca | 0 | not run |" in text
    assert "`cvrcore reproduce classification --quick" in text
    export(out, tmp_path)
    assert page.read_text() == text
    rows = list(csv.DictReader((tmp_path / "results" / f"{name}.csv").read_text().splitlines()))
    assert {row["column"]: row["seeds"] for row in rows}["fedavg"] == "2"
    assert fill("no marks", {"x": "y"}) == "no marks"
    with pytest.raises(StoreError, match="holds no experiment"):
        export(tmp_path / "empty", tmp_path)
