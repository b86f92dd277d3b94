"""MNIST: the 60,000 training images; the protocol tests on a part of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .federation import Samples
from .files import Download, Form, Source
from .idx import read_images_and_labels

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

MNIST = Source(
    folder="mnist",
    forms=(
        Form(
            folders=("MNIST/raw",),
            md5={
                IMAGES: "6bbc9ace898e44ae57da46a324031adb",
                LABELS: "a25bea736e30d166cdddb491f175f624",
            },
            foreign=frozenset({"9018921c3c673c538a1fc5bad174d6f9"}),  # Fashion-MNIST's labels
        ),
    ),
    downloads=tuple(
        Download(name + ".gz", md5, tuple(mirror + name + ".gz" for mirror in MIRRORS))
        for name, md5 in [
            (IMAGES, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            (LABELS, "d53e105ee54ea40749a09fcbcd1e9432"),
        ]
    ),
)


def read_mnist(files: Mapping[str, Path]) -> Samples:
    """Read the training pair into ``(n, 1, 28, 28)`` pixels and labels 0 .. 9."""
    x, y, md5 = read_images_and_labels(files[IMAGES], files[LABELS], n_classes=10)
    return Samples(x, y, 10, {"form": "idx", "md5": dict(zip((IMAGES, LABELS), md5, strict=True))})
