"""Ahead-of-time compilation: dtypes in, Numba's cache filled with every kernel that rounds use."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from .kernels import dispatch

_SMALL: Final[dict[str, Any]] = {"n_clients": 24, "n_features": 6, "n_select": 4}
#: Options of selectors whose rounds together use every type of argument of every kernel.
_ROUNDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"store": "dense"},
    {"store": "factored", "n_coalitions": 3},
    {"preset": "scripts"},
    {"n_features": 2},  # clustered as points of a plane, in float64
    {"n_clients": 170},  # too many for the small eigensolver
    {"n_clients": 170, "kernel": "laplacian"},
    {"clustering": "nystrom", "n_landmarks": 12, "window": 3},
    {"clustering": "nystrom", "n_landmarks": 12, "kernel": "laplacian"},
)
_N_ROUNDS: Final = 40  # the log of residuals then has a second chunk


def compile(dtypes: tuple[str, ...] = ("float64", "float32")) -> float:
    """Compile every kernel now instead of in the first rounds; return the seconds it took.

    Numba keeps the machine code on disk, so that later processes load it. With the Cython
    extension there is nothing to compile.

    Parameters
    ----------
    dtypes : tuple of str
        Storage to compile for, see `cvrcore.CoalitionSelector`.

    Examples
    --------
    >>> import cvrcore
    >>> seconds = cvrcore.compile()
    """
    began = time.perf_counter()
    if dispatch.backend() == "numba":
        from .algorithm import variance_reduction
        from .kernels import jit

        jit.TIMER.silent = True  # no message: the caller asked for the compiling
        for dtype in dtypes:
            for options in _ROUNDS:
                _run_rounds(dtype, _SMALL | options)
        variance_reduction(np.eye(3)[None])
        _run_other_policies()
    return time.perf_counter() - began


def _run_rounds(dtype: str, options: dict[str, Any]) -> None:
    from .selectors.coalition import CoalitionSelector

    rng = np.random.default_rng(0)
    initial = rng.normal(size=(options["n_clients"], options["n_features"]))
    selector = CoalitionSelector(warmup=0, seed=0, initial=initial, dtype=dtype, **options)
    for _ in range(_N_ROUNDS):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), options["n_features"])))


def _run_other_policies() -> None:
    """Run the kernels that FedCVR-Bolt does not use."""
    from .draws.pivotal import pivotal_sample
    from .selectors.divfl import DivFLSelector

    pivotal_sample(np.full(20, 0.5), np.eye(20), np.random.default_rng(0))
    for epsilon in (0.0, 0.5):
        divfl = DivFLSelector(4, 2, n_features=1, seed=0, epsilon=epsilon)
        for _ in range(3):
            clients = divfl.select().clients
            divfl.observe(clients, updates=np.ones((2, 1)))
