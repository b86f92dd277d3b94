"""The history of a run in, pandas tables out."""

from __future__ import annotations

from typing import Any

import numpy as np

from .history import TIMING, History


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "History.to_pandas needs pandas: pip install pandas", name="pandas"
        ) from None
    return pandas


def rounds_table(history: History) -> Any:
    """Return one row per round: metrics, bytes, counts, seconds; lists become their length."""
    rows = []
    for record in history:
        row: dict[str, Any] = {}
        for name, value in record.items():
            if name == TIMING:
                row |= {f"seconds_{part}": spent for part, spent in value.items()}
            elif isinstance(value, list):
                row[name] = len(value)
            else:
                row[name] = value
        rows.append(row)
    return _pandas().DataFrame(rows).set_index("round") if rows else _pandas().DataFrame()


def clients_table(history: History) -> Any:
    """Return one row per round and picked client: size, whether it reported, its loss."""
    rows = []
    for record in history:
        picked = record.get("picked", [])
        sizes = record.get("sizes", [None] * len(picked))
        reported = record.get("reported", [])
        losses = dict(zip(reported, record.get("losses", []), strict=False))
        for client, size in zip(picked, sizes, strict=True):
            rows.append(
                {
                    "round": record["round"],
                    "client": client,
                    "size": size,
                    "reported": client in reported,
                    "loss": losses.get(client, np.nan),
                    "warmup": record.get("warmup", False),
                }
            )
    columns = ["round", "client", "size", "reported", "loss", "warmup"]
    return _pandas().DataFrame(rows, columns=columns).set_index(["round", "client"])
