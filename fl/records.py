"""Files of a run folder in, checked records out; the folder may come from somebody else.

Only regular files are read, never symbolic links, devices or pipes, and only up to a size. What
they hold must follow one schema. Every refusal is a `StoreError` that names the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

Record = dict[str, Any]

MAX_BYTES: Final = 1 << 28  # of one file
MAX_CLIENTS: Final = 10_000_000
_DEPTH: Final = 8  # of tables and lists in each other
#: Facts that are counts, and the largest that is believed.
_COUNTS: Final = {
    "n_clients": MAX_CLIENTS,
    "n_classes": 2**31,
    "n_features": 2**40,
    "n_parameters": 2**53,
}
#: Entries of a round that are lists of client ids.
CLIENTS: Final = ("picked", "reported", "failed")
#: Entries of a round that are one number each, where they are there.
NUMBERS: Final = (
    "accuracy", "accuracy_weighted", "ari", "available", "covered", "downlink", "entropy", "gap",
    "loss", "memory_bytes", "mse", "mse_weighted", "n_failed", "probe_bytes", "probe_trained",
    "probed", "samples", "selector_bytes", "simulated_clock", "simulated_seconds", "tv_max",
    "tv_mean", "uplink", "warmup", "worst_decile",
)  # fmt: skip


class StoreError(RuntimeError):
    """A run folder that cannot be used; the message says why and what to do."""


def read_regular(path: Path) -> bytes:
    """Return the bytes of a regular file; StoreError for anything else, OSError if unreadable."""
    # Not blocking: opening a pipe would wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if path.is_symlink():
        raise StoreError(f"{path} must be a regular file, got a symbolic link")
    with os.fdopen(os.open(path, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise StoreError(f"{path} must be a regular file")
        if about.st_size > MAX_BYTES:
            raise StoreError(f"{path} must be of {MAX_BYTES} bytes at most, got {about.st_size}")
        return file.read(about.st_size)


def read_json(path: Path) -> Any:
    """Read a JSON file of finite numbers; StoreError if it is damaged."""
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    check_plain(value, str(path))
    return value


def read_rounds(path: Path, facts: Mapping[str, Any]) -> list[Record]:
    """Read ``rounds.jsonl``, one checked record a line; a half-written last line is left out."""
    lines = read_regular(path).split(b"\n")[:-1]
    try:
        records = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: {error}") from None
    metric, n_clients = facts.get("metric"), facts.get("n_clients") or MAX_CLIENTS
    numbers = (*NUMBERS, metric) if isinstance(metric, str) else NUMBERS
    for i, record in enumerate(records, start=1):
        where = f"{path}, line {i}"
        if not isinstance(record, dict):
            raise StoreError(f"{where} must be a table, got {record!r:.40}")
        if type(record.get("round")) is not int or record["round"] != i:
            raise StoreError(
                f"{path.parent} holds a damaged run: line {i} of {path.name} is not round {i}"
            )
        check_plain(record, where)
        _check_round(record, where, numbers, n_clients)
    return records


def check_facts(facts: Any, where: str) -> Record:
    """Return the facts of a run if they follow the schema."""
    if not isinstance(facts, dict):
        raise StoreError(f"{where} must be a table, got {facts!r:.40}")
    for name, most in _COUNTS.items():
        if facts.get(name) is not None and not _is_count(facts[name], most):
            raise StoreError(f"{where}: {name} must be in 0..{most}, got {facts[name]!r:.40}")
    if not isinstance(facts.get("data") or {}, dict):
        raise StoreError(f"{where}: data must be a table, got {facts['data']!r:.40}")
    origin = facts.get("origin") or {}
    if not isinstance(origin, dict) or not all(isinstance(v, str) for v in origin.values()):
        raise StoreError(f"{where}: origin must be a table of words, got {origin!r:.40}")
    for name in ("model", "algorithm", "policy", "metric"):
        if not isinstance(facts.get(name) or "", str):
            raise StoreError(f"{where}: {name} must be a name, got {facts[name]!r:.40}")
    return facts


def check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what no honest record holds: NaN, infinite or enormous numbers, deep nesting."""
    if depth > _DEPTH:
        raise StoreError(f"{where} must not be nested deeper than {_DEPTH} levels")
    if isinstance(value, dict):
        for item in value.values():
            check_plain(item, where, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_plain(item, where, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise StoreError(f"{where} must hold finite numbers, got {value}")
    elif type(value) is int and abs(value) >= 2**63:
        raise StoreError(f"{where} must hold numbers below 2**63, got {str(value)[:20]}...")


def _check_round(record: Record, where: str, numbers: tuple[str, ...], n_clients: int) -> None:
    for name in CLIENTS:
        ids = record.get(name, [])
        if not isinstance(ids, list) or not all(_is_count(k, n_clients - 1) for k in ids):
            raise StoreError(f"{where}: {name} must be ids in 0..{n_clients - 1}, got {ids!r:.60}")
    sizes = record.get("sizes", [])
    if not isinstance(sizes, list) or not all(_is_count(n, 2**53) for n in sizes):
        raise StoreError(f"{where}: sizes must be counts of samples, got {sizes!r:.60}")
    sizes = record.get("coalition_sizes", [])
    if not isinstance(sizes, list) or not all(_is_count(n, n_clients) for n in sizes):
        raise StoreError(f"{where}: coalition_sizes must be counts of clients, got {sizes!r:.60}")
    timing = record.get("timing", {})
    if not isinstance(timing, dict) or not all(_is_number(v) for v in timing.values()):
        raise StoreError(f"{where}: timing must be a table of seconds, got {timing!r:.60}")
    for name in numbers:
        if record.get(name) is not None and not _is_number(record[name]):
            raise StoreError(f"{where}: {name} must be a number, got {record[name]!r:.60}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
