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

ROOT = Path(__file__).parents[1]
FRAMEWORKS = re.compile(r"integrations\.(flower|nvflare|fluke|pfl)")  # make test-frameworks
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
    for snippet in snippets:
        subprocess.run([sys.executable, "-c", snippet], check=True, timeout=120, cwd=ROOT)


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_every_equation_of_the_core_is_cited():
    """A newcomer finds the line for an equation by searching for its number."""
    source = "".join(path.read_text() for path in (ROOT / "cvrcore").rglob("*.py"))
    for number in (4, 8, 9, 10, 11, 13):
        assert re.search(rf"Eqs?\. (\(\d+\) and )?\({number}\)", source), number
