"""Tests that need a framework: `make test-frameworks` runs them in their own environment."""

import os
import sys
from pathlib import Path

# Nothing here may use the network; frameworks like to report home.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Otherwise Ray warns, and a warning is an error here.
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

sys.path.insert(0, str(Path(__file__).parent))  # flower_fakes, from wherever pytest started
