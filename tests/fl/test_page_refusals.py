"""What cannot be reported is named in one line, and nothing is left behind."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import (
    make_run,
)

from fl.experiments import ReportError, build

ROOT = Path(__file__).parents[2]


def broken(folder, kind):
    """Make the folder that `kind` names; return the folder that the message must name."""
    if kind == "missing":
        return folder / "nowhere"
    if kind == "empty":
        (folder / "empty").mkdir()
        return folder / "empty"
    run = folder / "runs" / "oort-1"
    make_run(run, "oort", 1, [0.1, 0.2, 0.3])
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    if kind == "torn":
        lines[1] = lines[1][:20] + "\n"
    elif kind == "reordered":
        lines[0], lines[1] = lines[1], lines[0]
    elif kind == "list":
        lines[2] = "[1, 2]\n"
    elif kind == "binary":
        (run / "rounds.jsonl").write_bytes(b"\xff\xfe\n")
        return run
    elif kind == "config":
        (run / "config.json").write_text("{")
    (run / "rounds.jsonl").write_text("".join(lines))
    return run


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "torn", "reordered", "list", "binary", "config"]
)
def test_folder_that_cannot_be_reported_is_named_in_one_line(tmp_path, kind):
    culprit = broken(tmp_path, kind)
    place = culprit if kind in ("missing", "empty") else tmp_path / "runs"
    with pytest.raises(ReportError, match=re.escape(str(culprit))) as caught:
        build([place], tmp_path / "out")
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"metric": "accuracy"}', "'experiment' is missing"),
        ('{"metric": "loss"}', "metric must be accuracy or mse, got 'loss'"),
    ],
)
def test_damaged_plan_is_named(tmp_path, text, message):
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ReportError, match=message) as caught:
        build([tmp_path], tmp_path / "out")
    assert str(tmp_path / "experiment.json") in str(caught.value)


def test_place_that_cannot_be_written_leaves_no_page(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.5])
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        build([tmp_path / "run"], tmp_path / "file" / "out")
    with pytest.raises(ReportError, match="at least one folder"):
        build([], tmp_path / "out")


def test_report_leaves_pyplot_and_torch_alone(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.5])
    code = (
        "import sys; from fl.experiments import build; assert 'matplotlib' not in sys.modules; "
        f"build([{str(tmp_path / 'run')!r}], {str(tmp_path / 'out')!r}); "
        "assert 'matplotlib.pyplot' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "out" / "report.html").exists()
