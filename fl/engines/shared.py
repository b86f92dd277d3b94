"""Samples in, one copy in shared memory out, mapped by every worker process.

The memory is an anonymous file: only its descriptor is passed on, so that no file is left
behind when a process is killed, and no other process can open it.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import torch

from ..samples import TENSORS, ClientSamples

_ALIGN = 64


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """How to find the samples in the shared file: plain values, cheap to send."""

    size: int
    tensors: dict[str, tuple[int, tuple[int, ...], str]]  # offset, shape, dtype
    train_starts: np.ndarray
    test_starts: np.ndarray
    n_classes: int
    task: str


def share(samples: ClientSamples) -> tuple[int, Descriptor, ClientSamples]:
    """Copy `samples` to shared memory.

    Returns the file descriptor of the memory, which the caller closes, how to find the
    samples in it, and the same samples in shared memory.
    """
    offset, tensors = 0, {}
    for name in TENSORS:
        tensor = getattr(samples, name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensors[name] = (offset, tuple(tensor.shape), dtype)
        offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    size = max(offset, _ALIGN)
    starts = samples.train_starts, samples.test_starts
    descriptor = Descriptor(size, tensors, *starts, samples.n_classes, samples.task)
    handle = _anonymous_file(size)
    mapped = attach(handle, descriptor)
    for name in TENSORS:
        getattr(mapped, name).copy_(getattr(samples, name))
    return handle, descriptor, mapped


def attach(handle: int, descriptor: Descriptor) -> ClientSamples:
    """Map the samples that `share` wrote; the mapping lives as long as its tensors."""
    memory = mmap.mmap(handle, descriptor.size)
    tensors: dict[str, Any] = {}
    for name, (offset, shape, dtype) in descriptor.tensors.items():
        count = int(np.prod(shape))
        kind = getattr(torch, dtype)
        tensors[name] = (
            torch.frombuffer(memory, dtype=kind, count=count, offset=offset).reshape(shape)
            if count
            else torch.empty(shape, dtype=kind)
        )
    return ClientSamples(
        **tensors,
        train_starts=descriptor.train_starts,
        test_starts=descriptor.test_starts,
        n_classes=descriptor.n_classes,
        task=descriptor.task,
    )


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("fl-samples")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle
