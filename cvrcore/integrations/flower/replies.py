"""Training replies of Flower in, their models and metrics out, or why they are invalid."""

from __future__ import annotations

import collections
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from ..aggregation import check_no_noise
from ..clients import Reply
from ..options import Reports
from .client import RECORD
from .grid import error_text

logger = logging.getLogger(__name__)


def addressed(messages: list[Message], nodes: list[int]) -> list[Message]:
    """Return one message to each of `nodes`, in order.

    Where a strategy wrote to fewer nodes, the others get a copy of its first message.
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
    """Replace the arrays of each reply by `model`."""
    arrays = {name: Array(np.asarray(array)) for name, array in model.items()}
    for reply in replies:
        (key, *_) = reply.content.array_records
        reply.content[key] = ArrayRecord(arrays)  # one record each: FedMedian modifies them


def check_mergeable(strategy: Strategy, *, private: bool, same_shape: bool) -> None:
    """Refuse settings under which an aggregator of cvrcore cannot aggregate the models."""
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
        raise ValueError(error_text(reply))
    return dict(next(iter(reply.content.metric_records.values()), {}))


def check_weight(metrics: Mapping[str, Any], key: str | None) -> None:
    """Refuse metrics without a valid weight `key`; None: the strategy does not weight."""
    weight = 1.0 if key is None else metrics.get(key)
    if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
        raise ValueError(f"its metric {key!r} must be a positive number, got {weight!r}")


def odd_ones(replies: Mapping[Any, Message]) -> list[Any]:
    """Return the clients whose metric names differ from the most common ones.

    Flower's strategies refuse to aggregate at all when names differ. Of equally common sets
    of names the first one counts.
    """
    names = {client: frozenset(metrics_of(reply)) for client, reply in replies.items()}
    if len(set(names.values())) < 2:
        return []
    ((usual, _),) = collections.Counter(names.values()).most_common(1)
    return [client for client, found in names.items() if found != usual]


def read_training_reply(
    message: Message,
    shapes: Mapping[str, tuple[int, ...]],
    reports: Reports,
    *,
    weight_key: str | None,
    seconds: float | None,
    private: bool,
) -> Reply:
    """Return what a training reply holds, and remove cvrcore's record from the message.

    Parameters
    ----------
    message : Message
    shapes : mapping
        Shapes of the arrays that were sent, by name.
    reports : Reports
    weight_key : str or None
        The metric by which the strategy weights clients.
    seconds : float or None
        How long the reply took, where the client does not say.
    private : bool
        Whether the watched coordinates come from the mod `Reveal`, and not from the arrays.

    Raises
    ------
    ValueError
        If the reply is an error or invalid.
    """
    if message.has_error():
        raise ValueError(error_text(message))
    ours = dict(message.content.metric_records.get(RECORD, {}))
    if RECORD in message.content:
        del message.content[RECORD]  # a strategy would average it
    records = list(message.content.array_records.values())
    if not records:
        raise ValueError("its reply holds no arrays")
    model = arrays_of(records[0])
    found = {name: array.shape for name, array in model.items()}
    if reports.same_shape and found != shapes:
        raise ValueError(f"its arrays must have shapes {shapes}, got {found}")
    metrics = metrics_of(message)
    check_weight(metrics, weight_key)
    if private and "features" not in ours:
        raise ValueError("it did not reveal its watched coordinates: add the mod Reveal")
    return Reply(
        model=model,
        watched=ours["features"] if private else None,
        loss=ours.get("loss", metrics.get(reports.loss_key)),
        seconds=ours.get("seconds", seconds) if reports.durations else None,
    )


def sort_replies(
    replies: Iterable[Message],
    asked: Mapping[int, Any],
    read: Callable[[Message], Reply],
    order: Callable[[Any], int],
) -> tuple[dict[Any, Message], dict[Any, Reply], dict[Any, str]]:
    """Return valid messages and what they hold, by client, and why the others failed.

    Parameters
    ----------
    replies : iterable of Message
    asked : mapping
        The client of each node that was asked.
    read : callable
        Returns what a message holds; any error it raises fails the client alone.
    order : callable
        Sort key of clients: replies come in any order.
    """
    valid: dict[Any, Message] = {}
    held: dict[Any, Reply] = {}
    failed: dict[Any, str] = {}
    for message in replies:
        node = message.metadata.src_node_id
        client = asked.get(node)
        if node not in asked:
            logger.warning("node %d replied and was not asked: ignored", node)
        elif client in valid or client in failed:
            logger.warning("client %r replied twice: the first counts", client)
        else:
            try:
                held[client] = read(message)
                valid[client] = message
            except Exception as error:  # no content of a reply may end the run
                failed[client] = str(error) or repr(error)
    for client in odd_ones({client: valid[client] for client in sorted(valid, key=order)}):
        del held[client], valid[client]
        failed[client] = "its metrics have other names than those of most"
    return valid, held, failed
