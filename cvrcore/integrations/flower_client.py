"""Earlier import path of `cvrcore.integrations.flower.client`."""

from .flower.client import (
    HELLO,
    LOSS,
    RECORD,
    Reveal,
    partition_id,
    read_features,
    report_loss,
    selectable,
    wanted_loss,
    write_features,
)

__all__ = [
    "HELLO",
    "LOSS",
    "RECORD",
    "Reveal",
    "partition_id",
    "read_features",
    "report_loss",
    "selectable",
    "wanted_loss",
    "write_features",
]
