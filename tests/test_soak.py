"""The long life of `soak.py`, compressed: memory flat, never NaN, always valid selections."""

import sys

import pytest
import soak
from first_policies import FIRST_POLICIES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")
@pytest.mark.parametrize("policy", FIRST_POLICIES)
def test_a_compressed_life_leaves_memory_flat(policy):
    assert soak.soak(policy, rounds=1500, n_clients=40, joining=100, settled=300) < 0.05
