"""The command line as its users meet it: in this process, and as a real one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fl.cli import app
from fl.commands.errors import exit_code

ROOT = Path(__file__).parents[2]
SMALL = [
    "--clients", "12", "--select", "4", "--quiet", "--engine", "serial",
    "--set", "training.epochs=1",
]  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def command(*arguments):
    return [sys.executable, "-m", "fl", *map(str, arguments)]


def execute(*arguments, **options):
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=120,
        check=False, **options,
    )  # fmt: skip


def is_one_line(text, message):
    assert message in text
    assert "Traceback" not in text
    return len(text.strip().splitlines()) == 1


# -- in this process ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["run", "compare", "methods", "reproduce", "report", "bench", "config"]
)
def test_every_command_has_help(name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert name in result.stdout


def test_help_shows_every_default():
    result = CliRunner().invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"})
    options = [line for line in result.stdout.splitlines() if " --" in line]
    flags = ("--quick", "--json", "--quiet", "--help")
    for line in options:
        if not any(flag in line for flag in flags):
            assert "default:" in line, line


def test_methods_are_listed_by_what_they_change_of_fedavg():
    from fl.presets import METHODS

    rows = {row["method"]: row for row in json.loads(invoke("methods", "--json").stdout)}
    assert list(rows) == list(METHODS)
    assert "Other" not in {row["kind"] for row in rows.values()}
    assert rows["fedavg-averaged"]["server"] == "step 4, averaged"
    on_images = json.loads(invoke("methods", "--dataset", "cifar10", "--json").stdout)
    cifar = {row["method"]: row for row in on_images}
    assert cifar["fedavg-averaged"]["server"] == "step adapts, averaged"
    text = invoke("methods").stdout
    assert "fedprox (mu=0.1)" in text
    assert "policy pivotal (features=head); aggregator memory; server step 4, averaged" in text
    assert invoke("methods", "--dataset", "mnits").exit_code == 2


def test_data_commands(tmp_path):
    rows = json.loads(invoke("data", "list", "--json").stdout)
    assert {row["name"]: row["files"] for row in rows}["digits"] == "embedded"
    assert "CIFAR-100" in invoke("data", "list").stdout
    assert "needs no file" in invoke("data", "check", "digits").stdout
    assert "needs no file" in invoke("data", "fetch", "digits").stdout
    assert json.loads(invoke("data", "fetch", "digits", "--json").stdout) == {}
    assert json.loads(invoke("data", "check", "digits", "--json").stdout) == []
    unknown = invoke("data", "check", "mnits")
    assert unknown.exit_code == 2
    assert is_one_line(unknown.stderr, "dataset must be one of")


def test_check_finds_a_truncated_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CVRCORE_DATA", str(tmp_path))
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (folder / name).write_bytes(b"\x00\x00\x08\x01")
    result = invoke("data", "check", "mnist", "--json", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert {row["status"] for row in json.loads(result.stdout)} <= {"differs", "damaged"}


def test_config_shows_versions():
    assert "cvrcore" in invoke("config").stdout
    assert "python" in json.loads(invoke("config", "--json").stdout)


def test_reproduce_prints_table_and_json(tmp_path):
    few = ["--quick", "--dataset", "digits", "--rounds", "3", "--seeds", "1", "--quiet"]
    arguments = ["reproduce", "classification", *few, "--methods", "fedavg,active"]
    arguments += ["--out", tmp_path]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert "(quick)" in result.stdout
    assert "quick" in result.stderr
    found = json.loads(invoke(*arguments, "--json").stdout)
    assert found[0]["quick"] is True
    assert [row["seeds"] for row in found[0]["rows"]] == [1, 0, 1] + 8 * [0]


def test_reproduce_runs_a_slice_and_names_every_experiment(tmp_path):
    from fl.experiments import NAMES

    few = ["--quick", "--dataset", "digits", "--rounds", "1", "--seeds", "1", "--quiet", "--json"]
    wanted = ["--rows", "*k-100-1-alpha-0-1", "--columns", "fedavg", "--columns", "pivotal"]
    result = invoke("reproduce", "map", *few, *wanted, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    rows = [row for row in json.loads(result.stdout)[0]["rows"] if row["seeds"]]
    assert [row["column"] for row in rows] == ["fedavg", "pivotal"]
    assert {row["row"] for row in rows} == {"digits, K=100, 1 %, alpha 0.1"}
    refused = invoke("reproduce", "map", "--rows", "K=7*", "--out", tmp_path)
    assert refused.exit_code == 2
    assert "rows must fit one of" in refused.stderr
    text = " ".join(invoke("reproduce", "--help").stdout.replace("│", " ").split())
    assert all(name in text for name in NAMES)


def test_bench_without_a_checkout_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("fl.commands.system.__file__", str(tmp_path / "a" / "b" / "c.py"))
    result = invoke("bench")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, "bench needs a checkout")


def test_bench_compares_saved_records_wherever_it_is_called(tmp_path):
    row = {"part": "p", "name": "a round", "value": 10.0, "unit": "ms"}
    (tmp_path / "old.json").write_text(json.dumps({"rows": [row]}))
    (tmp_path / "new.json").write_text(json.dumps({"rows": [row | {"value": 20.0}]}))
    done = execute("bench", "--load", "new.json", "--compare", "old.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "+100 %" in done.stdout
    assert "WORSE" in done.stdout
    missing = invoke("bench", "--compare", tmp_path / "none.json")
    assert missing.exit_code == 2
    assert is_one_line(missing.stderr, "--compare must be a saved record")


def test_settings_come_from_toml_and_from_a_saved_config(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('method = "fedprox"\nrounds = 2\n[training]\nlr = 0.5\n')
    out = tmp_path / "r"
    assert invoke("run", *SMALL, "--config", file, "--out", out).exit_code == 0
    saved = json.loads((out / "config.json").read_text())
    assert (saved["method"], saved["rounds"], saved["training"]["lr"]) == ("fedprox", 2, 0.5)
    again = invoke("run", "--config", out / "config.json", "--quiet", "--json")
    assert json.loads(again.stdout)["method"] == "fedprox"
    file.write_text("[training]\nlearning_rat = 1\nlr = 1\n")
    wrong = invoke("run", "--config", file)
    assert wrong.exit_code == 2
    assert is_one_line(wrong.stderr, "training.learning_rat is not a setting")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "fedcvr-bolt", "--set", "selection.options.kernel=rbff"], "kernel must be"),
        (["--set", "model=mlpp"], "model must be one of"),
        (
            ["--dataset", "cifar10", "--data-dir", "nowhere", "--set", "data.download=false"],
            "cifar",
        ),
    ],
)
def test_failed_start_leaves_no_folder_behind(tmp_path, monkeypatch, arguments, message):
    monkeypatch.setenv("CVRCORE_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "r"
    result = invoke("run", "--quiet", "--rounds", "2", *arguments, "--out", out)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, message) or "nowhere" in arguments  # that is a list of places
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not out.exists()


def test_truncated_data_file_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "mnist"
    folder.mkdir()
    header = b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (100, 28, 28))
    (folder / "train-images-idx3-ubyte").write_bytes(header + bytes(1000))
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x64" + bytes(9))
    out = tmp_path / "r"
    result = invoke("run", "--dataset", "mnist", "--data-dir", tmp_path, "--quiet", "--out", out)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, "train-")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--nope"], "No such option: --nope"),
        (["run", "--rounds", "many"], "--rounds"),
        (["reproduce"], "Missing argument"),
        (["nothing"], "No such command"),
        (["compare", "--seeds", "0"], "--seeds"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(capsys, arguments, message):
    assert exit_code(app, arguments) == 2
    assert is_one_line(capsys.readouterr().err, message)


# -- as a real process ---------------------------------------------------------------


def test_command_without_torch_or_typer_names_the_extra(tmp_path):
    for missing, arguments in {"torch": ["run"], "typer": ["config"]}.items():
        (tmp_path / f"{missing}.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{missing}'\", name='{missing}')\n"
        )
        found = subprocess.run(
            command(*arguments), capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        )  # fmt: skip
        assert found.returncode == 2
        assert is_one_line(found.stderr, f"{missing} is missing: pip install ")
        assert "'torch>=2.4'" in found.stderr


def test_import_of_the_command_leaves_torch_out():
    code = "import sys, fl.commands; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, timeout=60)


def test_interrupt_leaves_a_run_that_resumes_to_the_same_result(tmp_path):
    straight = ["run", *SMALL, "--rounds", "300", "--eval-every", "100", "--json"]
    arguments = [*straight, "--set", "checkpoint_every=5", "--out", tmp_path / "r"]
    process = subprocess.Popen(
        command(*arguments),
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        cwd=tmp_path,
        # In the background of a script this process, and with it its child, ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "r" / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert is_one_line(errors, "add --resume to continue")
    assert not (tmp_path / "r" / "summary.json").exists()
    resumed, whole = invoke(*arguments, "--resume"), invoke(*straight)
    assert resumed.exit_code == 0, resumed.output
    first, second = json.loads(resumed.stdout), json.loads(whole.stdout)
    assert first["rounds"] == 300
    assert first["last_five"] == second["last_five"]


def test_full_disk_is_one_line_and_leaves_nothing_to_trust(tmp_path):
    resource = pytest.importorskip("resource", reason="limits of file size are POSIX")

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    out = tmp_path / "r"
    arguments = ["run", *SMALL, "--rounds", "30", "--out", out]
    result = execute(*arguments, preexec_fn=small_files)
    assert result.returncode == 2
    assert is_one_line(result.stderr, "cannot be written")
    assert not (out / "summary.json").exists()
    assert not list(out.glob("*.part"))
    again = invoke(*arguments, "--resume", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["rounds"] == 30


def test_help_names_methods_of_each_kind_and_every_data_set():
    from fl import presets
    from fl.commands.settings import DATASETS, METHODS
    from fl.data import DATASETS as KNOWN

    inside = re.findall(r"\(([^)]*), \.\.\.\)", METHODS)
    named = {name for part in inside for name in part.split(", ")}
    assert named <= set(presets.METHODS)
    kinds = ("TABLE", "ABLATIONS", "BEYOND", "BALANCED", "ZOO", "SERVER", "TRAINING")
    assert all(named & set(getattr(presets, kind)) for kind in kinds)
    assert set(DATASETS.replace(" or ", ", ").split(", ")) == set(KNOWN)


def test_reproduce_takes_its_options_from_a_file_and_arguments_win(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(
        'rounds = 2\nseeds = 1\nquick = true\ndataset = "digits"\nmethods = ["fedavg"]\n'
    )
    arguments = ["reproduce", "classification", "--config", file, "--out", tmp_path, "--quiet"]
    assert invoke(*arguments).exit_code == 0
    record = tmp_path / "classification-quick" / "experiment.json"
    before = record.read_bytes()
    assert b"--rounds 2" in before
    # Other rounds in the same folder are refused, and the record stays as it was.
    refused = invoke(*arguments, "--rounds", 3)
    assert refused.exit_code == 2
    assert "its rounds is 2, not 3" in refused.stderr
    assert record.read_bytes() == before
    for text, message in (
        ("round = 2", "round is not a setting; did you mean 'rounds'?"),
        ('rounds = "2"', "rounds must be an integer"),
    ):
        file.write_text(text)
        bad = invoke(*arguments)
        assert bad.exit_code == 2
        assert message in bad.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check", "mnst"], "did you mean 'mnist'?"),
        (
            ["run", "--method", "fedcvr-bolt", "--set", "selection.options.temprature=2"],
            "temprature is not an option of fedcvr-bolt; did you mean 'temperature'?",
        ),
        (
            ["reproduce", "kernels", "--dataset", "regression", "--out", "{tmp}"],
            "kernels compares accuracies, and regression has none",
        ),
    ],
)
def test_near_misses_are_named(tmp_path, arguments, message):
    refused = invoke(*(word.format(tmp=tmp_path) for word in arguments))
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert not list(tmp_path.iterdir())


def test_policies_are_listed_with_needs_and_can_be_cited():
    listed = {row["name"]: row for row in json.loads(invoke("policies", "--json").output)}
    assert listed["uniform"]["needs"] == "nothing"
    assert listed["drift"]["needs"] == "sent, updates"
    assert listed["multinomial"]["size"] == "at-most"
    cited = invoke("policies", "--cite", "optimal").output
    assert cited.startswith("@article{chen2022optimal,")
    assert invoke("policies", "--cite", "nobody").exit_code != 0
