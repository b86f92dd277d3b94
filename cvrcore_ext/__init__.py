"""Compiled twins of cvrcore's kernels, built for several instruction sets.

`load` returns a kernel module from the best build that this processor can run. Nothing
but `cvrcore._backend` imports this package.
"""

import functools
import importlib
import importlib.util


@functools.cache
def instruction_set():
    """Return the best build that exists and runs here: "v4", "v3" or "base"."""
    level = importlib.import_module(f"{__name__}.base._cpu").level()
    for needed, build in ((4, "v4"), (3, "v3")):
        if level >= needed and importlib.util.find_spec(f"{__name__}.{build}._scores"):
            return build
    return "base"


def load(subject):
    """Return the compiled module of one subject, such as "_kmeans"."""
    return importlib.import_module(f"{__name__}.{instruction_set()}.{subject}")
