"""Damaged bytes for fuzz tests, and how many of them; not a test.

A few seconds' worth in the suite; ``make fuzz`` sets ``CVRCORE_FUZZ`` to a multiple.
"""

import contextlib
import os
import tracemalloc

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EFFORT = int(os.environ.get("CVRCORE_FUZZ", "1"))


def fuzz(examples):
    """Return hypothesis settings for `examples` tries, times the effort."""
    return settings(
        max_examples=examples * EFFORT,
        deadline=None,
        derandomize=EFFORT == 1,  # the suite tries the same each time; `make fuzz` looks for more
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw, whole):
    """Return `whole` with bytes changed, cut out, put in, repeated or cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        how = draw(st.sampled_from(["set", "flip", "cut", "insert", "repeat", "end"]))
        if how == "set" and data:
            data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]))
        elif how == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 16))]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif how == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif how == "end":
            del data[at:]
    return bytes(data)


@contextlib.contextmanager
def bounded_memory(n_bytes, slack=16_000_000):
    """Fail if the block allocates much more than a multiple of what it was given."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < slack + 40 * n_bytes, f"{peak} bytes for a file of {n_bytes}"
