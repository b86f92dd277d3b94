"""Row store: one update per row in, the same rows out, from memory or a memory-mapped file."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..runtime.journal import Journal
from ..validation import Float, Mask, check_choice, check_count, check_shape, check_stored

DTYPES: Final = ("float32", "bfloat16")
#: Bytes above which rows go to a file.
LIMIT: Final = 2**31
_FILE: Final = "memory.rows"


def to_bfloat16(values: Float) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even.

    Examples
    --------
    >>> from_bfloat16(to_bfloat16(np.array([1.0, -2.5, 0.1], dtype=np.float32)))
    array([ 1.        , -2.5       ,  0.10009766], dtype=float32)
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounding = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(halves: NDArray[np.uint16]) -> Float:
    """Return the float32 numbers that `to_bfloat16` kept."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


class _TemporaryFolder:
    """A temporary folder that is removed when this object is garbage-collected."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="cvrcore-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class RowStore:
    """A growing matrix whose rows are written and read one at a time.

    In a file every row has two copies (double buffering). A row changed since the last `state`
    is written to the other copy, so that the rows which that state refers to survive a kill at
    any moment; checksums detect a file that does not match its state.

    Parameters
    ----------
    dtype : {"float32", "bfloat16"}
        Storage format; bfloat16 has half the bytes and eight bits of mantissa.
    limit : int
        Bytes up to which rows stay in memory.
    folder : path, optional
        Folder of the file, created when needed. Default: a temporary one, removed with the
        store; a state then contains the rows. With a given folder the state only refers to
        the file.
    """

    def __init__(
        self,
        dtype: str = "float32",
        limit: int = LIMIT,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.dtype = check_choice(dtype, "dtype", DTYPES)
        self.limit = check_count(limit, "limit", minimum=0)
        self.folder = None if folder is None else Path(folder)
        self._temporary: _TemporaryFolder | None = None
        self._journal: Journal | None = None  # of the last verb
        self._file: np.memmap[Any, Any] | None = None
        self._reset(0, 0)

    def _reset(self, n_rows: int, n_columns: int) -> None:
        self.n_rows, self.n_columns = n_rows, n_columns
        self.known: Mask = np.zeros(n_rows, dtype=bool)  # rows that were written
        self._copy = np.zeros(n_rows, dtype=np.int64)  # the current copy in a file, 0 or 1
        self._changed = np.zeros(n_rows, dtype=bool)  # written since the last state
        self._checksum = np.zeros(n_rows, dtype=np.int64)
        self._rows = self._allocate(n_rows)  # (copies, n_rows, n_columns)

    def enlist(self, journal: Journal) -> None:
        """Note everything that a verb may change; later each row that is overwritten."""
        journal.attributes(self, ("_rows", "_file"))
        self._journal = journal

    # -- reading and writing ------------------------------------------------------

    @property
    def kind(self) -> Any:
        """NumPy's type of the stored numbers."""
        return np.float32 if self.dtype == "float32" else np.uint16

    @property
    def on_disk(self) -> bool:
        """Whether rows are kept in a file."""
        return self._bytes(self.n_rows) > self.limit

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that were written."""
        return self._bytes(int(np.count_nonzero(self.known)))

    def _bytes(self, n_rows: int) -> int:
        return n_rows * self.n_columns * np.dtype(self.kind).itemsize

    def fit(self, n_rows: int, n_columns: int) -> None:
        """Grow to so many rows; old rows are kept.

        Raises
        ------
        ValueError
            If rows were written and have another length.
        """
        if n_columns != self.n_columns:
            if self.known.any():
                raise ValueError(
                    f"updates must have {self.n_columns} numbers, as those remembered, "
                    f"got {n_columns}"
                )
            self._reset(n_rows, n_columns)
        elif n_rows > self.n_rows:
            old, on_disk, added = self._rows, self.on_disk, n_rows - self.n_rows
            self.n_rows = n_rows
            self._rows = self._allocate(n_rows)  # the content of a file is kept
            for name in ("known", "_copy", "_changed", "_checksum"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros(added, array.dtype)]))
            if not on_disk:
                for row in np.flatnonzero(self.known):
                    self._rows[0, row] = old[0, row]
                    self._checksum[row] = zlib.crc32(old[0, row].data) if self.on_disk else 0

    def read(self, row: int) -> Float:
        """Return one row as float32; it may be a view, valid until the row is written."""
        stored = self._rows[self._copy[row], row]
        return stored if self.dtype == "float32" else from_bfloat16(stored)

    def write(self, row: int, values: Float) -> Float:
        """Write one row and return it as `read` will."""
        stored: NDArray[Any] = (
            values.astype(np.float32) if self.dtype == "float32" else to_bfloat16(values)
        )
        if self.on_disk and self.known[row] and not self._changed[row]:
            self._copy[row] = 1 - self._copy[row]
        if self._journal is not None and not self._journal.closed and self.known[row]:
            self._journal.array(self._rows[self._copy[row], row])
        self._rows[self._copy[row], row] = stored
        self.known[row] = self._changed[row] = True
        if self.on_disk:
            self._checksum[row] = zlib.crc32(stored.data)
        return stored if self.dtype == "float32" else from_bfloat16(stored)

    def erase(self, row: int) -> None:
        """Overwrite all copies of one row by zeros, on disk too; it counts as not written."""
        if self._journal is not None and not self._journal.closed:
            self._journal.array(self._rows[:, row])
        self._rows[:, row] = 0
        self.known[row] = self._changed[row] = False
        self._copy[row] = self._checksum[row] = 0
        if self._file is not None:
            self._file.flush()

    def _allocate(self, n_rows: int) -> NDArray[Any]:
        """Return an array (copies, n_rows, n_columns); untouched pages use no memory."""
        self._file = None
        if self._bytes(n_rows) <= self.limit:
            return np.zeros((1, n_rows, self.n_columns), dtype=self.kind)
        folder = self.folder
        if folder is None:
            self._temporary = self._temporary or _TemporaryFolder()
            folder = self._temporary.path
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _FILE
        wanted = 2 * self._bytes(n_rows)
        with path.open("r+b" if path.exists() else "w+b") as file:
            if file.seek(0, os.SEEK_END) < wanted:
                file.truncate(wanted)
        # Row by row, both copies together, so that more rows only lengthen the file.
        self._file = np.memmap(path, self.kind, "r+", shape=(n_rows, 2, self.n_columns))
        return np.asarray(self._file).transpose(1, 0, 2)

    def _file_holds(self, n_rows: int, n_columns: int) -> bool:
        """Return whether the file in `folder` is as large as so many rows need."""
        if self.folder is None or not (self.folder / _FILE).is_file():
            return False
        wanted = 2 * n_rows * n_columns * np.dtype(self.kind).itemsize
        return (self.folder / _FILE).stat().st_size >= wanted

    # -- state --------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the written rows, or where they are stored, as arrays and plain values."""
        state: dict[str, Any] = {
            "dtype": self.dtype,
            "shape": [self.n_rows, self.n_columns],
            "known": self.known.copy(),
        }
        if not self.on_disk or self.folder is None:
            ids = np.flatnonzero(self.known)
            return {**state, "rows": np.array(self._rows[self._copy[ids], ids])}
        assert self._file is not None
        self._file.flush()
        self._changed[:] = False
        return {
            **state,
            "rows": None,
            "place": self._copy.copy(),
            "checksum": self._checksum.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load what `state` returned.

        Raises
        ------
        ValueError
            If it is of another dtype, or its file is missing or does not match.
        """
        check_choice(state["dtype"], "dtype", (self.dtype,))
        n_rows, n_columns = (check_count(n, "shape", minimum=0) for n in state["shape"])
        other = RowStore(self.dtype, self.limit, self.folder)
        known = check_shape(state["known"], "known", (n_rows,)).astype(bool)
        ids = np.flatnonzero(known)
        named = state["rows"] is None
        if not named:
            check_shape(state["rows"], "rows", (ids.size, n_columns))
        elif not self._file_holds(n_rows, n_columns):
            raise ValueError(
                f"folder must hold the file {_FILE!r} of {n_rows} rows that the state names"
            )
        other._reset(n_rows, n_columns)
        if named:
            if not other.on_disk:
                raise ValueError(
                    f"limit must be below the {other._bytes(n_rows)} bytes that the state keeps "
                    f"in a file, got {self.limit}"
                )
            other._copy = check_stored(state["place"], "place", n_rows, np.int64)
            if not np.isin(other._copy, (0, 1)).all():
                raise ValueError(f"place must be 0 or 1, got {other._copy.max()}")
            other._checksum = check_stored(state["checksum"], "checksum", n_rows, np.int64)
            for row in ids:
                found = zlib.crc32(np.array(other._rows[other._copy[row], row]).data)
                if found != other._checksum[row]:
                    raise ValueError(f"folder must hold the rows of the state: {row} has changed")
        else:
            rows = np.asarray(state["rows"])
            if rows.shape != (ids.size, n_columns) or rows.dtype != self.kind:
                raise ValueError(
                    f"rows must have shape {(ids.size, n_columns)} and type "
                    f"{np.dtype(self.kind)}, got {rows.shape} and {rows.dtype}"
                )
            for row, values in zip(ids, rows, strict=True):
                other._rows[0, row] = values
                other._checksum[row] = zlib.crc32(values.data) if other.on_disk else 0
            other._changed[ids] = True
        other.known = known
        self.__dict__.update(other.__dict__)
