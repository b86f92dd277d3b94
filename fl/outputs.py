"""Flat models of a run in; ``nn.Module`` and ``safetensors`` files out, and back.

A file holds the module's ``state_dict``: ``module.load_state_dict(load_file(path))`` with
`safetensors.torch.load_file` needs nothing of this package.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .settings import ConfigError

if TYPE_CHECKING:  # a report reads histories and needs no torch
    import torch
    from torch import nn

    from .flat import Vector

Which = Literal["final", "best"]
#: Name of the file of each model; with several models, ``-0``, ``-1``, ... before the dot.
FILES = {"final": "model", "best": "best"}
State = dict[str, "torch.Tensor"]


class Outputs:
    """The models of a run that can be had: the last, and that of the best evaluation.

    Parameters
    ----------
    states : callable
        Takes "final" or "best" and returns the state of each of the server's models.
    make : callable, optional
        Returns a new module; without it a caller must bring one.
    """

    def __init__(
        self, states: Callable[[str], list[State]], make: Callable[[], nn.Module] | None = None
    ) -> None:
        self.states, self._make = states, make

    def module(
        self, which: str = "final", number: int | None = None, into: nn.Module | None = None
    ) -> nn.Module:
        """Return a model as a module in evaluation mode; see `History.model`."""
        if which not in FILES:
            raise ValueError(f"which must be 'final' or 'best', got {which!r}")
        states = self.states(which)
        if number is None and len(states) > 1:
            raise ValueError(
                f"number must say which of {len(states)} models is meant, 0..{len(states) - 1}"
            )
        if not 0 <= (number or 0) < len(states):
            raise ValueError(f"number must be in 0..{len(states) - 1}, got {number}")
        if into is None and self._make is None:
            raise ValueError(
                "into must be a module like the one that was trained: the run was made with a "
                "model of the caller's own, and a folder holds no code"
            )
        module = into if into is not None else self._make()  # type: ignore[misc]
        try:
            module.load_state_dict(states[number or 0])
        except RuntimeError as error:
            raise ValueError(f"into must be like the module that was trained: {error}") from None
        return module.eval()


def states_of(make: Callable[[], nn.Module], models: Vector) -> list[State]:
    """Return the ``state_dict`` of each flat model, constants of the module included."""
    from .flat import FlatModule

    states = []
    for vector in models:
        module = make()
        FlatModule(module).load(vector)
        states.append({name: value.detach().clone() for name, value in _state(module).items()})
    return states


def write_models(folder: Path, which: str, states: list[State], facts: Mapping[str, Any]) -> None:
    """Write one file per model, each beside its place, then renamed."""
    from safetensors.torch import save_file

    metadata = {"format": "pt", **{name: str(value) for name, value in facts.items()}}
    for number, state in enumerate(states):
        path = folder / _name(which, number, len(states))
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            save_file({n: value.contiguous() for n, value in state.items()}, part, metadata)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def read_models(folder: Path, which: str) -> list[State]:
    """Return the models that `write_models` wrote.

    Raises
    ------
    FileNotFoundError
        If the folder has none: the run is not finished, or keeps no models.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    single = folder / _name(which, 0, 1)
    paths = [single] if single.exists() else []
    while not single.exists() and (path := folder / _name(which, len(paths), 2)).exists():
        paths.append(path)
    if not paths:
        raise FileNotFoundError(
            f"{folder} holds no {single.name}: its run is not finished, or has save_models = false"
        )
    try:
        return [load_file(path) for path in paths]
    except SafetensorError as error:
        raise ConfigError(f"{paths[0]} is damaged: {error}") from None


def _name(which: str, number: int, count: int) -> str:
    return f"{FILES[which]}{'' if count == 1 else f'-{number}'}.safetensors"


def _state(module: nn.Module) -> State:
    state: State = module.state_dict()
    return state
