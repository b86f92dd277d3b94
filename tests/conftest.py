import importlib
import os

import numpy as np
import pytest

# Before any cvrcore import: Numba's cache ignores edits in other files.
os.environ["CVRCORE_NUMBA_CACHE"] = "0"

from cvrcore import CoalitionSelector, _backend

# The suite with another storage: `make test-matrix` sets it.
DTYPE = os.environ.get("CVRCORE_TEST_DTYPE", "float64")
CoalitionSelector.__init__.__defaults__ = tuple(
    DTYPE if default == "float64" else default
    for default in CoalitionSelector.__init__.__defaults__
)

BUILDS = {
    "numba": "cvrcore",
    "cython-base": "cvrcore_ext.base",
    "cython-v3": "cvrcore_ext.v3",
    "cython-v4": "cvrcore_ext.v4",
}


def load_kernels(build):
    """Return every kernel of one build, or skip the test with the reason."""
    found = {}
    for name, subject in _backend.KERNELS.items():
        try:
            module = importlib.import_module(f"{BUILDS[build]}.{subject}")
        except ModuleNotFoundError:
            pytest.skip(f"{build} kernels are not built")
        found[name] = getattr(module, name)
    level = {"cython-v3": 3, "cython-v4": 4}.get(build, 1)
    if level > 1 and importlib.import_module("cvrcore_ext.base._cpu").level() < level:
        pytest.skip(f"this processor cannot run {build} kernels")
    return found


@pytest.fixture(params=list(BUILDS))
def kernels(request):
    """Every kernel of each build in turn, by name."""
    return load_kernels(request.param)


@pytest.fixture(params=["numba", "cython"])
def backend(request, monkeypatch):
    """Make the whole API run on one backend."""
    if request.param == "cython":
        package = pytest.importorskip("cvrcore_ext", reason="the extension is not built")
        try:
            build = f"cython-{package.instruction_set()}"
        except ModuleNotFoundError:
            pytest.skip("cython kernels are not built")
    else:
        build = "numba"
    for name, kernel in load_kernels(build).items():
        monkeypatch.setitem(_backend.__dict__, name, kernel)
    return request.param


@pytest.fixture
def rtol():
    """Relative tolerance for every float64 comparison with a twin."""
    return 1e-12


def planted_models(n_clients, n_features, n_groups, rng, spread=0.3):
    """Models around a few random centres, and the group of each."""
    centres = rng.normal(size=(n_groups, n_features))
    groups = np.arange(n_clients) % n_groups
    return centres[groups] + spread * rng.normal(size=(n_clients, n_features)), groups


def flat_models(n_clients, n_features, rng, offset=0.05, noise=0.05):
    """One common vector plus small offsets and noise: cosines about 0.995."""
    common = rng.normal(size=n_features)
    offsets = offset * rng.normal(size=(n_clients, n_features))
    return common + offsets + noise * rng.normal(size=(n_clients, n_features))
