"""What is in Flower's messages: addresses, arrays, metrics, and whether they are sound."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from .flower_grid import reason
from .merging import check_no_noise

logger = logging.getLogger(__name__)


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


def replace_arrays(replies: list[Message], model: Mapping[str, NDArray[Any]]) -> None:
    """Put `model` in place of the arrays of each reply."""
    arrays = {name: Array(np.asarray(array)) for name, array in model.items()}
    for reply in replies:
        (key, *_) = reply.content.array_records
        reply.content[key] = ArrayRecord(arrays)  # its own: FedMedian takes records apart


def check_mergeable(strategy: Strategy, *, private: bool, same_shape: bool) -> None:
    """Refuse settings under which an aggregator of cvrcore cannot merge a round's models."""
    if private:
        raise ValueError(
            "private must be False with an aggregator, which reads whole models: secure "
            "aggregation hides them, got True"
        )
    if not same_shape:
        raise ValueError("same_shape must be True with an aggregator, got False")
    check_no_noise(strategy)


def metrics_of(reply: Message) -> dict[str, Any]:
    """Return the first metric record of a reply; an error reply is a ValueError."""
    if reply.has_error():
        raise ValueError(reason(reply))
    return dict(next(iter(reply.content.metric_records.values()), {}))


def losses_of(replies: Iterable[Message], nodes: Mapping[int, Any], key: str) -> dict[Any, float]:
    """Return the metric `key` of each client; `nodes` says who was asked, and where."""
    losses: dict[Any, float] = {}
    for reply in replies:
        client = nodes.get(reply.metadata.src_node_id)
        try:
            if client is None or client in losses:
                raise ValueError("it was not asked, or answered twice")
            losses[client] = float(metrics_of(reply)[key])
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("node %d told no loss: %r", reply.metadata.src_node_id, error)
    return losses


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
