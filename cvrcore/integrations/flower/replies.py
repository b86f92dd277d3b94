"""Training replies of Flower in, their models and metrics out, or why they are invalid."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from ..aggregation import check_no_noise
from ..clients import Reply
from ..options import Reports
from ..untrusted import (
    MAX_COUNT,
    Layer,
    UsualForm,
    as_number,
    as_sent,
    brief,
    check_layers,
    metric_form,
)
from .client import RECORD
from .grid import error_text

logger = logging.getLogger(__name__)

#: Bytes that the encoding of an array may take beside its numbers.
MAX_HEADER = 65536


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
    if key is None:
        return
    weight = as_number(metrics.get(key), f"its metric {key!r}", minimum=0.0, maximum=MAX_COUNT)
    if weight <= 0:
        raise ValueError(f"its metric {key!r} must be a positive number, got {weight:g}")


def form_of(reply: Message) -> Hashable:
    """Return names of records, arrays and metrics, and whether a metric is a number or a list.

    Flower's strategies refuse to aggregate at all where these differ between replies. Config
    records are not aggregated.
    """
    arrays = {name: frozenset(record) for name, record in reply.content.array_records.items()}
    for record in reply.content.metric_records.values():
        for value in record.values():
            for one in value if isinstance(value, list) else [value]:
                if not isinstance(one, (int, float)):  # a record of Flower holds nothing else
                    raise ValueError(f"its metrics must be numbers, got {type(one).__name__}")
    metrics = {name: metric_form(one) for name, one in reply.content.metric_records.items()}
    return frozenset(arrays.items()), frozenset(metrics.items())


def decode(record: ArrayRecord, layers: Mapping[str, Layer] | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a record that a client sent, none far larger than what was sent."""
    for name, array in record.items():
        layer = None if layers is None else layers.get(name)
        if layer is not None:
            n_bytes, most = len(array.data), 16 * math.prod(layer.shape) + MAX_HEADER
            if n_bytes > most:
                raise ValueError(
                    f"its array {name!r} must have at most {most} bytes, got {n_bytes}"
                )
    return arrays_of(record)


def read_training_reply(
    message: Message,
    layers: Mapping[str, Layer],
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
        Its arrays are brought to the precision that was sent.
    layers : mapping
        Shapes and dtypes of the arrays that were sent, by name.
    reports : Reports
    weight_key : str or None
        The metric by which the strategy weights clients.
    seconds : float or None
        How long the reply took by the server's clock, where the policy is told.
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
    model = decode(records[0], layers if reports.same_shape else None)
    if reports.same_shape:
        check_layers(model, layers)
    metrics = metrics_of(message)
    check_weight(metrics, weight_key)
    if private and "features" not in ours:
        raise ValueError("it did not reveal its watched coordinates: add the mod Reveal")
    if reports.same_shape and not private:
        for name, array in model.items():
            if (precise := as_sent(array, layers[name])) is not array:
                model[name], records[0][name] = precise, Array(precise)
    named = None if reports.loss_key is None else metrics.get(reports.loss_key)
    return Reply(
        model=model,
        watched=ours["features"] if private else None,
        loss=ours.get("loss", named),
        seconds=seconds,
        norm=ours.get("norm") if private else None,
    )


def sort_replies(
    replies: Iterable[Message],
    asked: Mapping[int, Any],
    read: Callable[[Message], Reply],
    order: Callable[[Any], int],
    usual: UsualForm,
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
    usual : UsualForm
        The form of records and metrics in earlier rounds.
    """
    valid: dict[Any, Message] = {}
    held: dict[Any, Reply] = {}
    forms: dict[Any, Hashable] = {}
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
                forms[client] = form_of(message)
                valid[client] = message
            except Exception as error:  # no content of a reply may end the run
                held.pop(client, None)
                failed[client] = brief(error)
    for client in usual.odd_ones({client: forms[client] for client in sorted(valid, key=order)}):
        del held[client], valid[client]
        failed[client] = "its records or metrics have other names or forms than those of most"
    return valid, held, failed


def sort_evaluations(
    replies: Iterable[Message], asked: Collection[int], weight_key: str | None, usual: UsualForm
) -> list[Message]:
    """Return the replies to an evaluation that the strategy can aggregate, and errors.

    Parameters
    ----------
    replies : iterable of Message
    asked : collection of int
        Nodes that were asked.
    weight_key : str or None
        The metric by which the strategy weights clients.
    usual : UsualForm
        The form of metrics in earlier rounds.
    """
    errors: list[Message] = []
    valid: dict[int, Message] = {}
    forms: dict[int, Hashable] = {}
    for message in replies:
        node = message.metadata.src_node_id
        try:
            if node not in asked or node in valid:
                raise ValueError("it was not asked, or replied twice")
            if message.has_error():
                errors.append(message)
                continue
            metrics = metrics_of(message)
            check_weight(metrics, weight_key if weight_key in metrics else None)
            forms[node] = form_of(message)
            valid[node] = message
        except Exception as error:  # no content of a reply may end the run
            logger.warning("evaluation by node %d is ignored: %s", node, brief(error))
    for node in usual.odd_ones(forms):
        logger.warning("evaluation by node %d is ignored: metrics unlike those of most", node)
        del valid[node]
    return [*valid.values(), *errors]
