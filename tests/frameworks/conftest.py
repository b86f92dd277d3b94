"""Tests that need a framework: `make test-frameworks` runs them in their own environment."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Nothing here may use the network; frameworks like to report home.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Otherwise Ray warns, and a warning is an error here.
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

# Ray joins the last cluster that it finds in this folder: one of another test process, or of
# another user, must not be found. The path is short because Ray puts sockets below it.
if "RAY_TMPDIR" not in os.environ:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)

sys.path.insert(0, str(Path(__file__).parent))  # flower_fakes, from wherever pytest started


def pytest_collection_finish(session):
    """Start what runs long in a process of its own before the first test."""
    config = session.config
    if config.option.collectonly or hasattr(config, "workerinput"):  # not in each worker of xdist
        return
    for module in {getattr(item, "module", None) for item in session.items}:
        if hasattr(module, "begin_early"):
            module.begin_early()
