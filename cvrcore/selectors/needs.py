"""What policies need: a policy and a report in, checked signals or an error out.

A policy declares in ``needs`` which of `NEEDS` it cannot do without, so that a server loop
knows what to ask of clients before the first round. Values of `SIGNALS` are keywords of
`Selector.observe`; a policy reads them as ``report.signals[name]``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..validation import Float, check_matrix, check_vector

if TYPE_CHECKING:
    from .base import Report

#: What a policy may need, and what a client or the server must send.
NEEDS: Final[dict[str, str]] = {
    "probe": "the current loss of each client that probe() names, before select()",
    "probed_norms": "the norm of the update that each client that probe() names would send, "
    "passed to select(losses=...)",
    "losses": "its training loss of the model that it received (loss_statistic says which)",
    "models": "the watched coordinates of the model that it returns",
    "updates": "the watched coordinates of its update: the model returned less the model received",
    "norms": "the Euclidean norm of its update, the model returned less the model received",
    "durations": "the seconds that it took",
    "utilities": "the worth of its update, measured by the server on validation samples",
    "sent": "the watched coordinates of the model about to be sent, at select(sent=...)",
    "label_counts": "its number of samples of each class, at construction",
}

#: Needs that `observe` takes as further keywords.
SIGNALS: Final = ("norms", "updates", "utilities")

#: Needs that arrive with the report of each client.
_REPORTED: Final = ("losses", "models", "durations", *SIGNALS)


def check_declared(needs: Collection[str], policy: str) -> frozenset[str]:
    """Return `needs` if it holds names of `NEEDS` only."""
    for name in needs:
        if name not in NEEDS:
            known = ", ".join(NEEDS)
            raise ValueError(f"needs of {policy} must be among {known}, got {name!r}")
    return frozenset(needs)


def check_signal(name: str, value: Any, n_reported: int) -> Any:
    """Return one checked signal, with a row or a number for each client that reported.

    ``utilities`` may also be a function of a collection of reported clients that returns
    the worth of their average; a policy calls it as often as it needs.
    """
    if name == "utilities" and callable(value):
        return value
    if name == "updates":
        if n_reported == 0 and np.size(value) == 0:
            return np.empty((0, 0))
        return check_matrix(value, name, (n_reported, None))
    values: Float = check_vector(value, name, n_reported)
    if name == "norms" and np.count_nonzero(values < 0):
        raise ValueError(f"norms must be non-negative, got {values.min():g}")
    return values


def check_needs(policy: str, needs: Collection[str], report: Report) -> None:
    """Raise if the report lacks something that the policy needs, and say what to send."""
    if report.clients.size == 0:
        return
    for name in _REPORTED:
        told = report.signals.get(name) if name in SIGNALS else getattr(report, name)
        if name in needs and told is None:
            raise ValueError(
                f"{name} must be given to {policy}: each of the {report.clients.size} clients "
                f"that reported must send {NEEDS[name]}, got None"
            )
