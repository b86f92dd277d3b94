"""State files: a dict of arrays and plain values in, one ``.npz`` file out, and back.

Files are written atomically and without pickle.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = "cvrcore-state"
_META, _DIGEST = "meta", "sha256"


def save_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write `state` (dicts of arrays and plain values) to a temporary file, then rename it.

    The file holds every array, a JSON skeleton that names them, and a SHA-256 checksum of
    both, which detects a damaged file.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "server.npz")
    ...     save_state(path, {"round": 3, "model": [np.zeros(2)]})
    ...     load_state(path)["round"]
    3
    """
    path = Path(path)
    arrays: dict[str, np.ndarray] = {}
    skeleton = _pack(state, arrays)
    meta = json.dumps({"magic": MAGIC, "state": skeleton}, allow_nan=True).encode()
    entries = {_META: np.frombuffer(meta, dtype=np.uint8), **arrays}
    entries[_DIGEST] = np.frombuffer(_digest(entries), dtype=np.uint8)
    if any(array.dtype.hasobject for array in entries.values()):
        raise TypeError("state must hold arrays of numbers, got one of objects")

    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            # Do not pass allow_pickle: NumPy 2.0 would save the argument as one more array.
            np.savez(file, **entries)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of `save_state`; ValueError names the defect of a bad file.

    The reader does not trust the file: entries must be stored uncompressed, together no
    larger than the file, and an array must have as many bytes as its header says.

    Examples
    --------
    >>> import os, tempfile
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("uniform", n_clients=9, n_select=2, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "selector.npz")
    ...     save_state(path, selector.state_dict())
    ...     twin = type(selector).from_state_dict(load_state(path))
    >>> twin.select().clients.tolist() == selector.select().clients.tolist()
    True
    """
    content = Path(path).read_bytes()
    try:
        entries = _read_entries(content)
        meta = json.loads(entries[_META].tobytes())
        stored = entries.pop(_DIGEST).tobytes()
        whole = meta["magic"] == MAGIC and stored == _digest(entries)
        state: dict[str, Any] = _unpack(meta["state"], entries) if whole else {}
    except Exception as error:  # a damaged archive can raise nearly anything
        raise ValueError(f"{os.fspath(path)!r} is not a readable cvrcore state: {error}") from error
    if not whole:
        raise ValueError(f"{os.fspath(path)!r} is damaged: its checksum does not fit its content")
    if not isinstance(state, dict):
        raise ValueError(f"{os.fspath(path)!r} must hold a table of state, got {state!r:.40}")
    return state


def _read_entries(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its entries must be stored, not packed")
        if sum(member.file_size for member in members) > len(content):
            raise ValueError("its entries must not be larger than the file")
        return {m.filename.removesuffix(".npy"): _read_array(archive.read(m)) for m in members}


#: The header that NumPy writes: a number type, the order, and the shape.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?)*[0-9]{0,18}),?\), \} *\n"
)
_START = b"\x93NUMPY\x01\x00"


def _read_array(data: bytes) -> np.ndarray:
    """Return the array of one ``.npy`` entry; its header must fit its number of bytes."""
    if not data.startswith(_START):
        raise ValueError(f"arrays must be of npy version 1.0, got {data[:8]!r}")
    start = 10 + int.from_bytes(data[8:10], "little")
    header = _HEADER.fullmatch(data, 10, start)
    if header is None:
        raise ValueError(f"arrays must be plain numbers, got {data[10:90]!r}")
    dtype = np.dtype(header[1].decode("ascii"))
    shape = tuple(int(n) for n in header[3].split(b",") if n.strip())
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError(f"an array of {shape} and {dtype} does not fit {len(data) - start} bytes")
    flat = np.frombuffer(bytearray(data[start:]), dtype=dtype)
    return flat.reshape(shape, order="F" if header[2] == b"True" else "C")


def _digest(entries: dict[str, np.ndarray]) -> bytes:
    total = hashlib.sha256()
    for name in sorted(entries):
        array = entries[name]
        total.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.digest()


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, dict):
        return {key: _pack(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_pack(item, arrays) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _unpack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"__array__"}:
            return arrays[value["__array__"]]
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) for item in value]
    return value


def _sync_directory(folder: Path) -> None:
    """Flush the rename to disk, where the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
