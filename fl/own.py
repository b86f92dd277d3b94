"""A caller's model, loss and metric in; the same in any worker process out.

Objects travel by value (cloudpickle), so that a class of a script or a notebook can be used
too. They go from a run to its own workers, never to or from a file.
"""

from __future__ import annotations

import copy
import inspect
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from .objectives import Function, Metric
from .settings import ConfigError

#: What ``model=`` of `fl.run` takes.
ModelLike = nn.Module | Callable[..., nn.Module]


class Own:
    """What a caller brings to a run: a model, a loss, a metric, each optional.

    Parameters
    ----------
    model : nn.Module or callable, optional
        A module, whose present values are the initial model, or a function that returns one.
        A function is called without arguments, or with those of ``in_shape`` and
        ``n_classes`` that it names.
    loss : callable, optional
    metric : Metric or callable, optional
    """

    def __init__(
        self,
        model: ModelLike | None = None,
        loss: Function | None = None,
        metric: Metric | Function | None = None,
    ) -> None:
        self.model, self.loss, self.metric = model, loss, metric
        self._token = secrets.token_hex(8)  # a copy in another process equals the original

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self._token == other._token

    def __hash__(self) -> int:
        return hash(self._token)

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        try:
            return _restored, (cloudpickle.dumps(vars(self)),)
        except Exception as error:  # any object's own __reduce__ may raise anything
            raise ConfigError(
                f"model, loss and metric cannot be sent to worker processes ({error}); "
                "set engine.name to 'serial'"
            ) from error

    @property
    def names(self) -> list[str]:
        """What the caller brings: some of "model", "loss" and "metric"."""
        return [n for n in ("model", "loss", "metric") if getattr(self, n) is not None]

    @property
    def functions(self) -> tuple[Function | None, Metric | Function | None]:
        """Loss and metric."""
        return self.loss, self.metric

    def module(
        self,
        in_shape: tuple[int, ...],
        n_classes: int,
        seed: int | np.random.SeedSequence,
        number: int = 0,
    ) -> nn.Module:
        """Return a new module; the global random state stays as it was.

        Initial model 0 of a module are its present values; others, which algorithms of
        several models ask for, are drawn anew by its layers' ``reset_parameters``.
        """
        assert self.model is not None
        with seeded(seed):
            if isinstance(self.model, nn.Module):
                module = copy.deepcopy(self.model)
                if number:
                    _draw_again(module)
            else:
                module = self._call(self.model, in_shape, n_classes)
        return module.to("cpu")

    @staticmethod
    def _call(
        factory: Callable[..., nn.Module], in_shape: tuple[int, ...], n_classes: int
    ) -> nn.Module:
        facts = {"in_shape": in_shape, "n_classes": n_classes}
        try:
            names = set(inspect.signature(factory).parameters)
        except (TypeError, ValueError):  # some callables of C have none
            names = set()
        try:
            module = factory(**{name: value for name, value in facts.items() if name in names})
        except Exception as error:
            raise ConfigError(
                f"model: calling {describe(factory)} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model must return a torch.nn.Module, got {type(module).__name__} from "
                f"{describe(factory)}"
            )
        return module


def describe(thing: Any) -> str:
    """Return a readable name of a model or a function, for records; it is never looked up."""
    if isinstance(thing, nn.Module):
        thing = type(thing)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{getattr(thing, '__module__', '?')}:{name}"


@contextmanager
def seeded(
    seed: int | np.random.SeedSequence, device: torch.device | None = None
) -> Iterator[None]:
    """Seed torch's global generators inside the block; put their states back after it."""
    if isinstance(seed, np.random.SeedSequence):
        seed = int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1))
    kind = "cuda" if device is None or device.type == "cpu" else device.type
    devices = [] if device is None or device.type == "cpu" else [device.index or 0]
    with torch.random.fork_rng(devices, device_type=kind):
        torch.manual_seed(seed)
        yield


def _restored(payload: bytes) -> Own:
    import cloudpickle

    own = Own.__new__(Own)
    own.__dict__.update(cloudpickle.loads(payload))
    return own


def _draw_again(module: nn.Module) -> None:
    drawn = [layer for layer in module.modules() if hasattr(layer, "reset_parameters")]
    if not drawn:
        raise ConfigError(
            "model must be a function that returns a new module for an algorithm of several "
            "models: no layer of the module given has reset_parameters"
        )
    for layer in drawn:
        layer.reset_parameters()  # type: ignore[operator]
