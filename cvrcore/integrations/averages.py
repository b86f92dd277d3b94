"""Models of a run by name of array in, their moving average out: the model to deploy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..aggregators import ModelAverage

Arrays = dict[str, NDArray[Any]]


class DeployedModel:
    """The moving average of the models of a run; without a decay there is none.

    Clients go on training from the model itself. The average is what is evaluated and saved.

    Parameters
    ----------
    decay : float in [0, 1)
        Of `cvrcore.aggregators.ModelAverage`; 0: no average.

    Examples
    --------
    >>> import numpy as np
    >>> deployed = DeployedModel(0.5)
    >>> for value in (0.0, 4.0, 8.0):
    ...     deployed.update({"w": np.array([value])})
    >>> deployed.model
    {'w': array([5.])}
    """

    def __init__(self, decay: float = 0.0) -> None:
        average = ModelAverage(decay)  # checks the decay
        self._average = average if average.decay else None
        self._dtypes: dict[str, np.dtype[Any]] = {}  # of the newest model, by name

    @property
    def decay(self) -> float:
        """Decay of the average; 0: none."""
        return 0.0 if self._average is None else self._average.decay

    @property
    def model(self) -> Arrays | None:
        """The average, in the precision of the newest model; None where there is none."""
        if self._average is None or not self._average.count:
            return None
        pairs = zip(self._dtypes.items(), self._average.arrays, strict=True)
        return {name: array.astype(dtype, copy=False) for (name, dtype), array in pairs}

    def update(self, model: Mapping[str, Any]) -> None:
        """Take in the newest model.

        Raises
        ------
        ValueError
            If names, shapes or values are not those of a model of this run; nothing changes.
        """
        if self._average is None:
            return
        arrays = {str(name): np.asarray(array) for name, array in model.items()}
        if self._dtypes and arrays.keys() != self._dtypes.keys():
            known, found = ", ".join(self._dtypes), ", ".join(arrays)
            raise ValueError(f"model must have the arrays {known}, got {found}")
        names = list(self._dtypes or arrays)
        self._average.update([arrays[name] for name in names])
        self._dtypes = {name: arrays[name].dtype for name in names}

    def state_dict(self) -> dict[str, Any] | None:
        """Return the average as plain values and arrays; None where there is none."""
        if self._average is None:
            return None
        kinds = [dtype.str for dtype in self._dtypes.values()]
        return {"names": list(self._dtypes), "dtypes": kinds, **self._average.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        """Load what `state_dict` returned; an average goes into an average, None into none.

        Raises
        ------
        ValueError
            If the state is damaged, or only one of the two has an average; nothing changes then.
        """
        if (state is None) != (self._average is None):
            wanted = "0" if state is None else "the decay of the saved run"
            raise ValueError(f"average must be {wanted}, as in the saved state")
        if self._average is None:
            return
        if not isinstance(state, dict):
            raise ValueError(f"state of an average must be a dict, got {type(state).__name__}")
        names, kinds = state.get("names"), state.get("dtypes")
        means = state.get("means")
        if not (isinstance(names, list) and isinstance(kinds, list) and isinstance(means, list)):
            raise ValueError("state of an average must hold lists of names, dtypes and means")
        if not len(names) == len(set(map(str, names))) == len(kinds) == len(means):
            raise ValueError("state of an average must have one name and dtype for each mean")
        try:
            dtypes = {str(name): np.dtype(kind) for name, kind in zip(names, kinds, strict=True)}
        except TypeError as error:
            raise ValueError(f"dtypes of an average must be dtypes: {error}") from error
        if any(dtype.kind not in "fiub" for dtype in dtypes.values()):
            raise ValueError("dtypes of an average must be of real numbers")
        self._average.load_state_dict(state)
        self._dtypes = dtypes
