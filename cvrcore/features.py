"""Watched coordinates: a model's arrays in, one row of D numbers out.

The paper watches the last layer (Appendix, "Practical Implementation"), or a random subset
of it. A model is a list of arrays or a state dict of arrays; this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .validation import Float, Ids, check_count, check_ids

Model = Mapping[str, Any] | Sequence[Any]


def _arrays(model: Model) -> tuple[list[str], list[Any]]:
    """Return names and arrays of a model, in order."""
    if isinstance(model, Mapping):
        names, arrays = list(map(str, model)), [np.asarray(value) for value in model.values()]
    elif isinstance(model, Sequence) and not isinstance(model, (str, bytes)):
        names = [str(i) for i in range(len(model))]
        arrays = [np.asarray(value) for value in model]
    else:
        raise TypeError(f"model must be a list or a dict of arrays, got {type(model).__name__}")
    if not arrays:
        raise ValueError("model must hold at least one array, got none")
    return names, arrays


class FeatureMap:
    """A fixed set of coordinates of a model, cut out of some of its arrays.

    Build one with `last_layer`, `subset` or `whole`; then call `extract` on every model.
    The set of coordinates is part of the state: save it with the selector.

    Attributes
    ----------
    names : list of str
        Arrays watched: names in a state dict, positions in a list.
    shapes : list of tuple of int
    index : ndarray of int64, or None
        Positions in the concatenation of the watched arrays; None: all positions.

    Examples
    --------
    >>> import numpy as np
    >>> from cvrcore.features import FeatureMap
    >>> model = {"hidden": np.zeros((4, 3)), "last.weight": np.ones((2, 4))}
    >>> model["last.bias"] = np.zeros(2)
    >>> watched = FeatureMap.last_layer(model)
    >>> watched
    FeatureMap(10 coordinates of last.weight, last.bias)
    >>> watched.extract(model)
    array([1., 1., 1., 1., 1., 1., 1., 1., 0., 0.])
    """

    def __init__(
        self, names: Sequence[str], shapes: Sequence[Sequence[int]], index: ArrayLike | None = None
    ) -> None:
        self.names = [str(name) for name in names]
        self.shapes = [tuple(int(n) for n in shape) for shape in shapes]
        total = sum(int(np.prod(shape)) for shape in self.shapes)
        self.index: Ids | None = None
        if index is not None:
            self.index = np.sort(check_ids(index, "index", total))
            if self.index.size == 0:
                raise ValueError("index must hold at least one position, got none")
        self.n_features = total if self.index is None else int(self.index.size)

    @classmethod
    def last_layer(cls, model: Model, n_features: int | None = None, seed: int = 0) -> FeatureMap:
        """Watch the last layer: its weights and, if it has one, its bias.

        Parameters
        ----------
        model : list or dict of arrays
            In the order of the layers, as every framework lists them. The last array of
            two or more dimensions is the weights; one-dimensional arrays after it that fit
            its outputs are its bias.
        n_features : int, optional
            Watch only this many coordinates, drawn once with `seed`. Default, and for a
            layer with no more coordinates: all.
        """
        names, arrays = _arrays(model)
        deep = [i for i, array in enumerate(arrays) if array.ndim >= 2]
        start = deep[-1] if deep else len(arrays) - 1
        outputs = arrays[start].shape
        end = start + 1
        while end < len(arrays) and arrays[end].ndim == 1 and arrays[end].size in outputs:
            end += 1
        shapes = [array.shape for array in arrays[start:end]]
        return cls._drawn(names[start:end], shapes, n_features, seed)

    @classmethod
    def whole(cls, model: Model) -> FeatureMap:
        """Watch every coordinate of every array."""
        names, arrays = _arrays(model)
        return cls(names, [array.shape for array in arrays])

    @classmethod
    def subset(cls, model: Model, n_features: int, seed: int = 0) -> FeatureMap:
        """Watch `n_features` coordinates of the whole model, drawn once with `seed`."""
        names, arrays = _arrays(model)
        return cls._drawn(names, [array.shape for array in arrays], n_features, seed)

    @classmethod
    def _drawn(
        cls, names: list[str], shapes: list[Any], n_features: int | None, seed: int
    ) -> FeatureMap:
        everything = cls(names, shapes)
        if n_features is None:
            return everything
        n_features = check_count(n_features, "n_features")
        if n_features >= everything.n_features:
            return everything
        rng = np.random.default_rng(seed)
        index = rng.choice(everything.n_features, size=n_features, replace=False)
        return cls(names, shapes, index)

    def extract(self, model: Model) -> Float:
        """Return the watched coordinates of one model, shape (n_features,)."""
        names, arrays = _arrays(model)
        found = dict(zip(names, arrays, strict=True))
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in found:
                raise ValueError(f"model must hold the array {name!r}, got {', '.join(names)}")
            if found[name].shape != shape:
                raise ValueError(
                    f"model array {name!r} must have shape {shape}, got {found[name].shape}"
                )
            parts.append(found[name].ravel())
        flat = np.concatenate(parts)
        return flat if self.index is None else flat[self.index]

    def extract_all(self, models: Sequence[Model]) -> Float:
        """Return the watched coordinates of several models, one row each."""
        rows = [self.extract(model) for model in models]
        return np.stack(rows) if rows else np.empty((0, self.n_features))

    def updates(self, models: Sequence[Model], sent: Model) -> Float:
        """Return each model's watched coordinates minus those of the model `sent`.

        With these rows instead of the models' own, a coalition holds clients whose updates
        point in the same direction, even from different rounds: ours, not the paper's. Leave
        ``initial`` of the selector at zeros, its default: the update of an unseen client.
        """
        rows: Float = self.extract_all(models) - self.extract(sent)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the map as plain values and one array."""
        index = None if self.index is None else self.index.copy()
        return {"names": list(self.names), "shapes": [list(s) for s in self.shapes], "index": index}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> FeatureMap:
        """Build a map from `state_dict`'s result."""
        return cls(state["names"], state["shapes"], state["index"])

    def __repr__(self) -> str:
        """Return the number of watched coordinates and the names of their arrays."""
        return f"FeatureMap({self.n_features} coordinates of {', '.join(self.names)})"
