"""Models of a server round by round in, their moving average out: the model to deploy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..validation import check_number

Array = NDArray[Any]
Arrays = list[Array]
#: The usual decay: about five models count.
DECAY: Final = 0.8
#: Kinds of arrays in a model: floats, integers and truth values.
_KINDS: Final = "fiub"


class ModelAverage:
    r"""Exponential moving average of the models that a server sends, round by round.

    Clients go on training from the model itself; evaluate and deploy the average [1]_ [2]_. A
    round moves the model towards the clients that it had, a longer server step moves it further:
    the average takes the swing out and keeps the progress. With ``t`` models before, the newest
    one counts ``max(1 - decay, 1 / (t + 1))``, so that early averages are plain means.

    Arrays of floats are averaged, in their own type but in float32 at least; integers and truth
    values, such as counters, are the newest.

    Parameters
    ----------
    decay : float in [0, 1)
        About ``1 / (1 - decay)`` models count. 0: the newest alone.

    References
    ----------
    .. [1] Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM
       Journal on Control and Optimization, 1992.
    .. [2] Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging weights leads to wider
       optima and better generalization", UAI, 2018.

    Examples
    --------
    >>> import numpy as np
    >>> average = ModelAverage(decay=0.5)
    >>> for value in (0.0, 4.0, 8.0):
    ...     (averaged,) = average.update([np.array([value])])
    >>> averaged
    array([5.])
    """

    def __init__(self, decay: float = DECAY) -> None:
        self.decay = check_number(decay, "decay", minimum=0.0)
        if self.decay >= 1.0:
            raise ValueError(f"decay must be below 1, got {decay:g}")
        self._state: tuple[int, Arrays] = (0, [])  # one name: an interrupt leaves both or neither

    @property
    def count(self) -> int:
        """Models so far."""
        return self._state[0]

    @property
    def nbytes(self) -> int:
        """Bytes kept between rounds: one model."""
        return sum(array.nbytes for array in self._state[1])

    @property
    def arrays(self) -> Arrays:
        """A copy of the average; empty before the first model."""
        return [array.copy() for array in self._state[1]]

    def update(self, model: Sequence[Array]) -> Arrays:
        """Take in the newest model, and return the average.

        Raises
        ------
        ValueError
            If there is no array, one is not of real numbers, a value of it or of the average is
            not finite, or shapes are not those of the models before; nothing changes.
        """
        newest = [np.asarray(array) for array in model]
        if not newest:
            raise ValueError("model must have at least one array, got none")
        count, means = self._state
        shapes = [array.shape for array in newest]
        if count and shapes != (before := [mean.shape for mean in means]):
            raise ValueError(f"model must have arrays of shapes {before}, got {shapes}")
        for i, array in enumerate(newest):
            if array.dtype.kind not in _KINDS:
                raise ValueError(
                    f"model must have arrays of real numbers, got {array.dtype} in array {i}; "
                    "convert it, or leave it out"
                )
            if not np.isfinite(array).all():
                raise ValueError(f"model must be finite, got a value that is not in array {i}")
        weight = max(1.0 - self.decay, 1.0 / (count + 1))
        moved = [_moved(m, x, weight) for m, x in zip(means or newest, newest, strict=True)]
        for i, array in enumerate(moved):
            if not np.isfinite(array).all():
                raise ValueError(
                    "model must have a finite average in its own type, got values too large for "
                    f"{array.dtype} in array {i}; average it in float64"
                )
        self._state = count + 1, moved
        return self.arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the state as arrays and plain values; `decay` is a setting, not part of it."""
        return {"count": self.count, "means": self.arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises
        ------
        ValueError
            If it is damaged; nothing changes then.
        """
        if not isinstance(state, dict):
            raise ValueError(f"state must be a dictionary, got {type(state).__name__}")
        count, means = state.get("count"), state.get("means")
        if type(count) is not int or count < 0:
            raise ValueError(f"count must be a non-negative integer, got {count!r}")
        if not isinstance(means, list) or bool(means) != bool(count):
            raise ValueError("means must be a list of arrays, empty only before the first model")
        for array in means:
            if not isinstance(array, np.ndarray) or array.dtype.kind not in _KINDS:
                raise ValueError(f"means must hold arrays of numbers, got {type(array).__name__}")
            if not np.isfinite(array).all():
                raise ValueError("means must be finite")
        self._state = count, [array.copy() for array in means]


def _moved(mean: Array, newest: Array, weight: float) -> Array:
    """Return the average of one array after the newest one."""
    if newest.dtype.kind != "f":
        return newest.copy()
    kind = max(newest.dtype, np.dtype(np.float32))
    if weight == 1.0:
        return newest.astype(kind)
    # Not as a step along a difference: that of two finite models may be too large for their type.
    with np.errstate(over="ignore"):
        moved = kind.type(1.0 - weight) * mean + kind.type(weight) * newest.astype(kind, copy=False)
        return np.asarray(moved, dtype=kind)  # an array, also without dimensions
