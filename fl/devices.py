"""The setting ``training.device`` in, torch devices out: where clients train.

`to_device` and `to_host` are the only ways of samples, models and results between main memory
and a device. Everything between them stays on the device, and no step reads a value back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .settings import ConfigError


def resolve(name: str) -> torch.device:
    """Return the device that `name` means on this machine.

    ``"auto"`` is the first CUDA device, else Apple's ``"mps"``, else the CPU.

    Raises
    ------
    ConfigError
        For a name that torch does not know and a device that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"training.device must be 'cpu', 'cuda', 'cuda:N', 'mps' or 'auto', got {name!r}"
        ) from None
    if device.type == "cuda":
        _refuse_missing(name, device, torch.cuda.device_count())
        return torch.device("cuda", device.index or 0)
    if device.type == "mps":
        _refuse_missing(name, device, int(_has_mps()))
    elif device.type != "cpu":
        raise ConfigError(
            f"training.device must be 'cpu', 'cuda', 'cuda:N', 'mps' or 'auto', got {name!r}"
        )
    return device


def devices_of(name: str) -> list[str]:
    """Return the names of all devices that ``training.device`` `name` gives to workers.

    ``"cuda"`` and ``"auto"`` are every CUDA device of this machine, any other name is one.
    """
    device = resolve(name)
    if device.type == "cuda" and name in ("cuda", "auto"):
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [str(device)]


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `values` on `device`; on the CPU they are not copied."""
    return values.to(device)


def to_host(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return `values` as an array in main memory; of the CPU they are not copied."""
    array: np.ndarray[Any, Any] = values.detach().cpu().numpy()
    return array


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def _refuse_missing(name: str, device: torch.device, n_there: int) -> None:
    if (device.index or 0) < n_there:
        return
    there = f"{n_there} of that kind" if n_there else f"no {device.type} device"
    raise ConfigError(
        f"training.device {name!r} is not there: torch {torch.__version__} sees {there}; "
        "use 'cpu' or 'auto'"
    )
