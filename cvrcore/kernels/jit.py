"""Numba options of all kernels, and the message that compiling takes long.

No fastmath and no parallel: kernels are written so that their inner loops vectorise
without reordering a single sum. The Cython twins are compiled under the same rule, and
so both backends return the same bits. This module is imported only where Numba serves.
"""

import functools
import logging
import os
import time
from typing import Any

import numba
from numba.core import event

CACHE = os.environ.get("CVRCORE_NUMBA_CACHE", "1") == "1"
PATIENCE = 2.0  # seconds of compiling before the message

# No wrapper for C callers: C code calls no kernel, and a wrapper takes time to compile.
njit = functools.partial(
    numba.njit, cache=CACHE, error_model="numpy", nogil=True, no_cfunc_wrapper=True
)


class CompileTimer(event.Listener):
    """Adds up the seconds spent compiling kernels; logs a warning once they pass PATIENCE.

    Numba sends these events under its compiler lock, and none where its cache has the kernel.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.n_compiled = 0
        self.silent = False
        self._open = 0  # kernels being compiled: the outermost one and its helpers
        self._began = 0.0

    def on_start(self, event: Any) -> None:
        """Start the clock at the outermost kernel."""
        if _is_kernel(event):
            if self._open == 0:
                self._began = time.perf_counter()
            self._open += 1
        self._tell()

    def on_end(self, event: Any) -> None:
        """Stop the clock at the outermost kernel."""
        if _is_kernel(event):
            self._open -= 1
            self.n_compiled += 1
            if self._open == 0:
                self.seconds += time.perf_counter() - self._began
        self._tell()

    def _tell(self) -> None:
        seconds = self.seconds + (time.perf_counter() - self._began if self._open else 0.0)
        if self.silent or seconds < PATIENCE:
            return
        self.silent = True
        later = "later processes load them from the cache" if CACHE else "the cache is off"
        logging.getLogger("cvrcore").warning(
            "cvrcore: compiling Numba kernels, %.0f s so far; %s (cvrcore.compile() compiles "
            "them ahead of time, the Cython extension needs no compiling)",
            seconds,
            later,
        )


def _is_kernel(event: Any) -> bool:
    module: str = event.data["dispatcher"].py_func.__module__
    return module.startswith(f"{__package__}.")


TIMER = CompileTimer()
event.register("numba:compile", TIMER)  # type: ignore[no-untyped-call, unused-ignore]
