"""Binds each kernel name to its Cython build or its Numba twin, once, at first use.

``CVRCORE_BACKEND=cython|numba`` chooses; unset, Cython serves where it was built. Nothing
is imported before a kernel is asked for, so that ``import cvrcore`` stays light.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any

from .threads import n_threads

#: Home of every kernel: a module of the same name exists in each backend.
KERNELS = {
    "decay_rows": "_affinity",
    "manhattan_rows": "_affinity",
    "normalise_rows": "_affinity",
    "squared_distances": "_affinity",
    "unit_offsets": "_affinity",
    "add_history": "_covariance",
    "fold_block": "_covariance",
    "pack_block": "_covariance",
    "read_triangles": "_covariance",
    "regression_slopes": "_covariance",
    "regression_residual": "_covariance",
    "scaled_residual": "_covariance",
    "draw_one_each": "_draws",
    "law_shares": "_draws",
    "law_tops": "_draws",
    "law_weights": "_draws",
    "pair_clients": "_groups",
    "sort_by_label": "_groups",
    "take_pairs": "_groups",
    "kmeans": "_kmeans",
    "add_points": "_lloyd",
    "nearest_centres": "_lloyd",
    "advance_moments": "_scores",
    "diagonal_floor": "_scores",
    "variance_reduction": "_scores",
    "filter_block": "_subspace",
    "ritz": "_subspace",
}


@functools.cache
def backend() -> str:
    """Return "cython" or "numba": which one serves in this process."""
    wanted = os.environ.get("CVRCORE_BACKEND", "")
    if wanted not in ("", "cython", "numba"):
        raise ValueError(f"CVRCORE_BACKEND must be cython or numba, got {wanted!r}")
    n_threads()  # a bad CVRCORE_NUM_THREADS is told now, not in some later, larger round
    built = _extension_built()
    if wanted == "cython" and not built:
        raise ImportError(
            "CVRCORE_BACKEND=cython, but the extension is not built: reinstall with "
            "CVRCORE_EXT=require to see why"
        )
    return wanted or ("cython" if built else "numba")


def _extension_built() -> bool:
    modules = {*KERNELS.values(), "_cpu"}
    try:
        return all(importlib.util.find_spec(f"cvrcore_ext.base.{name}") for name in modules)
    except ModuleNotFoundError:
        return False


def __getattr__(name: str) -> Any:
    if name not in KERNELS:
        raise AttributeError(f"no kernel is called {name!r}")
    subject = KERNELS[name]
    if backend() == "cython":
        module = importlib.import_module("cvrcore_ext").load(subject)
    else:
        module = importlib.import_module(f"{__package__}.{subject}")
    kernel = getattr(module, name)
    globals()[name] = kernel
    return kernel
