"""Content that a hostile client may send, and how two servers are compared; not a test."""

import math

import numpy as np
from hypothesis import strategies as st

#: Values of any type and size: what a metric, a property or a count may turn out to be.
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(width=64),
    st.sampled_from([0, -1, 1e-9, 1e-320, 2**53, 9e18, 1.7e308, -1.7e308, 10**400, 2**63]),
)
SCALARS = st.one_of(
    NUMBERS,
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.sampled_from(["", "NaN", "1e3", "\ud800", "x" * 100_000, "a\nb"]),
    st.binary(max_size=8),
    st.complex_numbers(),
    st.sampled_from(
        [np.float32(2), np.int8(-3), np.float64("nan"), np.datetime64("now"), np.array(4.0)]
    ),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.lists(st.lists(NUMBERS, max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), SCALARS, max_size=2),
    st.builds(lambda n: [1.0] * n, st.sampled_from([0, 1, 2, 3, 1000])),
    st.builds(lambda n: np.ones(n), st.sampled_from([0, 1, 3, 1000])),
)
#: Label counts: lists of numbers that are wrong in one way, and anything else.
COUNTS = st.one_of(
    st.sampled_from([[0, 0, 0], [1, 2], [1, 2, 3, 4], [-1, 2, 3], [1.0, math.nan, 2.0], ["a"] * 3]),
    st.lists(NUMBERS, min_size=2, max_size=4),
    VALUES,
)
DTYPES = (
    "f2 f4 f8 g c8 c16 ? i1 i8 u1 u8 U1 S3 V5 M8[s] m8[s] f8,i4 >f8 >i4".split()  # fmt: skip
)


@st.composite
def arrays(draw, shape):
    """Return an array that may have any dtype, any shape near `shape`, and any content."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    odd = [(), (0,), shape[:-1], (*shape, 1), (math.prod(shape),), (70_000,)]
    shape = draw(st.one_of(st.just(shape), st.just(shape), st.sampled_from(odd)))
    found = np.zeros(shape, dtype)
    if dtype.kind in "fc":
        with np.errstate(over="ignore"):
            found[...] = draw(st.sampled_from([0.5, np.nan, np.inf, -1e30, 1e200, 6e4, 1e-40]))
    elif dtype.kind in "iu":
        found[...] = draw(st.sampled_from([0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min]))
    elif dtype.kind == "?":
        found[...] = True
    return found


@st.composite
def models(draw, shapes, others):
    """Return named arrays, most often with one of them odd, and how: "odd", "other", "missing".

    `others` draws what takes the place of an array in the second way.
    """
    found = {name: np.full(shape, 0.5) for name, shape in shapes.items()}
    names = list(shapes)
    for name in draw(st.one_of(st.sampled_from([[one] for one in names]), st.just(names))):
        how = draw(st.sampled_from(["odd", "odd", "other", "missing"]))
        if how == "missing":
            del found[name]
        else:
            found[name] = draw(arrays(shapes[name]) if how == "odd" else others)
    if draw(st.sampled_from([False, False, False, True])):
        found[draw(st.text(max_size=5))] = np.ones(2)
    return found


def stranger(ids, honest):
    """The id under which the hostile client was registered, which it may have chosen; or None."""
    return next((id for id in ids.ids(np.arange(len(ids))) if id not in honest), None)


def same(ours, theirs):
    """Whether two states are the same to the bit."""
    if isinstance(ours, dict):
        return (
            isinstance(theirs, dict)
            and ours.keys() == theirs.keys()
            and all(same(value, theirs[key]) for key, value in ours.items())
        )
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, np.ndarray):
        return (
            ours.dtype == theirs.dtype
            and ours.shape == theirs.shape
            and ours.tobytes() == theirs.tobytes()
        )
    return type(ours) is type(theirs) and (ours == theirs or ours != ours)


def is_loss(value):
    """Whether a probe's answer counts: written anew, not by the code under test."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if isinstance(value, np.ndarray):
        real = value.ndim == 0 and value.dtype.kind in "iuf"
    try:
        return bool(real and math.isfinite(value))
    except OverflowError:
        return False
