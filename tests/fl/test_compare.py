import json

import numpy as np
import pytest
from scipy import stats
from tiny import tiny_config
from typer.testing import CliRunner

from fl.cli import app
from fl.config import ConfigError
from fl.experiments.compare import Comparison, compare
from fl.experiments.text_tables import comparison_table
from fl.history import History
from fl.presets import make_config, resolve

SMALL = [
    "--rounds", "3", "--clients", "12", "--select", "4", "--quiet", "--engine", "serial",
    "--set", "training.epochs=1",
]  # fmt: skip


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def made_up(values, seed=0):
    history = History(tiny_config(target=0.5), {"n_classes": 3})
    history.rounds = [{"round": i + 1, "accuracy": v} for i, v in enumerate(values)]
    return history


def test_table_pairs_seeds():
    a = [made_up([0.4, 0.6]), made_up([0.2, 0.4]), made_up([0.3, 0.5])]
    b = [made_up([0.5, 0.7]), made_up([0.4, 0.6]), made_up([0.4, 0.4])]
    first, second = Comparison({"a": a, "b": b}).table()
    assert first["final"] == pytest.approx(0.5)
    assert first["final_2std"] == pytest.approx(2 * np.std([0.6, 0.4, 0.5], ddof=1))
    assert (first["reached"], first["rounds_to_target"]) == (2, 2.0)
    assert (second["reached"], second["rounds_to_target"]) == (2, 1.5)
    gains = np.array([0.6 - 0.5, 0.5 - 0.3, 0.4 - 0.4])  # means of the last five evaluations
    error = gains.std(ddof=1) / np.sqrt(3)
    assert second["gain"] == pytest.approx(gains.mean())
    assert second["gain_2se"] == pytest.approx(2 * error)
    ends = stats.t.interval(0.95, 2, gains.mean(), error)
    assert [second["gain_low"], second["gain_high"]] == pytest.approx(ends)


def test_two_seeds_give_no_interval():
    pairs = {
        name: [made_up([0.4]), made_up([value])] for name, value in {"a": 0.2, "b": 0.5}.items()
    }
    row = Comparison(pairs).table()[1]
    assert row["gain"] == pytest.approx(0.15)
    assert row["gain_2se"] is row["gain_low"] is row["gain_high"] is None


def test_one_seed_has_no_spread():
    (row,) = Comparison({"a": [made_up([0.5])]}).table()
    assert row["final_2std"] is None
    assert row["gain_2se"] is None


def test_simulated_seconds_are_counted_to_the_target_and_in_all():
    runs = [made_up([0.4, 0.6, 0.6]), made_up([0.2, 0.3, 0.7]), made_up([0.1, 0.1, 0.1])]
    for run, clock in zip(runs, ([10, 20, 30], [5, 10, 18], [1, 2, 6]), strict=True):
        for record, time in zip(run.rounds, clock, strict=True):
            record["simulated_clock"] = float(time)
    (row,) = rows = Comparison({"a": runs}).table()
    assert row["simulated_seconds_to_target"] == pytest.approx((20 + 18) / 2)  # two got there
    assert row["simulated_seconds"] == pytest.approx((30 + 18 + 6) / 3)
    headings = [str(column.header) for column in comparison_table(rows).columns]
    assert headings[-2:] == ["simulated\nseconds\nto target\nin all", "seconds\na run"]
    cells = [list(column.cells)[0] for column in comparison_table(rows).columns]
    assert cells[-2] == "19.0\n18.0"


def test_runs_without_devices_have_no_column_of_simulated_seconds():
    rows = Comparison({"a": [made_up([0.6])]}).table()
    assert rows[0]["simulated_seconds"] is rows[0]["simulated_seconds_to_target"] is None
    assert not any("simulated" in str(c.header) for c in comparison_table(rows).columns)


