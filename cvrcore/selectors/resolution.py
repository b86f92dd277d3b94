"""Resolution of float32: reported rows in, whether their differences are rounding errors out."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from ..validation import Float

#: Distance from the mean row, over its length, below which float32 rows are called alike.
RESOLVED: Final = 64 * float(np.finfo(np.float32).eps)

log = logging.getLogger(__name__)


def relative_spread(rows: Float) -> float:
    """Return the largest distance of a row from the mean row, over the length of the mean row.

    Examples
    --------
    >>> round(relative_spread(np.array([[3.0, 4.0], [3.0, 4.0], [3.0, 7.0]])), 3)
    0.343
    """
    exact = rows.astype(np.float64)
    mean = exact.mean(axis=0)
    length = float(np.linalg.norm(mean))
    farthest = float(np.linalg.norm(exact - mean, axis=1).max())
    return farthest / length if length > 0 else np.inf


def warn_if_unresolved(rows: Float) -> bool:
    """Log a warning if float32 cannot tell these rows apart; return whether it did.

    Rows of any other type, and a single row, are never warned of.
    """
    if rows.dtype != np.float32 or len(rows) < 2:
        return False
    spread = relative_spread(rows)
    if spread >= RESOLVED:
        return False
    log.warning(
        "watched rows of %d clients differ by %.1e of their length, about what float32 rounds "
        "off: coalitions may follow rounding errors; use dtype='float64', or features='update', "
        "which watches the clients' changes instead of their models",
        len(rows),
        spread,
    )
    return True
