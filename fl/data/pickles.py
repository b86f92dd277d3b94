"""Reader of the CIFAR pickles that runs no code of theirs, nor of NumPy's.

A pickle names the callables that rebuild its arrays. Only the four names that an array
needs are known here, and each stands for an inert class below: bytes, a shape and a type
are collected, compared, and only then become an array. The whole program is checked before
its first step runs.
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
        _Program(data)  # nothing is built before the whole program is checked
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


_VALUES = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT NONE NEWTRUE NEWFALSE STRING "
    "BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8".split()
)
_TEXT = "text: "  # the kind of a string: what it says may name a global
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PASSED = ("PROTO", "FRAME", "STOP")  # no object


class _Program:
    """A pickle program, run on kinds of objects instead of objects.

    Only the steps that build dicts, lists, tuples and arrays are allowed, each on the kind that
    it is for. BUILD, for example, may set the state of an array or a type that was just made,
    never that of a function.
    """

    def __init__(self, data: bytes) -> None:
        self._limit = len(data)
        self._stack: list[str] = []
        self._memo: dict[int, str] = {}
        for opcode, argument, _ in pickletools.genops(data):
            self._step(opcode.name, argument)

    def _pop(self, *kinds: str) -> str:
        kind = self._stack.pop() if self._stack else "mark"
        if kind == "mark" or (kinds and kind not in kinds):
            raise DataError(f"a pickle must build arrays only, got a step on {kind:.40}")
        return kind

    def _pop_to_mark(self) -> int:
        count = 0
        while self._stack and self._stack[-1] != "mark":
            self._stack.pop()
            count += 1
        if not self._stack:
            raise DataError("a pickle must mark where its lists begin")
        self._stack.pop()
        return count

    def _step(self, name: str, argument: Any) -> None:
        push = self._stack.append
        if name in _VALUES:
            push(_TEXT + argument if isinstance(argument, str) else "value")
        elif name == "MARK":
            push("mark")
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            push(name.removeprefix("EMPTY_").lower())
        elif name in ("DICT", "LIST", "TUPLE"):
            self._pop_to_mark()
            push(name.lower())
        elif name in _TUPLES:
            for _ in range(_TUPLES[name]):
                self._pop()
            push("tuple")
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS"):
            self._fill(name)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._name(name, argument)
        elif name == "REDUCE":
            self._pop("tuple")
            called = self._pop("array function", "dtype class", "encode function")
            push({"array function": "array", "dtype class": "dtype"}.get(called, "value"))
        elif name == "BUILD":
            self._pop("tuple")
            push(self._pop("array", "dtype"))
        elif name == "POP":
            self._pop()
        elif "PUT" in name or name == "MEMOIZE":
            self._remember(len(self._memo) if argument is None else int(argument))
        elif "GET" in name:
            if int(argument) not in self._memo:
                raise DataError(f"a pickle must not read object {argument} before it is made")
            push(self._memo[int(argument)])
        elif name not in _PASSED:
            raise DataError(f"a pickle must build arrays only, got the step {name}")

    def _fill(self, name: str) -> None:
        if name.endswith("S"):
            self._pop_to_mark()
        else:
            for _ in range(2 if name == "SETITEM" else 1):
                self._pop()
        self._stack.append(self._pop("dict" if "ITEM" in name else "list"))

    def _name(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            module, _, called = str(argument).partition(" ")
        else:
            called, module = (self._pop().removeprefix(_TEXT) for _ in range(2))
        if (module, called) not in ALLOWED:
            raise DataError(f"a pickle must name only NumPy arrays, got {module}.{called}")
        kinds = {"_reconstruct": "array function", "dtype": "dtype class"}
        self._stack.append(kinds.get(called, "encode function" if called == "encode" else "class"))

    def _remember(self, index: int) -> None:
        # The C reader allocates for the largest index.
        if not 0 <= index <= self._limit:
            raise DataError(f"a pickle must number at most {self._limit} objects, got {index}")
        if not self._stack or self._stack[-1] == "mark":
            raise DataError("a pickle must number an object, got none")
        self._memo[index] = self._stack[-1]
