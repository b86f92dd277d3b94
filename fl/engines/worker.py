"""The program that a worker process runs: ``python -m fl.engines.worker SOCKET MEMORY``.

The worker reads messages from the inherited socket until the other end closes, so that it never
outlives the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

import numpy as np
import torch

from .base import Worker
from .shared import attach

#: Numbers of malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def serve(connection: Connection, memory: int) -> None:
    """Answer tasks until the connection closes.

    The first message is ``(job, descriptor)``; each later one ``(task, models or None)``,
    where None means the models of the message before.
    """
    job, descriptor = connection.recv()
    worker = Worker(job, attach(memory, descriptor))
    os.close(memory)
    models = np.empty((0, 0), dtype=np.float32)
    while True:
        task, sent = connection.recv()
        models = models if sent is None else sent
        try:
            connection.send((worker.do(task, models), None))
        except Exception:
            connection.send((None, traceback.format_exc()))


def keep_freed_memory() -> None:
    """Let malloc reuse large blocks instead of returning them to the system (glibc).

    Each step of a model allocates the same activations: otherwise their pages are mapped and
    zeroed again and again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for most in (2**31 - 1, 2**25):  # older versions refuse more than 32 MiB
            if mallopt(_MMAP_THRESHOLD, most):
                break
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    """Serve on the descriptors named on the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    torch.set_num_threads(1)
    keep_freed_memory()
    connection = Connection(int(sys.argv[1]))
    try:
        serve(connection, int(sys.argv[2]))
    except (EOFError, OSError):
        pass  # the parent closed its end, or died


if __name__ == "__main__":
    main()
