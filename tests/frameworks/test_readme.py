"""The README's start with Flower, as printed."""

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

README = Path(__file__).parents[2] / "README.md"


def test_readme_start_with_flower_runs():
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (flower,) = [snippet for snippet in snippets if "flwr" in snippet]
    names = {}
    exec(compile(flower, "README.md", "exec"), names)
    assert "num_rounds=100" in flower
    assert callable(names["strategy"].start)
    assert names["strategy"].roster.aggregator.name == names["advice"].aggregator
