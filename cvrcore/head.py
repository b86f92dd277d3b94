"""Features of a client's label distribution: a model update in, C numbers out.

The update of the output layer's bias is, to first order, the difference between the labels
that a client holds and the labels that the model predicts. Its direction therefore tells
clients apart by their labels. On MNIST shared out by Dirichlet(0.1), 10 such numbers explain
most of the variance of whole updates between clients.

Such a row tells the labels of a client. A policy needs less: near rows for clients that are
alike. `Blur` adds noise to a row or keeps only a coarse part of it. It belongs where the row is
computed, on the client; see docs/privacy.md for what is left of the labels and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .features import FeatureMap, Model, _arrays
from .validation import Float, check_choice, check_count, check_number

#: Norms below this share of the largest update count as no update.
_TINY = 1e-12


class HeadMap:
    """Direction of the update of a model's output layer, one number per output.

    The bias update is taken where the layer has a bias and the update is not zero; otherwise
    the mean of the weight update over the inputs of each output.

    Parameters
    ----------
    model : list or dict of arrays
        In the order of the layers. The last array of two or more dimensions is the output
        layer's weights; a one-dimensional array after it whose size is the number of outputs
        is its bias. Without a bias, the first axis of the weights counts the outputs.
    normalised : bool
        Whether rows are scaled to length 1.

    Attributes
    ----------
    n_features : int
        Number of outputs C.

    Examples
    --------
    >>> sent = [np.zeros((2, 3)), np.zeros(2)]
    >>> HeadMap(sent).updates([[np.ones((2, 3)), np.array([3.0, -4.0])]], sent)
    array([[ 0.6, -0.8]])
    """

    def __init__(self, model: Model, normalised: bool = True) -> None:
        self.normalised = normalised
        names, arrays = _arrays(model)
        deep = [i for i, array in enumerate(arrays) if array.ndim >= 2]
        if not deep:
            raise ValueError(
                "model must hold an array of two or more dimensions, the weights of its output "
                f"layer, got shapes {[array.shape for array in arrays]}"
            )
        start = deep[-1]
        shape, bias, axis = arrays[start].shape, None, 0
        for name, array in zip(names[start + 1 :], arrays[start + 1 :], strict=True):
            if array.ndim == 1 and array.size in (shape[0], shape[-1]):
                bias, axis = name, 0 if array.size == shape[0] else len(shape) - 1
                break
        self._set(names[start], shape, bias, axis)

    def _set(self, weights: str, shape: tuple[int, ...], bias: str | None, axis: int) -> None:
        self._weights, self._shape, self._bias, self._axis = weights, shape, bias, axis
        self._inputs = tuple(i for i in range(len(shape)) if i != axis)
        self.n_features = int(shape[axis])

    def updates(self, models: Sequence[Model], sent: Model) -> Float:
        """Return each model's head update, one row each: of norm 1 (or 0) if normalised."""
        rows = np.zeros((len(models), self.n_features))
        for model, row in zip(models, rows, strict=True):
            row[:] = self._direction(model, sent)
        return rows

    def _direction(self, model: Model, sent: Model) -> Float:
        weights = self._change(self._weights, self._shape, model, sent)
        tiny = _TINY * max(1.0, float(np.abs(weights).max(initial=0.0)))
        if self._bias is not None:
            bias = self._change(self._bias, (self.n_features,), model, sent)
            if np.linalg.norm(bias) > tiny:
                return self._scaled(bias)
        means = weights.mean(axis=self._inputs)
        norm = np.linalg.norm(means)
        return self._scaled(means) if norm > tiny else np.zeros(self.n_features)

    def _scaled(self, row: Float) -> Float:
        return np.asarray(row / np.linalg.norm(row)) if self.normalised else row

    def _change(self, name: str, shape: tuple[int, ...], model: Model, sent: Model) -> Float:
        return _array(model, name, shape) - _array(sent, name, shape)

    def state_dict(self) -> dict[str, Any]:
        """Return names and shape of the output layer as plain values."""
        return {
            "head": self._weights,
            "shape": list(self._shape),
            "bias": self._bias,
            "axis": self._axis,
            "normalised": self.normalised,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> HeadMap:
        """Build a map from `state_dict`'s result.

        Raises
        ------
        ValueError
            If it is incomplete or damaged.
        """
        try:
            weights, bias = state["head"], state["bias"]
            shape, axis, normalised = state["shape"], state["axis"], state["normalised"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"state of a HeadMap is incomplete: {error!r}") from error
        if not isinstance(weights, str) or not (bias is None or isinstance(bias, str)):
            raise ValueError(f"head and bias must be names of arrays, got {weights!r}, {bias!r}")
        if not isinstance(shape, list) or len(shape) < 2:
            raise ValueError(f"shape must be a list of two or more numbers, got {shape!r}")
        sizes = tuple(check_count(n, "shape") for n in shape)
        axis = check_count(axis, "axis", minimum=0, maximum=len(sizes) - 1)
        found = cls.__new__(cls)
        found.normalised = bool(normalised)
        found._set(weights, sizes, bias, axis)
        return found

    def __repr__(self) -> str:
        """Return the number of outputs and the names of the output layer's arrays."""
        names = self._weights if self._bias is None else f"{self._weights}, {self._bias}"
        return f"HeadMap({self.n_features} outputs of {names})"


def watched_map(state: Mapping[str, Any]) -> FeatureMap | HeadMap:
    """Build the map of watched coordinates that a state describes, of either kind.

    Examples
    --------
    >>> watched_map(HeadMap([np.zeros((2, 3)), np.zeros(2)]).state_dict())
    HeadMap(2 outputs of 0, 1)
    """
    if "head" in state:
        return HeadMap.from_state_dict(state)
    return FeatureMap.from_state_dict(state)


def _array(model: Model, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return one array of a model in float64."""
    try:
        found: Any = model[name] if isinstance(model, Mapping) else model[int(name)]
    except (KeyError, IndexError):
        raise ValueError(f"model must hold the array {name!r}") from None
    if np.shape(found) != shape:
        raise ValueError(f"model array {name!r} must have shape {shape}, got {np.shape(found)}")
    values = np.asarray(found)
    if values.dtype.kind not in "fiub":
        raise ValueError(f"model array {name!r} must hold real numbers, got {values.dtype}")
    return np.asarray(values, dtype=np.float64)


#: What `Blur` keeps of a row.
COARSE: Final = ("none", "sign", "top")


class Blur:
    """Noise and coarseness of features; rows are scaled to length 1 before and after.

    Parameters
    ----------
    noise : float, default=0
        Standard deviation of the Gaussian noise that is added to each number of a row of
        length 1. It is drawn once for each client: a client that reports again reveals no
        more, where the mean over fresh noise would tell its row.
    coarse : {"none", "sign", "top"}
        Keep of each number its sign; or of the row the position of its largest number alone.
        Noise comes first.
    seed : int
        Of the noise. Only the clients may know it.

    Examples
    --------
    >>> rows = np.array([[0.6, -0.8, 0.0]])
    >>> Blur(coarse="top")(rows, [0])
    array([[1., 0., 0.]])
    >>> Blur(noise=0.1, seed=3)(rows, [0]).round(2)
    array([[ 0.61, -0.8 ,  0.03]])
    """

    def __init__(self, noise: float = 0.0, coarse: str = "none", seed: int = 0) -> None:
        self.noise = check_number(noise, "noise", minimum=0)
        self.coarse = check_choice(coarse, "coarse", COARSE)
        self.seed = check_count(seed, "seed", minimum=0)

    @property
    def is_identity(self) -> bool:
        """Whether rows stay as they are."""
        return self.noise == 0 and self.coarse == "none"

    def __call__(self, rows: ArrayLike, clients: ArrayLike) -> Float:
        """Return the rows of `clients` as a server may see them; a row of zeros stays one."""
        values = np.array(rows, dtype=np.float64)
        if values.ndim != 2:
            raise ValueError(f"rows must be a matrix, got shape {values.shape}")
        ids = np.asarray(clients, dtype=np.int64)
        if ids.shape != (len(values),):
            raise ValueError(f"clients must have shape ({len(values)},), got {ids.shape}")
        if (ids < 0).any():
            raise ValueError(f"clients must be at least 0, got {ids.min()}")
        if self.is_identity:
            return values
        told = values.any(axis=1)
        values[told] = _scaled(values[told])
        if self.noise:
            for client, row in zip(ids[told], np.flatnonzero(told), strict=True):
                rng = np.random.default_rng([self.seed, int(client)])
                values[row] += self.noise * rng.standard_normal(values.shape[1])
        if self.coarse == "sign":
            values[told] = np.sign(values[told])
        elif self.coarse == "top":
            best = values[told].argmax(axis=1)
            values[told] = np.eye(values.shape[1])[best]
        values[told] = _scaled(values[told])
        return values


def _scaled(rows: Float) -> Float:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))
