"""Every build of the kernels, by name."""

import importlib

import pytest

from cvrcore import _backend

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
