"""Examples of the adapters run: in docstrings, in docs/start.md and in the notebook of Flower."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from public_names import ADAPTERS, public_objects, run_examples

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ADAPTERS)
def test_adapter_names_have_examples_that_run(module):
    framework = ADAPTERS[module]
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    for name, value in public_objects(module).items():
        if inspect.isclass(value) or inspect.isroutine(value):
            assert run_examples(value) > 0, f"{module}.{name} has no example"


def test_start_of_an_engineer_runs_as_printed():
    pytest.importorskip("flwr", reason="flwr is not installed")
    text = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    server, client = (block for block in blocks if "integrations.flower" in block)
    names: dict = {}  # the page defines what it uses
    exec(compile(server, "docs/start.md", "exec"), names)
    exec(compile(client, "docs/start.md", "exec"), names)
    assert callable(names["strategy"].start)


@pytest.mark.timeout(1300)
def test_the_notebook_of_flower_runs():
    for name in ("flwr", "ray", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/_ext/run_notebooks.py"), "flower_memory"],
        capture_output=True, text=True, timeout=1200, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "flower_memory.ipynb: ran in" in done.stdout
