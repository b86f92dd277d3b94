"""Files of the data sets, written by hand, small."""

import gzip
import io
import lzma
import struct
import tarfile

import numpy as np

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def no_network(url, **_):
    raise OSError(f"no route to {url}")


def idx_bytes(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_mnist(folder, n=20, packing=""):
    folder.mkdir(parents=True, exist_ok=True)
    x = np.arange(n * 4).reshape(n, 2, 2) % 256
    y = np.arange(n) % 10
    for name, array in ((IMAGES, x), (LABELS, y)):
        (folder / (name + packing)).write_bytes(PACK[packing](idx_bytes(array)))
    return x, y


def cifar_pixels(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def cifar_archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def cifar10_records(n=4):
    """Five binary batches; image i of batch b has the label (b + i) % 10."""
    batches = {}
    for b in range(1, 6):
        pixels = cifar_pixels(n, seed=b)
        labels = [(b + i) % 10 for i in range(n)]
        batches[f"data_batch_{b}.bin"] = b"".join(
            bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
        )
    return batches
