"""Libraries log, and never print."""

import ast
import logging
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Modules whose purpose is the terminal: entry points that print their result.
SPEAKERS = {
    "cvrcore/__main__.py",
    "fl/cli.py",
    "fl/experiments/archive.py",
    "fl/experiments/export.py",
    "fl/settings_page.py",
}


def printing(path):
    """Return the lines of a file that call print, or write to a standard stream."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called == "print" or called in ("sys.stdout.write", "sys.stderr.write"):
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("package", ["cvrcore", "fl"])
def test_no_library_module_prints(package):
    found = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / package).rglob("*.py")
        if (lines := printing(path))
    }
    assert set(found) - SPEAKERS == set(), found


def test_a_print_would_be_found(tmp_path):
    path = tmp_path / "library.py"
    path.write_text("def f():\n    print('x')\n")
    assert printing(path) == [2]


@pytest.mark.parametrize("package", ["cvrcore", "fl"])
def test_warnings_are_heard_and_the_application_may_silence_them(package):
    """No handler of the library's own: warnings reach standard error unless told otherwise."""
    for level, heard in (("WARNING", "slow\n"), ("CRITICAL", "")):
        code = f"import {package}, logging; logging.getLogger('{package}').setLevel('{level}'); "
        code += f"logging.getLogger('{package}.x').warning('slow')"
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
        assert done.stderr == heard
    __import__(package)
    assert logging.getLogger(package).handlers == []


@pytest.mark.parametrize("package", ["cvrcore", "fl"])
def test_loggers_belong_to_their_package(package):
    """Every logger is named after its module or package; Flower's log has one of its own."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                (name,) = node.args
                named = ast.unparse(name).strip("'\"")
                allowed = named in ("__name__", "name") or named.split(".")[0] in (package, "flwr")
                assert allowed, (path, node.lineno, named)
