"""Fixtures of several files."""

import platformdirs
import pytest
from data_files import no_network
from report_runs import make_experiment

from fl.experiments import build


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No cache, no environment, no network: whoever wants one provides it."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.delenv("CVRCORE_DATA", raising=False)
    monkeypatch.setattr("pooch.retrieve", no_network)


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    place = tmp_path_factory.mktemp("plain")
    return build([make_experiment(place / "runs")], place / "out")


@pytest.fixture(scope="session")
def quick_page(tmp_path_factory):
    place = tmp_path_factory.mktemp("quick")
    folder = make_experiment(place / "runs", quick=True, seeds=2)
    return build([folder], place / "page.html")
