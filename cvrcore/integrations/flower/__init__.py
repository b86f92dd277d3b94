"""Flower adapter: any strategy in, the same strategy with clients selected by cvrcore out.

`strategy` wraps a strategy of the Message API, `legacy` one of ``configure_fit``; `client` is
for the file of the ClientApp. Names are imported when first used, so that a client does not
load the server's modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..extras import require

require("flwr", "1.22", "flower")  # the oldest version that the tests were run with

if TYPE_CHECKING:
    from ...selectors.guards import Guards
    from ..options import Reports, Tracking, Waiting
    from .client import Reveal, partition_id, report_loss, selectable, wanted_loss
    from .legacy import LegacySelectingStrategy
    from .probe import PROBES
    from .strategy import SelectingStrategy

__all__ = [
    "PROBES",
    "Guards",
    "LegacySelectingStrategy",
    "Reports",
    "Reveal",
    "SelectingStrategy",
    "Tracking",
    "Waiting",
    "partition_id",
    "report_loss",
    "selectable",
    "wanted_loss",
]

_MODULES = {
    "...selectors.guards": ("Guards",),
    "..options": ("Reports", "Tracking", "Waiting"),
    ".client": ("Reveal", "partition_id", "report_loss", "selectable", "wanted_loss"),
    ".legacy": ("LegacySelectingStrategy",),
    ".probe": ("PROBES",),
    ".strategy": ("SelectingStrategy",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
