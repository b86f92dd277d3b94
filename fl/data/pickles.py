"""Reader of the CIFAR pickles that runs no code of theirs, nor of NumPy's.

A pickle names the callables that rebuild its arrays. Only the four names that an array
needs are known here, and each stands for an inert class below: bytes, a shape and a type
are collected, compared, and only then become an array.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .federation import DataError

DTYPES = ("u1", "i1", "i4", "i8")


class _Dtype:
    """Stands for numpy.dtype; its state (byte order and fields) is checked and dropped."""

    def __init__(self, code: Any = "", *flags: Any) -> None:
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if code not in DTYPES:
            raise DataError(f"pickled arrays must hold one of {', '.join(DTYPES)}, got {code!r}")
        self.dtype = np.dtype(code).newbyteorder("<")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("|", "<", "=", b"|", b"<", b"=") or any(state[2:5]):
            raise DataError("pickled arrays must be little-endian and without fields")


class _Array:
    """Stands for numpy.ndarray and keeps what `array` needs to build one."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, self.fortran, self.data = state
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = kind.dtype

    def array(self) -> NDArray[Any]:
        """Return the array, its size compared with the bytes that came."""
        if not isinstance(self.data, bytes) or min(self.shape, default=0) < 0:
            raise DataError("pickled arrays must come as a shape and bytes")
        expected = math.prod(self.shape) * self.dtype.itemsize
        if expected != len(self.data):
            raise DataError(
                f"pickled array of shape {self.shape} must have {expected} bytes, "
                f"got {len(self.data)}"
            )
        flat: NDArray[Any] = np.frombuffer(self.data, dtype=self.dtype)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise DataError(f"pickled bytes must be latin1, got {encoding!r}")
    return text.encode("latin1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise DataError(f"a pickle must name only NumPy arrays, got {module}.{name}") from None


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """Unpickle a dictionary of arrays, lists and byte strings.

    Parameters
    ----------
    data : bytes
    where : str
        Named by errors.

    Returns
    -------
    batch : dict of str
        Arrays as ndarray; everything else as it was pickled.

    Raises
    ------
    DataError
        If the pickle names anything but arrays, is damaged, or is not a dictionary.
    """
    try:
        _check_memo(data)
        batch = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(batch, dict):
            raise DataError(f"a pickle must hold a dictionary, got {type(batch).__name__}")
        return {
            key.decode("ascii") if isinstance(key, bytes) else str(key): (
                value.array() if isinstance(value, _Array) else value
            )
            for key, value in batch.items()
        }
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except Exception as error:  # damaged bytes can raise nearly anything
        raise DataError(f"{where}: damaged pickle: {type(error).__name__}: {error}") from error


def _check_memo(data: bytes) -> None:
    """Refuse memo indices and lengths beyond the file: the C reader allocates for them."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise DataError(f"a pickle must number at most {len(data)} objects, got {argument}")
