import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl.data import Federation, load_federation
from fl.experiments.maps import client_order, draw_partition

ROOT = Path(__file__).parents[2]


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": "digits"},  # some clients are empty
        {"dataset": "digits", "partition": "shards", "n_clients": 1, "shards_per_client": 3},
        {"dataset": "digits", "partition": "iid", "n_clients": 12},
        {"dataset": "synthetic", "n_clients": 30},
        {"dataset": "synthetic", "n_clients": 10, "options": {"n_classes": 100}},
        {"dataset": "regression", "options": {"n_groups": 3}},
    ],
)
def test_picture_is_written(tmp_path, arguments):
    path = tmp_path / "clients.png"
    draw_partition(load_federation(**arguments)).savefig(path, dpi=150)
    width, height = png_size(path)
    assert width >= 1000
    assert height >= 400


def test_clients_are_sorted_by_dominant_label():
    y = np.array([1, 1, 1, 0, 0, 0, 1, 0])
    train = tuple(map(np.array, ([0, 1, 3], [4, 5], [2, 6], [7, 3, 2])))
    train = (*train, np.array([], dtype=np.int64))
    federation = Federation("tiny", np.zeros((8, 1), np.float32), y, 2, train, train, {})
    # Client 1 is all label 0, client 3 two thirds; client 2 all label 1, client 0 two
    # thirds; client 4 holds nothing.
    assert client_order(federation).tolist() == [1, 3, 2, 0, 4]


def test_loading_data_leaves_heavy_packages_alone():
    code = (
        "import sys, fl.data, fl.experiments.maps;"
        "heavy = {'matplotlib', 'torch', 'sklearn', 'pooch', 'rich'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)
