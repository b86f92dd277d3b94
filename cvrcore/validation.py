"""Checks of public arguments: array-like in, typed contiguous array out, or an error.

Every message names the argument, the rule and the value that broke it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[Any]  # float32 or float64, as the caller chose
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

_SHORT, _HUGE = 4096, 1e300  # see `check_finite`
_FEW = 128  # ids up to which a set finds repeated ones faster than sorting


class NotFiniteError(ValueError):
    """An array holds NaN or Inf; `entry` is the index of the first such value."""

    entry: tuple[int, ...] = ()


def check_count(
    value: Any, name: str, minimum: int = 1, maximum: int | None = None, of: str = ""
) -> int:
    """Return `value` as an int within ``[minimum, maximum]``; `of` names the maximum."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if count < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {count}")
    if maximum is not None and count > maximum:
        most = f"{of} ({maximum})" if of else maximum
        raise ValueError(f"{name} must be at most {most}, got {count}")
    return count


def check_number(
    value: Any,
    name: str,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> float:
    """Return `value` as a finite float in (`above`, `below`) and [`minimum`, `maximum`]."""
    if isinstance(value, (bool, str, bytes)) or np.ndim(value) != 0:
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if above == 0 and number <= 0:
        raise ValueError(f"{name} must be positive, got {number:g}")
    if number <= above:
        raise ValueError(f"{name} must be above {above:g}, got {number:g}")
    if number >= below:
        raise ValueError(f"{name} must be below {below:g}, got {number:g}")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum:g}, got {number:g}")
    if number > maximum:
        raise ValueError(f"{name} must be at most {maximum:g}, got {number:g}")
    return number


def check_seed(value: Any, name: str = "seed") -> np.random.Generator:
    """Return a generator seeded by None, an int, ints or a SeedSequence."""
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be a non-negative integer, a SeedSequence, a Generator or None, "
            f"got {value!r}"
        ) from None


def check_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    return value


def check_dtype(value: Any, name: str = "dtype") -> np.dtype[Any]:
    """Return `value` as the dtype float32 or float64."""
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError:
        raise TypeError(f"{name} must be float32 or float64, got {value!r}") from None
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"{name} must be float32 or float64, got {dtype}")
    return dtype


