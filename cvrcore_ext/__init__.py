"""Compiled twins of cvrcore's kernels, built for several instruction sets.

`load` returns a kernel module from the best build that this processor can run. Only
`cvrcore.kernels.dispatch` imports this package.
"""

import functools
import importlib
import importlib.util

#: Subjects that are also built for AVX-512, because whole rounds gain at least 1.2 times by it.
WIDE = ("convolution", "sparse_mlp")


@functools.cache
def instruction_set():
    """Return the best installed build that this processor can run: "v3" or "base"."""
    if _cpu().level() >= 3 and importlib.util.find_spec(f"{__name__}.v3.kmeans"):
        return "v3"
    return "base"


def load(subject):
    """Return the compiled module of one subject, such as "kmeans"."""
    level = instruction_set()
    if level == "v3" and subject in WIDE and _cpu().level() >= 4:
        if importlib.util.find_spec(f"{__name__}.v4.{subject}"):
            level = "v4"
    return importlib.import_module(f"{__name__}.{level}.{subject}")


def _cpu():
    return importlib.import_module(f"{__name__}.base.cpu")
