"""The checker of the documentation site, and the notebooks that it shows."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture
def problems():
    path = ROOT / "docs" / "_ext" / "check_site.py"
    spec = importlib.util.spec_from_file_location("check_site", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.problems


def site(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


def test_links_that_lead_somewhere_pass(problems, tmp_path):
    a = '<h2 id="top">A</h2><a href="b.html#here">b</a><a href="#top">a</a>'
    b = '<p id="here">B</p><a href="https://example.org/">far</a><img src="data:image/png;x">'
    assert problems(site(tmp_path, a=a, b=b)) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<a href="gone.html">x</a>', "gone.html leads nowhere"),
        ('<a href="a.html#gone">x</a>', "a.html#gone names no place"),
        ('<img src="gone.png">', "gone.png leads nowhere"),
        ('<script src="https://example.org/x.js"></script>', "x.js from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "x.css from elsewhere"),
    ],
)
def test_what_is_wrong_is_found(problems, tmp_path, body, message):
    (found,) = problems(site(tmp_path, a=body))
    assert message in found


def test_fonts_from_elsewhere_are_found(problems, tmp_path):
    (tmp_path / "x.css").write_text("@font-face { src: url(https://example.org/x.woff2) }")
    (found,) = problems(site(tmp_path, a="A"))
    assert "x.woff2 from elsewhere" in found


def test_an_empty_folder_is_no_site(problems, tmp_path):
    assert problems(tmp_path)


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["flower_memory", "mnist_report", "select_numpy"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_is_small_complete_and_of_no_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join("".join(output.get("text", "")) for output in outputs)
    assert not re.search(r"/(home|root|tmp|opt|work|usr)/", printed)
