"""JSON values from outside in, checked records out; a ValueError names what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..guards import Incident
from .records import MAX_CLIENTS, Pick, RoundRecord, Snapshot, clean_name, clean_numbers


def read_record(value: Any) -> RoundRecord:
    """Return the record that `RoundRecord.plain` described."""
    if not isinstance(value, dict):
        raise ValueError(f"a record must be a table, got {value!r:.40}")
    number = _count(value, "round", 2**31)
    n_clients = _count(value, "n_clients", MAX_CLIENTS)
    picks = [_read_pick(one, n_clients) for one in _list(value, "picks")]
    sizes = [_integer(one, "coalition_sizes", n_clients) for one in
             _list(value, "coalition_sizes")]  # fmt: skip
    incidents = [_read_incident(one) for one in _list(value, "incidents")]
    return RoundRecord(
        round=number,
        n_clients=n_clients,
        available=_count(value, "available", n_clients),
        warmup=bool(value.get("warmup", False)),
        picks=picks,
        coalition_sizes=sizes,
        incidents=incidents,
        metrics=clean_numbers(_table(value, "metrics")),
        seconds=clean_numbers(_table(value, "seconds")),
        snapshot=_read_snapshot(value.get("snapshot"), n_clients),
    )


def _integer(value: Any, name: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} must be in 0..{most}, got {value!r:.40}")
    return value


def _count(record: Mapping[str, Any], name: str, most: int) -> int:
    return _integer(record.get(name), name, most)


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
        raise ValueError(f"{name} must be a finite number, got {value!r:.40}")
    return float(value)


def _list(record: Mapping[str, Any], name: str) -> list[Any]:
    value = record.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {value!r:.40}")
    return value


def _table(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a table, got {value!r:.40}")
    return value


def _read_pick(value: Any, n_clients: int) -> Pick:
    if not isinstance(value, dict):
        raise ValueError(f"picks must be tables, got {value!r:.40}")
    coalition = value.get("coalition")
    return Pick(
        _count(value, "client", n_clients - 1),
        clean_name(value.get("name", "")),
        None if coalition is None else _integer(coalition, "coalition", n_clients),
        _number(value.get("score"), "score"),
        _number(value.get("probability"), "probability"),
        bool(value.get("reported", True)),
        clean_name(value.get("reason", "")),
    )


def _read_incident(value: Any) -> Incident:
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"incidents must be lists of 4, got {value!r:.40}")
    round, client, kind, detail = value
    return Incident(
        _integer(round, "round of an incident", 2**31),
        _integer(client, "client of an incident", MAX_CLIENTS),
        clean_name(kind),
        clean_name(detail),
    )


def _read_snapshot(value: Any, n_clients: int) -> Snapshot | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"snapshot must be a table, got {value!r:.40}")
    clients = [_integer(k, "clients of a snapshot", n_clients - 1) for k in _list(value, "clients")]

    def column(name: str) -> list[Any] | None:
        if value.get(name) is None:
            return None
        found = [_number(one, name) for one in _list(value, name)]
        if len(found) != len(clients):
            raise ValueError(f"{name} of a snapshot must have {len(clients)} entries")
        return found

    x, y, labels = column("x"), column("y"), column("coalitions")
    if x is None or y is None or None in x or None in y:
        raise ValueError("a snapshot must have numbers x and y")
    if labels is not None:
        labels = [
            _integer(one, "coalitions of a snapshot", n_clients) for one in value["coalitions"]
        ]
    return Snapshot(clients, x, y, labels, column("scores"), column("probabilities"))
