"""Where runs come from: recorded by the run, without a name or a path of the machine."""

import platform
import subprocess

import fl
from fl import origin
from fl.store import read_history


def test_a_run_records_commit_and_kind_of_machine(tmp_path):
    config = fl.make_config("digits", "fedavg", rounds=1, n_clients=5, n_select=2)
    fl.run(config.replace(save_models=False, engine__name="serial"), tmp_path / "run")
    found = read_history(tmp_path / "run").facts["origin"]
    assert found == origin.origin()
    assert platform.machine() in found["machine"]
    assert platform.node() not in " ".join(found.values())


def test_the_commit_is_that_of_the_checkout_and_marks_changes(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert origin._commit(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    assert origin._commit(tmp_path) == git("rev-parse", "--short=10", "HEAD")
    (tmp_path / "file").write_text("2")
    assert origin._commit(tmp_path).endswith("+")
