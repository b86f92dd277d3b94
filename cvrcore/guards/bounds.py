"""Bounds on numbers that clients report: a setting and past values in, limits out.

A bound has a value at all times. Where a median says nothing (fewer than three values are known,
or most of them coincide), the last bound that was found is used, or a default; one line in the
log says so when that begins.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy as np

from ..runtime.journal import Noted
from ..validation import Float, Ids, check_number, check_vector

MEDIAN_FACTOR: Final = 3.0  # the bound "median", in medians
WINDOW: Final = 256  # values in a running median
ENOUGH: Final = 3  # values that make a median; with fewer, defaults are added to them
NOBODY: Final = -1  # client of a value that a state of an older version holds
_NOTHING: Final = np.empty(0)
_NO_IDS: Final = np.empty(0, dtype=np.int64)

log = logging.getLogger(__name__)


def check_bound(value: Any, name: str) -> float | str:
    """Return a bound: a positive number, "median", or a multiple such as "1.5*median"."""
    if not isinstance(value, str):
        return check_number(value, name, above=0)
    if value == "median":
        return value
    factor, star, median = value.partition("*")
    try:
        if not star or median.strip() != "median":
            raise ValueError
        number = float(factor)
    except ValueError:
        raise ValueError(
            f"{name} must be a positive number, 'median' or a multiple such as '1.5*median', "
            f"got {value!r}"
        ) from None
    check_number(number, name, above=0)
    return f"{number:g}*median"


def factor_of(setting: str) -> float:
    """Return the multiple of the median that a checked setting stands for."""
    return MEDIAN_FACTOR if setting == "median" else float(setting.partition("*")[0])


def weight_bound(setting: float | str, weights: Float) -> float:
    """Return the largest sample count allowed beside `weights`, of which one is positive."""
    if not isinstance(setting, str):
        return setting
    return factor_of(setting) * float(np.median(weights[weights > 0]))


class RunningBound(Noted):
    """Limits on one kind of number, from a running window of what clients reported.

    Parameters
    ----------
    kind : str
        "norm", "loss" or "update"; names the bound in the log.
    setting : float, str or None
        A checked bound, or None for no limit.
    """

    def __init__(self, kind: str, setting: float | str | None) -> None:
        self.kind, self.setting = kind, setting
        self.values: Float = _NOTHING  # the last WINDOW values
        self.clients: Ids = _NO_IDS  # whose they are
        self.spread = 0.0  # the last positive spread of the window, see `_spread`
        self.fallen = False  # whether the last limits were a fallback

    def limits(self, reported: Float, default: float = 1.0) -> tuple[float, float]:
        """Return the lowest and the highest value allowed, given those of this round.

        Parameters
        ----------
        reported : array
            Values of this round; together with the window they make the median.
        default : float
            Stands for values that are missing while fewer than three are known.
        """
        if self.setting is None:
            return -np.inf, np.inf
        if not isinstance(self.setting, str):
            return -np.inf, self.setting
        known = np.concatenate([self.values, reported])
        few = known.size < ENOUGH
        if few:
            known = np.append(known, np.full(ENOUGH - known.size, default))
        middle = float(np.median(known))
        spread = self._spread(known, middle)
        self._say(few or not spread > 0)
        if not spread > 0:
            spread = self.spread or default
        excess = factor_of(self.setting) - 1.0
        return middle - max(excess, MEDIAN_FACTOR - 1.0) * spread, middle + excess * spread

    def _spread(self, known: Float, middle: float) -> float:
        """Return the median, or where it is not positive, the median distance from it."""
        if middle > 0:
            return middle
        return max(-middle, float(np.median(np.abs(known - middle))))

    def _say(self, fallen: bool) -> None:
        if fallen and not self.fallen:
            log.warning(
                "bound on %s: too few different values for a median; %s is used instead",
                self.kind,
                "the last bound" if self.spread > 0 else "a default",
            )
        self.fallen = fallen

    def remember(self, clients: Ids, values: Float) -> None:
        """Add the values of a round to the window."""
        if self.setting is None or not values.size:
            return
        self.values = np.concatenate([self.values, values])[-WINDOW:]
        self.clients = np.concatenate([self.clients, clients])[-WINDOW:]
        self._keep_spread()

    def _keep_spread(self) -> None:
        if isinstance(self.setting, str) and self.values.size >= ENOUGH:
            spread = self._spread(self.values, float(np.median(self.values)))
            self.spread = spread if spread > 0 else self.spread

    def forget(self, client: int) -> None:
        """Remove the values of one client, and those whose client is not known."""
        kept = (self.clients != client) & (self.clients != NOBODY)
        if not kept.all():
            # The kept spread may be that client's own value: it is found again from the others.
            self.values, self.clients, self.spread = self.values[kept], self.clients[kept], 0.0
            self._keep_spread()

    def state(self, name: str) -> dict[str, Any]:
        """Return everything as arrays and plain values, under keys that begin with `name`."""
        return {
            name: self.values.copy(),
            f"{name}_by": self.clients.copy(),
            f"{name}_spread": self.spread,
        }

    def restore(self, state: dict[str, Any], name: str, n_clients: int) -> None:
        """Restore from `state`; older versions kept the values without their clients."""
        values = check_vector(state[name], name)[-WINDOW:].copy()
        clients = np.full(values.size, NOBODY, dtype=np.int64)
        if f"{name}_by" in state:
            clients = np.array(state[f"{name}_by"], dtype=np.int64)
        if clients.shape != values.shape:
            raise ValueError(f"{name}_by must have shape {values.shape}, got {clients.shape}")
        if clients.size and (clients.min() < NOBODY or clients.max() >= n_clients):
            raise ValueError(f"{name}_by must be ids below {n_clients}, got {clients.max()}")
        spread = check_number(state.get(f"{name}_spread", 0.0), f"{name}_spread", minimum=0)
        self.values, self.clients, self.spread = values, clients, spread
        if not spread:
            self._keep_spread()
