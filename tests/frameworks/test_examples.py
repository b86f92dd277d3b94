"""Examples of the adapters' public names run, each where its framework is installed."""

import inspect

import pytest
from public_names import ADAPTERS, public_objects, run_examples


@pytest.mark.parametrize("module", ADAPTERS)
def test_adapter_names_have_examples_that_run(module):
    framework = ADAPTERS[module]
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    for name, value in public_objects(module).items():
        if inspect.isclass(value) or inspect.isroutine(value):
            assert run_examples(value) > 0, f"{module}.{name} has no example"
