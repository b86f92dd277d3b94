"""Official files of MNIST and Fashion-MNIST in, their 60,000 training samples out.

The protocol tests on a part of the training samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .federation import Samples
from .files import Download, Form, Source
from .idx import read_images_and_labels

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
#: The md5 of the unpacked labels, by which loose files of the two data sets are told apart.
_MNIST_LABELS = "a25bea736e30d166cdddb491f175f624"
_FASHION_LABELS = "9018921c3c673c538a1fc5bad174d6f9"


def _downloads(images: str, labels: str, *mirrors: str) -> tuple[Download, ...]:
    """Return the packed files with these md5."""
    return tuple(
        Download(f"{name}.gz", md5, tuple(f"{mirror}{name}.gz" for mirror in mirrors))
        for name, md5 in ((IMAGES, images), (LABELS, labels))
    )


MNIST = Source(
    folder="mnist",
    forms=(
        Form(
            folders=("MNIST/raw",),
            md5={IMAGES: "6bbc9ace898e44ae57da46a324031adb", LABELS: _MNIST_LABELS},
            foreign=frozenset({_FASHION_LABELS}),
        ),
    ),
    downloads=_downloads(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
FASHION_MNIST = Source(
    folder="fashion-mnist",
    forms=(
        Form(
            folders=("FashionMNIST/raw",),
            md5={IMAGES: "f4a8712d7a061bf5bd6d2ca38dc4d50a", LABELS: _FASHION_LABELS},
            foreign=frozenset({_MNIST_LABELS}),
        ),
    ),
    downloads=_downloads(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    places=("/usr/share/datasets",),  # Debian's package dataset-fashion-mnist
)


def read_mnist(files: Mapping[str, Path]) -> Samples:
    """Read the training pair into ``(n, 1, 28, 28)`` pixels and labels 0 .. 9."""
    x, y, md5 = read_images_and_labels(files[IMAGES], files[LABELS], n_classes=10)
    return Samples(x, y, 10, {"form": "idx", "md5": dict(zip((IMAGES, LABELS), md5, strict=True))})
