"""Guards of selectors and aggregators: claims of clients in, claims within limits out.

`settings.Guards` holds the settings, all off by default. A selector keeps a `gate.Gate`: who may
be picked how often (`shares.py`), bounds on reported numbers (`bounds.py`), and a record of what
it did. An aggregator keeps an `updates.UpdateGuard`: bounds on sample counts and on updates.
"""

from __future__ import annotations

from .gate import Gate, Judged
from .settings import SETTINGS, Guards, Incident, as_guards
from .updates import UpdateGuard

__all__ = ["SETTINGS", "Gate", "Guards", "Incident", "Judged", "UpdateGuard", "as_guards"]
