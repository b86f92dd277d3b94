"""What is in Flower's messages: addresses, arrays, metrics, and whether they are sound."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message

from .flower_grid import reason


def addressed(messages: list[Message], nodes: list[int]) -> list[Message]:
    """Return one message to each of `nodes`, in order.

    A strategy that writes to fewer has its first message sent to the others too.
    """
    if not messages:
        raise ValueError("strategy must write at least one message to train, got none")
    written = {message.metadata.dst_node_id: message for message in messages}
    return [written.get(node) or _copied(messages[0], node) for node in nodes]


def _copied(message: Message, node: int) -> Message:
    data = message.metadata
    return Message(message.content, node, data.message_type, ttl=data.ttl, group_id=data.group_id)


def arrays_of(record: ArrayRecord) -> dict[str, Any]:
    """Return the arrays of a record by name."""
    return {name: array.numpy() for name, array in record.items()}


def metrics_of(reply: Message) -> dict[str, Any]:
    """Return the first metric record of a reply; an error reply is a ValueError."""
    if reply.has_error():
        raise ValueError(reason(reply))
    return dict(next(iter(reply.content.metric_records.values()), {}))


def check_weight(metrics: Mapping[str, Any], key: str | None) -> None:
    """Refuse metrics by which a weighted mean cannot weigh; None: nothing is weighed."""
    weight = 1.0 if key is None else metrics.get(key)
    if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise ValueError(f"its metric {key!r} must be a positive number, got {weight!r}")


def odd_ones(replies: Mapping[Any, Message]) -> list[Any]:
    """Return those whose metrics have other names than those of most; ties go to the first.

    Flower's strategies refuse to aggregate at all when names differ.
    """
    names = {client: frozenset(metrics_of(reply)) for client, reply in replies.items()}
    if len(set(names.values())) < 2:
        return []
    ((usual, _),) = collections.Counter(names.values()).most_common(1)
    return [client for client, found in names.items() if found != usual]
