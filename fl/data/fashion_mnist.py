"""Fashion-MNIST: MNIST's form and file names, other pictures."""

from __future__ import annotations

from .files import Download, Form, Source
from .mnist import IMAGES, LABELS

MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)

FASHION_MNIST = Source(
    folder="fashion-mnist",
    forms=(
        Form(
            folders=("FashionMNIST/raw",),
            md5={
                IMAGES: "f4a8712d7a061bf5bd6d2ca38dc4d50a",
                LABELS: "9018921c3c673c538a1fc5bad174d6f9",
            },
            foreign=frozenset({"a25bea736e30d166cdddb491f175f624"}),  # MNIST's labels
        ),
    ),
    downloads=tuple(
        Download(name + ".gz", md5, tuple(mirror + name + ".gz" for mirror in MIRRORS))
        for name, md5 in [
            (IMAGES, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (LABELS, "25c81989df183df01b3e8a0aad5dffbe"),
        ]
    ),
    places=("/usr/share/datasets",),  # Debian's package dataset-fashion-mnist
)
