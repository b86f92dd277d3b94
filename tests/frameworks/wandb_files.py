"""Reads a ``.wandb`` file of an offline run with W&B's own messages; not a test.

The file is a LevelDB log (blocks of 32 KiB; fragments of CRC, length, kind) of protobuf records.
W&B reads it in its compiled core alone, so the fragments are put together here.
"""

import json
import struct

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def fragments(data):
    """Yield (kind, bytes) of every fragment; the file begins with a header of 7 bytes."""
    assert data[:4] == b":W&B"
    at = HEADER
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        yield kind, data[at + HEADER : at + HEADER + size]
        at += HEADER + size


def records(path):
    """Return every record of the file, parsed."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, parts = [], b""
    for kind, piece in fragments(path.read_bytes()):
        if kind not in (FULL, FIRST, MIDDLE, LAST):
            break
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            found.append(record)
    return found


def history(path):
    """Return the logged values of each step, by name; W&B cuts tables into nested keys."""
    steps = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            row = {}
            for item in record.history.item:
                *outer, last = list(item.nested_key) or [item.key]
                place = row
                for name in outer:
                    place = place.setdefault(name, {})
                place[last] = json.loads(item.value_json)
            steps.setdefault(record.history.step.num, {}).update(row)
    return steps
