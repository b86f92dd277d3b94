"""Every example in a docstring and in the README runs as printed."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cvrcore
from cvrcore.aggregators import AGGREGATORS

ROOT = Path(__file__).parents[1]
FRAMEWORKS = re.compile(  # make test-frameworks
    r"integrations\.(flower|nvflare|fluke|pfl|appfl)|watch\.(app|server|tracker)"
)
MODULES = [
    module.name
    for module in pkgutil.walk_packages(cvrcore.__path__, "cvrcore.")
    if not module.name.rsplit(".", 1)[-1].startswith("_") and not FRAMEWORKS.search(module.name)
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_public_names_are_documented():
    for name in cvrcore.__all__:
        assert getattr(cvrcore, name).__doc__, name


def test_readme_snippets_run():
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert snippets
    assert len(snippets) == 3  # own loop, Flower, fl
    for snippet in snippets:
        lines = [line for line in snippet.splitlines() if line and not line.startswith("import")]
        assert len(lines) <= 5, snippet
        if "flwr" in snippet:  # run by tests/frameworks/test_readme.py
            compile(snippet, "README.md", "exec")
            continue
        subprocess.run([sys.executable, "-c", snippet], check=True, timeout=120, cwd=ROOT)


def test_the_loop_of_any_loop_runs_as_printed():
    page = ROOT / "docs/any-loop.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 20
    assert results.failed == 0
    loop = re.search(r">>> for t in range.*?\n\n", page.read_text(), re.DOTALL)
    assert len(loop[0].strip().splitlines()) <= 10


SESSIONS = [
    "algorithm",
    "hostile-clients",
    "merging",
    "million-clients",
    "privacy",
    "scaling",
    "start",
    "tracking",
    "which-policy",
]


@pytest.mark.parametrize("page", SESSIONS + [f"aggregators/{name}" for name in AGGREGATORS])
def test_sessions_run_as_printed(page):
    path = str(ROOT / f"docs/{page}.md")
    results = doctest.testfile(path, module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 2
    assert results.failed == 0


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_has_a_page(name):
    page = (ROOT / f"docs/aggregators/{name}.md").read_text(encoding="utf-8")
    for part in ("**Rule.**", "**State.**", "**Unbiased.**", "**Use it when**", "**Options.**"):
        assert part in page
    assert f"({name}.md)" in (ROOT / "docs/aggregators/index.md").read_text(encoding="utf-8")


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_equation_of_the_core_is_cited():
    """A newcomer finds the line for an equation by searching for its number."""
    source = "".join(path.read_text() for path in (ROOT / "cvrcore").rglob("*.py"))
    for number in (4, 8, 9, 10, 11, 13):
        assert re.search(rf"Eqs?\. (\(\d+\) and )?\({number}\)", source), number
