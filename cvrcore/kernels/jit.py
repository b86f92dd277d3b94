"""Numba options of all kernels, and the message that compiling takes long.

No fastmath and no parallel: kernels are written so that their inner loops vectorise
without reordering a single sum. The Cython twins are compiled under the same rule, and
so both backends return the same bits. This module is imported only where Numba serves.
"""

import atexit
import contextlib
import functools
import logging
import os
import tempfile
import time
from pathlib import Path
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

    The warning says how long compiling took in the last process that saved it. Numba sends
    these events under its compiler lock, and none where its cache has the kernel.
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
        last = last_seconds()
        took = "" if last is None else f" ({last:.0f} s in all last time)"
        later = "later processes load them from the cache" if CACHE else "the cache is off"
        logging.getLogger("cvrcore").warning(
            "cvrcore: compiling Numba kernels, %.0f s so far%s; %s (cvrcore.compile() compiles "
            "them ahead of time, the Cython extension needs no compiling)",
            seconds,
            took,
            later,
        )

    def save(self) -> None:
        """Keep the seconds for the message of a later process, if it would have one."""
        if self.seconds < PATIENCE:
            return
        path = _record_path()
        with contextlib.suppress(OSError):  # a folder that cannot be written has no cache either
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                file.write(f"{self.seconds:.1f}\n")
            os.replace(file.name, path)


def last_seconds() -> float | None:
    """Return how long an earlier process took to compile kernels, or None if none is known."""
    try:
        return float(_record_path().read_text(encoding="ascii")[:20])
    except (OSError, ValueError):
        return None


def _record_path() -> Path:
    """Return the file that keeps the seconds: beside Numba's cache of the kernels."""
    folder = os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__"
    return Path(folder) / "cvrcore-compile-seconds.txt"


def _is_kernel(event: Any) -> bool:
    module: str = event.data["dispatcher"].py_func.__module__
    return module.startswith(f"{__package__}.")


TIMER = CompileTimer()
atexit.register(TIMER.save)
event.register("numba:compile", TIMER)  # type: ignore[no-untyped-call, unused-ignore]
