"""What a release states: one version, targets that exist, hooks that download nothing."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import cvrcore

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_has_one_source_and_its_copies_agree():
    assert "version" in SETTINGS["project"]["dynamic"]
    assert SETTINGS["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "cvrcore.__version__"}
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert cited == cvrcore.__version__
    headings = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:1] in ([], [cvrcore.__version__])  # none before the first dated release


def test_targets_that_documents_and_workflows_name_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    files = [ROOT / "CONTRIBUTING.md", ROOT / ".ci" / "run"]
    files += [*(ROOT / ".github").rglob("*.yml"), *(ROOT / ".github").rglob("*.md")]
    named = {
        (path.name, target)
        for path in files
        for target in re.findall(r"\bmake ([a-z][\w-]+)", path.read_text())
        if not path.name.endswith(".md") or f"`make {target}" in path.read_text()
    }
    assert {target for _, target in named} >= {"test", "lint", "dist-check", "test-frameworks"}
    assert [pair for pair in sorted(named) if pair[1] not in targets] == []


def test_hooks_before_a_commit_download_nothing():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (\S+)", text) == ["local"]
    assert set(re.findall(r"language: (\S+)", text)) == {"system"}


def test_every_kernel_source_is_built_and_every_built_one_has_a_source():
    setup = (ROOT / "setup.py").read_text()
    subjects = re.search(r"^SUBJECTS = \((.*?)^\)", setup, re.DOTALL | re.MULTILINE)[1]
    built = {*re.findall(r'"(\w+)"', subjects), "cpu"}
    assert built == {path.stem for path in (ROOT / "cvrcore_ext").glob("*.pyx")}


def test_requirements_cover_what_the_core_imports():
    """Packages named by an import statement or by import_module in the core, and no others."""
    named = set()
    for path in (ROOT / "cvrcore").rglob("*.py"):
        if {"integrations", "tracking", "watch", "plot"} & set(path.parts):  # extras
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                named.add(node.module.partition(".")[0])
        named |= set(re.findall(r'import_module\("(\w+)', path.read_text()))
    named -= {"cvrcore", "cvrcore_ext", "numba"} | set(sys.stdlib_module_names)  # numba: an extra
    needed = {re.match(r"\w+", line)[0] for line in SETTINGS["tool"]["cvrcore"]["dependencies"]}
    assert named == needed