def _as_float(value: ArrayLike, name: str, dtype: Any = None) -> Float:
    """Convert to a real floating array; integers become float64."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a numeric array: {error}") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be a real numeric array, got dtype {array.dtype}")
    if dtype is None:
        dtype = array.dtype if array.dtype in (np.float32, np.float64) else np.float64
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    with np.errstate(over="ignore"):  # an overflow becomes Inf, which check_finite refuses
        return np.ascontiguousarray(array, dtype=dtype)


def check_finite(array: Float, name: str, limit: float = math.inf) -> None:
    """Raise ValueError for NaN, Inf or a magnitude above `limit`; name the first such entry."""
    if not array.size:
        return
    if array.size <= _SHORT:
        # A bounded sum of squares bounds every entry, and NaN and Inf stay in it.
        squares = float(np.vdot(array, array))
        if squares <= _HUGE and squares <= limit * limit:
            return
    # Maximum and minimum need no temporary array, and NaN propagates through both.
    highest, lowest = float(array.max()), float(array.min())
    if math.isfinite(highest) and math.isfinite(lowest):
        peak = max(highest, -lowest)
        if peak > limit:
            raise ValueError(f"{name} must stay within {limit:.3g}, got {peak:.3g}")
        return
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        where = ", ".join(map(str, bad[0]))
        error = NotFiniteError(f"{name} must be finite, got {array[tuple(bad[0])]} at [{where}]")
        error.entry = tuple(map(int, bad[0]))
        raise error


def check_matrix(
    value: ArrayLike,
    name: str,
    shape: tuple[int | None, int | None] = (None, None),
    dtype: Any = None,
    limit: float = math.inf,
) -> Float:
    """Return a finite 2-D float array of the given shape (None: any size above 0)."""
    array = _as_float(value, name, dtype)
    if array.ndim != 2 or any(w not in (None, n) for w, n in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have shape ({wanted}), got {array.shape}")
    if array.size == 0 and None in shape:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    check_finite(array, name, limit)
    return array


def check_vector(
    value: ArrayLike,
    name: str,
    length: int | None = None,
    dtype: Any = np.float64,
    limit: float = math.inf,
) -> Float:
    """Return a finite 1-D float array, of `length` if given."""
    array = _as_float(value, name, dtype)
    if array.ndim != 1 or (length is not None and array.shape[0] != length):
        wanted = "any" if length is None else str(length)
        raise ValueError(f"{name} must have shape ({wanted},), got {array.shape}")
    check_finite(array, name, limit)
    return array


def check_weights(value: ArrayLike | None, n_clients: int, name: str = "weights") -> Float:
    """Return raw sample counts: finite, non-negative, not all zero; None means ones."""
    if value is None:
        return np.ones(n_clients)
    weights = check_vector(value, name, n_clients).copy()
    if (weights < 0).any():
        k = int(np.argmin(weights))
        raise ValueError(f"{name} must be non-negative, got {weights[k]:g} at [{k}]")
    if not weights.any():
        raise ValueError(f"{name} must not be all zero, got {n_clients} zeros")
    check_total(weights, name)
    return weights


def check_total(weights: Float, name: str) -> None:
    """Raise ValueError if the sum of finite weights overflows; name the largest."""
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not math.isfinite(total):
        k = int(np.argmax(weights))
        raise ValueError(
            f"{name} must have a finite sum, got {weights[k]:g} for client {k}: correct or bound it"
        )


def check_ids(value: ArrayLike, name: str, n_clients: int) -> Ids:
    """Return distinct client ids within ``[0, n_clients)``, in the order given."""
    array = np.asarray(value)
    if array.size == 0 and array.ndim <= 1:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (any,), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer ids, got dtype {array.dtype}")
    ids = array.astype(np.int64)
    if ids.view(np.uint64).max() >= n_clients:  # a negative id is a very large uint64
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"{name} must be ids in 0..{n_clients - 1}, got {bad}")
    if ids.size <= _FEW:
        distinct = len(set(ids.tolist())) == ids.size
    else:
        ordered = np.sort(ids)
        distinct = not (ordered[1:] == ordered[:-1]).any()
    if not distinct:
        twice = int(np.argmax(np.bincount(ids)))
        raise ValueError(f"{name} must be distinct, got {twice} more than once")
    return ids


def check_available(value: ArrayLike | None, n_clients: int, name: str = "available") -> Mask:
    """Return a mask (n_clients,) from a mask, an array of ids, or None for all clients."""
    if value is None:
        return np.ones(n_clients, dtype=bool)
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    array = np.asarray(value)
    if array.dtype == bool:
        if array.shape != (n_clients,):
            raise ValueError(
                f"{name} must be a mask of shape ({n_clients},) or ids, got a mask of shape "
                f"{array.shape}"
            )
        return array.copy()
    if array.shape == (n_clients,) and n_clients > 2 and not set(array.tolist()) - {0, 1}:
        raise ValueError(f"{name} must be a boolean mask or ids, got a mask of {array.dtype}")
    mask = np.zeros(n_clients, dtype=bool)
    mask[check_ids(array, name, n_clients)] = True
    return mask


def check_labels(value: ArrayLike, n_clients: int | None, name: str = "coalitions") -> Ids:
    """Return coalition labels ``0 .. n_coalitions - 1``, each used at least once."""
    array = np.asarray(value)
    if array.ndim != 1 or (n_clients is not None and array.shape[0] != n_clients):
        wanted = "any" if n_clients is None else str(n_clients)
        raise ValueError(f"{name} must have shape ({wanted},), got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integer labels, got dtype {array.dtype}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    labels = np.ascontiguousarray(array, dtype=np.int64)
    if labels.min() < 0 or labels.max() >= labels.size:
        bad = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(f"{name} must be labels in 0..{labels.size - 1}, got {bad}")
    sizes = np.bincount(labels)
    if not sizes.all():
        raise ValueError(f"{name} must use every label, got none in coalition {sizes.argmin()}")
    return labels


def check_shape(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of numbers from a saved state if it has this shape; nothing is copied."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be an array of numbers, got {value!r:.60}")
    if value.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {value.shape}")
    return value


def check_stored(value: Any, name: str, n_clients: int, dtype: Any = np.float64) -> NDArray[Any]:
    """Return a copy of one number per client from a saved state; NaN may mean unknown."""
    array = np.array(value, dtype=dtype)
    if array.shape != (n_clients,):
        raise ValueError(f"{name} must have shape ({n_clients},), got {array.shape}")
    return array
