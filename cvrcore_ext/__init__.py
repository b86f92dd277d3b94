"""Compiled twins of cvrcore's kernels, built for several instruction sets.

`load` returns a kernel module from the best build that this processor can run. Nothing
but `cvrcore._backend` imports this package.
"""

import importlib
import importlib.util


def instruction_set():
    """Return "v3" (x86-64 with AVX2) where this processor has it, else "base"."""
    from numpy._core._multiarray_umath import __cpu_features__ as features

    wide = all(features.get(name, False) for name in ("AVX2", "FMA3", "F16C"))
    return "v3" if wide and importlib.util.find_spec(f"{__name__}.v3._scores") else "base"


def load(subject):
    """Return the compiled module of one subject, such as "_kmeans"."""
    return importlib.import_module(f"{__name__}.{instruction_set()}.{subject}")
