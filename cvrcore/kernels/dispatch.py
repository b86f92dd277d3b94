"""Dispatch: a kernel's name in, its Cython build or its Numba twin out, bound at first use.

``CVRCORE_BACKEND=cython|numba`` chooses the backend. Default: Cython if it was built. Kernels
are imported lazily, so that ``import cvrcore`` stays fast.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType
from typing import Any

from ..runtime.threads import n_threads

#: Module of every kernel; a module of that name exists in each backend.
KERNELS = {
    "manhattan_rows": "affinity",
    "normalise_rows": "affinity",
    "squared_distances": "affinity",
    "unit_offsets": "affinity",
    "add_products": "covariance",
    "advance_moments": "covariance",
    "diagonal_floor": "covariance",
    "lookup_pairs": "covariance",
    "pair_clients": "covariance",
    "regression_residual": "covariance",
    "regression_slopes": "covariance",
    "scaled_residual": "covariance",
    "variance_reduction": "covariance",
    "coarse_rows": "coarse",
    "stochastic_greedy": "coarse",
    "write_cross": "coarse",
    "draw_one_each": "draws",
    "law_tops": "draws",
    "sort_by_label": "draws",
    "assignment_costs": "facility",
    "lazy_greedy": "facility",
    "kmeans": "kmeans",
    "add_points": "lloyd",
    "nearest_centres": "lloyd",
    "fold_block": "packed",
    "pack_block": "packed",
    "read_packed": "packed",
    "build_tree": "pivotal",
    "local_pivotal": "pivotal",
    "filter_block": "subspace",
    "ritz": "subspace",
}


@functools.cache
def backend() -> str:
    """Return the backend of this process: "cython" or "numba"."""
    wanted = os.environ.get("CVRCORE_BACKEND", "")
    if wanted not in ("", "cython", "numba"):
        raise ValueError(f"CVRCORE_BACKEND must be cython or numba, got {wanted!r}")
    n_threads()  # a bad CVRCORE_NUM_THREADS raises now, not in a later, larger round
    built = _extension_built()
    if wanted == "cython" and not built:
        raise ImportError(
            "CVRCORE_BACKEND=cython, but the extension is not built: reinstall with "
            "CVRCORE_EXT=require to see why"
        )
    return wanted or ("cython" if built else "numba")


def _extension_built() -> bool:
    modules = {*KERNELS.values(), "cpu"}
    try:
        return all(importlib.util.find_spec(f"cvrcore_ext.base.{name}") for name in modules)
    except ModuleNotFoundError:
        return False


@functools.cache
def compiled(subject: str) -> ModuleType | None:
    """Return a compiled module that has no Numba twin, or None where it was not built.

    None under ``CVRCORE_BACKEND=numba`` too: callers have another way to the same results.
    """
    if backend() != "cython":
        return None
    try:
        module: ModuleType = importlib.import_module("cvrcore_ext").load(subject)
    except ImportError:
        return None
    return module


def _numba_module(subject: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__package__}.{subject}")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise ImportError(
            "the Cython kernels of cvrcore are not used (not built, or CVRCORE_BACKEND=numba), and "
            "Numba is missing: install the extra 'numba', or reinstall with CVRCORE_EXT=require",
            name="numba",
        ) from None


def __getattr__(name: str) -> Any:
    if name not in KERNELS:
        raise AttributeError(f"no kernel is called {name!r}")
    if backend() == "cython":
        module = importlib.import_module("cvrcore_ext").load(KERNELS[name])
    else:
        module = _numba_module(KERNELS[name])
    kernel = getattr(module, name)
    globals()[name] = kernel
    return kernel