def test_command_compares_simulated_time(tmp_path):
    simulated = ["--set", "fleet.enabled=true", "--set", "target=0.05"]
    result = invoke("compare", "fedavg", *SMALL, *simulated, "--seeds", "1", "--json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert 0 < row["simulated_seconds_to_target"] <= row["simulated_seconds"]


def test_compare_writes_table_and_figure_and_reads_finished_runs_back(tmp_path):
    configs = {
        method: make_config(
            "digits",
            method,
            rounds=4,
            data__n_clients=12,
            selection__n_select=4,
            training__epochs=1,
            engine__name="serial",
        )
        for method in ("fedavg", "oort")
    }
    first = compare(configs, range(2), tmp_path)
    calls = []
    second = compare(configs, range(2), tmp_path, progress=calls.append)
    assert calls == []
    assert first.table() == second.table()
    written = second.write(tmp_path)
    assert all(path.stat().st_size > 0 for path in written)
    assert written[-1].read_bytes().startswith(b"\x89PNG")


def test_command_runs_and_prints_json(tmp_path):
    result = invoke("run", *SMALL, "--method", "fedprox", "--json", "--out", tmp_path / "r")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["method"] == "fedprox"
    again = invoke("run", *SMALL, "--method", "fedprox", "--out", tmp_path / "r", "--resume")
    assert again.exit_code == 0
    assert "fedprox" in again.stdout


def test_command_compares(tmp_path):
    result = invoke("compare", "fedavg", "active", *SMALL, "--seeds", "2", "--out", tmp_path / "c")
    assert result.exit_code == 0, result.output
    assert "active" in result.stdout
    assert (tmp_path / "c" / "curves.png").exists()
    assert "2 seeds" in result.stdout
    one = invoke("compare", "fedavg", *SMALL, "--seeds", "1")
    assert "1 seed;" in one.stdout
    as_json = invoke("compare", "fedavg", *SMALL, "--seeds", "1", "--json")
    assert json.loads(as_json.stdout)[0]["seeds"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "mnits"], "did you mean 'mnist'"),
        (["--method", "fedprx"], "did you mean 'fedprox'"),
        (["--set", "training.lrr=1"], "did you mean 'training.lr'"),
        (["--set", "rounds"], "--set must look like training.lr=0.1, got 'rounds'"),
        (["--config", "none.toml"], "none.toml cannot be read"),
        (["--trace", "none.csv"], "trace 'none.csv' cannot be read"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
    ],
)
def test_user_errors_are_one_line_and_exit_code_2(arguments, message):
    result = invoke("run", "--quiet", "--rounds", "1", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_folder_of_another_config_is_one_line(tmp_path):
    assert invoke("run", *SMALL, "--out", tmp_path / "r").exit_code == 0
    result = invoke("run", *SMALL, "--out", tmp_path / "r", "--seed", "1", "--resume")
    assert result.exit_code == 2
    assert "another config: its seed is 0, not 1" in result.stderr


def test_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fl.loop.run", interrupt)
    result = invoke("run", *SMALL, "--out", tmp_path / "r")
    assert result.exit_code == 130
    assert "add --resume to continue" in result.stderr


def test_missing_torch_names_the_extra(monkeypatch):
    def missing(*arguments, **options):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("fl.loop.run", missing)
    result = invoke("run", *SMALL)
    assert result.exit_code == 2
    assert "torch is missing: pip install " in result.stderr


def test_arguments_win_over_the_file_and_the_file_over_the_preset():
    file = {"method": "ifca", "data": {"dataset": "mnist"}, "training": {"lr": 0.5}, "rounds": 9}
    config = resolve(file, {"rounds": 4})
    assert (config.method, config.algorithm.name, config.data.dataset) == ("ifca", "ifca", "mnist")
    assert (config.training.lr, config.training.batch_size, config.rounds) == (0.5, 100, 4)
    other = resolve(file, {"method": "fedcvr-bolt", "data__dataset": "cifar10"})
    assert (other.selection.policy, other.selection.n_features) == ("fedcvr-bolt", 300)
    with pytest.raises(ConfigError, match="method must be a string, got 3"):
        resolve({"method": 3}, {})
    with pytest.raises(ConfigError, match="data must be a table"):
        resolve({"data": 3}, {})
