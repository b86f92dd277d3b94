"""Every public name stands in the API reference and has an example that runs."""

import inspect
import re
from pathlib import Path

import pytest
from public_names import MODULES, examples_of, public_objects, run_examples

API = Path(__file__).parents[1] / "docs" / "api"
OBJECTS = {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in public_objects(module).items()
    if inspect.isclass(value) or inspect.isroutine(value)
}
#: An object that several modules export is tested once.
ONCE = {id(value): name for name, value in reversed(OBJECTS.items())}


def listed():
    """Return the objects of the reference by their full names there."""
    found = {}
    for page in API.glob("*.rst"):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if named := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = named[1]
            elif named := re.match(r"   ~?([A-Za-z_][\w.]*)$", line):
                found[f"{module}.{named[1]}"] = page.name
            elif named := re.match(r"\.\. (?:autodata|py:data):: (\S+)", line):
                found[f"{module}.{named[1]}"] = page.name
    return found


@pytest.mark.parametrize("name", sorted(ONCE.values()))
def test_public_name_has_an_example_that_runs(name):
    assert run_examples(OBJECTS[name]) > 0, f"{name} has no example"


def test_an_object_without_an_example_is_noticed():
    def bare():
        """Do nothing."""

    assert not examples_of(bare).examples


def test_reference_lists_every_public_name():
    names = {name.rpartition(".")[2] for name in listed()}
    for module in MODULES:
        for name, value in public_objects(module).items():
            if not inspect.ismodule(value):
                assert name in names, f"{module}.{name} is not in docs/api"


def test_reference_lists_nothing_twice():
    pages = [page.read_text(encoding="utf-8") for page in API.glob("*.rst")]
    named = re.findall(r"^   ~?([A-Za-z_][\w.]*)$", "\n".join(pages), re.MULTILINE)
    assert sorted(named) == sorted(set(named))
