"""Content that a client sent in, checked values out, or a ValueError that says why not.

Every adapter calls these functions on each reply and introduction separately, so that an
invalid one fails its own client and no other.
"""

from __future__ import annotations

import collections
import math
import numbers
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..features import Model
from ..validation import check_finite

#: Kinds of dtype that may take each other's place: a mean of integers is sent as floats.
REAL = "biuf"
#: The largest number of samples or steps that is believed: float64 counts exactly up to here.
MAX_COUNT = 2.0**53
#: The largest magnitude in an array, unless the model sent holds larger values: squares of it,
#: which adaptive server optimisers sum up, do not overflow.
MAX_VALUE = 1e17
#: The longest id of a client, in characters; a public key in hex has 194.
MAX_ID = 1000
#: The longest reason that is kept and logged, in characters.
MAX_REASON = 300


class Layer(NamedTuple):
    """Shape, dtype and largest magnitude of an array that was sent."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    peak: float = 0.0

    @classmethod
    def of(cls, array: NDArray[Any]) -> Layer:
        """Return the layer of an array."""
        peak = 0.0
        if array.dtype.kind == "f" and array.size:
            peak = max(float(array.max()), -float(array.min()))
        return cls(array.shape, array.dtype, peak)


def brief(error: object) -> str:
    """Return the text of an error in one printable line of bounded length.

    Runtimes put whole tracebacks into errors, and clients anything.
    """
    text = str(error) or repr(error)
    half = 4 * MAX_REASON
    text = text if len(text) <= 2 * half else text[:half] + text[-half:]
    text = " ".join(text.split())
    text = "".join(one if one.isprintable() else "?" for one in text)
    if len(text) <= MAX_REASON:
        return text
    return f"{text[: MAX_REASON // 3]} ... {text[-2 * MAX_REASON // 3 :]}"


def as_number(
    value: Any, name: str, *, minimum: float = -math.inf, maximum: float = math.inf
) -> float:
    """Return a finite real number in [`minimum`, `maximum`]; text and lists are refused."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"{name} must be a number, got {type(value).__name__} {brief(repr(value))}"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if not minimum <= number <= maximum:
        bounds = f"from {minimum:g} to {maximum:g}" if maximum < math.inf else f">= {minimum:g}"
        raise ValueError(f"{name} must be {bounds}, got {number:g}")
    return number


def check_id(id: Any) -> str | int:
    """Return a client's id: a 64-bit integer, or printable text of bounded length."""
    if isinstance(id, (bool, np.bool_)) or not isinstance(id, (str, int, np.integer)):
        raise ValueError(
            f"its id must be a string or an integer, got {type(id).__name__} {brief(repr(id))}"
        )
    if isinstance(id, str):
        if not id or len(id) > MAX_ID or not id.isprintable() or id.startswith("(forgotten "):
            raise ValueError(
                f"its id must be printable text of 1 to {MAX_ID} characters, got {brief(repr(id))}"
            )
        return str(id)
    if not -(2**63) <= id < 2**63:
        raise ValueError("its id must be an integer of at most 64 bits, got a larger one")
    return int(id)


def check_label_counts(value: Any) -> NDArray[np.float64]:
    """Return the samples of each class: finite numbers >= 0, of which at least one is positive."""
    counts = np.asarray(value)
    if counts.ndim != 1 or not counts.size or counts.dtype.kind not in "iuf":
        raise ValueError(
            "its label counts must be a list of numbers, one for each class, "
            f"got shape {counts.shape} of {counts.dtype}"
        )
    counts = counts.astype(np.float64)
    if not (counts >= 0).all() or not (counts <= MAX_COUNT).all():
        raise ValueError(f"its label counts must be from 0 to {MAX_COUNT:g}, got {brief(counts)}")
    if not counts.any():
        raise ValueError(f"its label counts must not be all zero, got {counts.size} zeros")
    return counts


# -- arrays ------------------------------------------------------------------------


def by_name(model: Model) -> dict[str, NDArray[Any]]:
    """Return the arrays of a model by name; arrays of a list are named by their position."""
    items = model.items() if isinstance(model, Mapping) else enumerate(model)
    return {str(name): np.asarray(array) for name, array in items}


