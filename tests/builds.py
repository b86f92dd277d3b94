"""Every build of the kernels, by name."""

import importlib

import pytest

from cvrcore.kernels import dispatch

BUILDS = {
    "numba": "cvrcore.kernels",
    "cython-base": "cvrcore_ext.base",
    "cython-v3": "cvrcore_ext.v3",
}


def load_kernels(build):
    """Return every kernel of one build, or skip the test with the reason."""
    level = {"cython-v3": 3}.get(build, 1)
    found = {}
    try:
        # Asked before anything is loaded: a module's own first lines may be beyond the processor.
        if level > 1 and importlib.import_module("cvrcore_ext.base.cpu").level() < level:
            pytest.skip(f"this processor cannot run {build} kernels")
        for name, subject in dispatch.KERNELS.items():
            module = importlib.import_module(f"{BUILDS[build]}.{subject}")
            found[name] = getattr(module, name)
    except ModuleNotFoundError:
        pytest.skip(f"{build} kernels are not built")
    return found
