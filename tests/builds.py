"""Every build of the kernels, by name."""

import importlib

import pytest

from cvrcore.kernels import dispatch

BUILDS = {
    "numba": "cvrcore.kernels",
    "cython-base": "cvrcore_ext.base",
    "cython-v3": "cvrcore_ext.v3",
}
#: Level of the processor that each compiled build needs.
LEVELS = {"base": 1, "v3": 3, "v4": 4}


def load_module(build, subject):
    """Return a module of one build, such as "v3" or "numba", or skip the test with the reason."""
    level = build.removeprefix("cython-")
    try:
        # Asked before anything is loaded: a module's own first lines may be beyond the processor.
        cpu = importlib.import_module("cvrcore_ext.base.cpu") if level in LEVELS else None
        if cpu is not None and cpu.level() < LEVELS[level]:
            pytest.skip(f"this processor cannot run {build} kernels")
        return importlib.import_module(f"{BUILDS.get(build, f'cvrcore_ext.{level}')}.{subject}")
    except ModuleNotFoundError:
        pytest.skip(f"{build} kernels are not built")


def load_kernels(build):
    """Return every kernel of one build, or skip the test with the reason."""
    found = {}
    for name, subject in dispatch.KERNELS.items():
        found[name] = getattr(load_module(build, subject), name)
    return found
