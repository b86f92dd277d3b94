"""Run a piece of work in a child process and kill it with SIGKILL; not a test.

Children are forked from a process that has imported everything and started no thread, so
that a life costs milliseconds and hundreds fit one test.
"""

import os
import select
import signal
import time
import traceback


def life(work, seconds, patience=60.0):
    """Fork, let ``work(ready)`` run, and kill it `seconds` after it called `ready`.

    The work may come to its end before: then it waits there. It may not fail.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda: os.write(write, b"."))
            while True:
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    heard = select.select([read], [], [], patience)[0] and os.read(read, 1)
    if heard:
        time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(read)
    assert heard, "the child never got ready"
    assert status == signal.SIGKILL, f"the child failed: {status}"
