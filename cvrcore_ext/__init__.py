"""Compiled twins of cvrcore's kernels, built for several instruction sets.

`load` returns a kernel module from the best build that this processor can run. Only
`cvrcore.kernels.dispatch` imports this package.
"""

import functools
import importlib
import importlib.util


@functools.cache
def instruction_set():
    """Return the best installed build that this processor can run: "v3" or "base"."""
    level = importlib.import_module(f"{__name__}.base.cpu").level()
    if level >= 3 and importlib.util.find_spec(f"{__name__}.v3.kmeans"):
        return "v3"
    return "base"


def load(subject):
    """Return the compiled module of one subject, such as "kmeans"."""
    return importlib.import_module(f"{__name__}.{instruction_set()}.{subject}")
