"""Frameworks that are missing or too old: every adapter says which, and the line to run."""

import importlib
import importlib.metadata
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from cvrcore.integrations.extras import install_line, require

ADAPTERS = [
    ("flower", "flwr", "1.22", "flower"),
    ("flower.client", "flwr", "1.22", "flower"),
    ("flower_client", "flwr", "1.22", "flower"),
    ("flower_grid", "flwr", "1.22", "flower"),
    ("flower_legacy", "flwr", "1.22", "flower"),
    ("nvflare", "nvflare", "2.5", "nvflare"),
    ("nvflare_tasks", "nvflare", "2.5", "nvflare"),
    ("pfl", "pfl", "0.6", "pfl"),
    ("appfl", "appfl", "1.12", "appfl"),
]


def test_missing_framework_gives_the_pip_line():
    with pytest.raises(ImportError, match=r"no_such_thing is missing: pip install -c .* in a che"):
        require("no_such_thing", "1.0", "x")


def test_pip_line_works_without_an_index_that_has_cvrcore():
    """It names packages that are on an index, in the versions that were declared."""
    line, constraints = install_line("fl"), Path(__file__).parents[1] / "constraints.txt"
    assert line.startswith(f"pip install -c {constraints} 'torch>=2.4'")
    assert "'typer>=0.12'" in line
    assert line.endswith("(the extra 'fl' of cvrcore)")
    assert "cvrcore[" not in line
    assert install_line("no-such-extra").startswith("pip install -c constraints.txt '.[no-such")


@pytest.mark.parametrize(
    ("version", "old"), [("1.9.9", True), ("1.41.0", False), ("1.41.0rc1", False), ("2.0", False)]
)
def test_old_framework_is_named_with_its_version(version, old, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if old:
        with pytest.raises(ImportError, match="must be at least 1.21, got 1.9.9: pip install"):
            require("numpy", "1.21", "x")
    else:
        assert require("numpy", "1.21", "x") is np


@pytest.fixture
def load(monkeypatch):
    """Import an adapter as if for the first time."""

    def load(adapter):
        for name in [n for n in sys.modules if n.startswith("cvrcore.integrations.")]:
            if name != "cvrcore.integrations.extras":
                monkeypatch.delitem(sys.modules, name)
        return importlib.import_module(f"cvrcore.integrations.{adapter}")

    return load


@pytest.mark.parametrize(("adapter", "framework", "minimum", "extra"), ADAPTERS)
def test_adapter_names_a_missing_framework(load, monkeypatch, adapter, framework, minimum, extra):
    monkeypatch.setitem(sys.modules, framework, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"{framework} is missing: .*extra '{extra}'"):
        load(adapter)


@pytest.mark.parametrize(("adapter", "framework", "minimum", "extra"), ADAPTERS)
def test_adapter_names_an_old_framework(load, monkeypatch, adapter, framework, minimum, extra):
    monkeypatch.setitem(sys.modules, framework, types.ModuleType(framework))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.5.9")
    wanted = f"{framework} must be at least {minimum}, got 0.5.9: pip install "
    with pytest.raises(ImportError, match=re.escape(wanted)):
        load(adapter)


def test_ray_engine_names_a_missing_and_an_old_ray(monkeypatch):
    pytest.importorskip("torch", reason="the engine needs cvrcore[fl]")
    from fl.engines.ray import RayEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"ray is missing: pip install .*'ray>=2.40'"):
        RayEngine(None, None)
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.9.3")
    with pytest.raises(ImportError, match="ray must be at least 2.40, got 2.9.3"):
        RayEngine(None, None)
