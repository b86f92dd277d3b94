"""Features of a client's label distribution: a model update in, C numbers out.

The update of the output layer's bias is, to first order, the difference between the labels
that a client holds and the labels that the model predicts. Its direction therefore tells
clients apart by their labels. On MNIST shared out by Dirichlet(0.1), 10 such numbers explain
most of the variance of whole updates between clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features import Model, _arrays
from .validation import Float

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
        self._weights, shape = names[start], arrays[start].shape
        self._bias: str | None = None
        axis = 0
        for name, array in zip(names[start + 1 :], arrays[start + 1 :], strict=True):
            if array.ndim == 1 and array.size in (shape[0], shape[-1]):
                self._bias, axis = name, 0 if array.size == shape[0] else len(shape) - 1
                break
        self._inputs = tuple(i for i in range(len(shape)) if i != axis)
        self.n_features = int(shape[axis])

    def updates(self, models: Sequence[Model], sent: Model) -> Float:
        """Return each model's head update, one row each: of norm 1 (or 0) if normalised."""
        rows = np.zeros((len(models), self.n_features))
        for model, row in zip(models, rows, strict=True):
            row[:] = self._direction(model, sent)
        return rows

    def _direction(self, model: Model, sent: Model) -> Float:
        weights = self._change(self._weights, model, sent)
        tiny = _TINY * max(1.0, float(np.abs(weights).max(initial=0.0)))
        if self._bias is not None:
            bias = self._change(self._bias, model, sent)
            if np.linalg.norm(bias) > tiny:
                return self._scaled(bias)
        means = weights.mean(axis=self._inputs)
        norm = np.linalg.norm(means)
        return self._scaled(means) if norm > tiny else np.zeros(self.n_features)

    def _scaled(self, row: Float) -> Float:
        return np.asarray(row / np.linalg.norm(row)) if self.normalised else row

    def _change(self, name: str, model: Model, sent: Model) -> Float:
        return _array(model, name) - _array(sent, name)


def _array(model: Model, name: str) -> NDArray[np.float64]:
    """Return one array of a model in float64."""
    found: Any = model[name] if isinstance(model, Mapping) else model[int(name)]
    return np.asarray(found, dtype=np.float64)