def layers_of(model: Model) -> dict[str, Layer]:
    """Return shape, dtype and largest magnitude of each array of a model that is sent."""
    return {name: Layer.of(array) for name, array in by_name(model).items()}


def check_layers(found: Mapping[str, NDArray[Any]], sent: Mapping[str, Layer]) -> None:
    """Refuse arrays that differ from those sent in names, shape or kind of dtype, or NaN, Inf.

    Booleans, integers and floats are one kind. Floats must also fit the float dtype that was
    sent: a value that overflows there would make the mean of all clients infinite.
    """
    if len(found) != len(sent) or any(name not in sent for name in found):
        wanted, got = brief(", ".join(sent)), brief(", ".join(found) or "none")
        raise ValueError(f"its arrays must be {wanted}; got {got}")
    for name, layer in sent.items():
        array = found[name]
        if array.shape != layer.shape:
            raise ValueError(f"its array {name!r} must have shape {layer.shape}, got {array.shape}")
        same = array.dtype == layer.dtype or (
            array.dtype.kind == layer.dtype.kind
            if array.dtype.kind not in REAL
            else layer.dtype.kind in REAL
        )
        if not same or (array.dtype.kind not in REAL + "c" and array.dtype != layer.dtype):
            raise ValueError(f"its array {name!r} must be {layer.dtype}, got {array.dtype}")
        check_numbers(array, f"its array {name!r}", layer.dtype)
        if array.dtype.kind == "f":
            check_finite(array, f"its array {name!r}", max(MAX_VALUE, 2.0 * layer.peak))


def check_numbers(array: NDArray[Any], name: str, dtype: np.dtype[Any] | None = None) -> None:
    """Refuse NaN and Inf, also after a cast of floats to the float `dtype`."""
    if array.dtype.kind == "c":
        check_finite(array.real, name)
        check_finite(array.imag, name)
    elif array.dtype.kind == "f":
        limit = float(np.finfo(np.float64).max)
        if dtype is not None and dtype.kind == "f":
            limit = min(limit, float(np.finfo(dtype).max))
        check_finite(array, name, limit)


def as_sent(array: NDArray[Any], layer: Layer) -> NDArray[Any]:
    """Return an array in the precision that was sent.

    Frameworks add models up in the dtype of the first one: a client that replied in float16
    would round all the others. Integers stay.
    """
    if array.dtype.kind != "f":
        return array
    return array.astype(layer.dtype if layer.dtype.kind == "f" else np.float64, copy=False)


# -- metrics -----------------------------------------------------------------------


def metric_form(metrics: Mapping[Any, Any]) -> frozenset[tuple[Any, Hashable]]:
    """Return names and forms of metrics: a number, text, or a list of so many numbers.

    Raises
    ------
    ValueError
        If a value is anything else, or an integer of more than 64 bits.
    """
    return frozenset((name, _form(name, value)) for name, value in metrics.items())


def _form(name: Any, value: Any) -> Hashable:
    if isinstance(value, (str, bytes)):
        return type(value).__name__
    if isinstance(value, (list, tuple)):
        if any(_form(name, one) != "number" for one in value):
            raise ValueError(f"its metric {brief(repr(name))} must be a list of numbers")
        return len(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, (numbers.Real, np.bool_)):
        raise ValueError(
            f"its metric {brief(repr(name))} must be a number, got {type(value).__name__}"
        )
    if isinstance(value, numbers.Integral) and not -(2**63) <= int(value) < 2**64:
        raise ValueError(f"its metric {brief(repr(name))} must have at most 64 bits")
    return "number"


class UsualForm:
    """Which clients reply in another form than most; frameworks aggregate one form only.

    Of equally common forms the one of the round before counts, then that of the first client.
    """

    def __init__(self) -> None:
        self._last: Hashable = None

    def odd_ones(self, forms: Mapping[Any, Hashable]) -> list[Any]:
        """Return the clients of another form than most, and remember the usual form."""
        if not forms:
            return []
        counts = collections.Counter(forms.values())
        most = max(counts.values())
        common = [form for form, count in counts.items() if count == most]
        self._last = self._last if self._last in common else common[0]
        return [client for client, form in forms.items() if form != self._last]
