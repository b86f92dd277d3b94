"""Probes of Flower clients: the current model in, each client's loss of it out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..options import Reports, Waiting
from ..untrusted import as_number, brief
from .client import LOSS
from .grid import exchange
from .replies import metrics_of

logger = logging.getLogger(__name__)

#: Ways to ask for losses: cvrcore's query, or the evaluation of the app itself.
PROBES = ("query", "evaluate")


def probe_content(
    strategy: Strategy, server_round: int, arrays: ArrayRecord, config: ConfigRecord
) -> RecordDict:
    """Return the content of a probe: the model, under the names that the strategy uses."""
    model = getattr(strategy, "arrayrecord_key", "arrays")
    settings = getattr(strategy, "configrecord_key", "config")
    asked = ConfigRecord({**config, "server-round": server_round})
    return RecordDict({model: arrays, settings: asked})


def ask_losses(
    grid: Grid, nodes: Mapping[int, Any], content: RecordDict, reports: Reports, waiting: Waiting
) -> dict[Any, float]:
    """Return the loss of each client that replies in time.

    Parameters
    ----------
    grid : Grid
    nodes : mapping
        Clients to ask, by node.
    content : RecordDict
        What `probe_content` returned.
    reports : Reports
        Its `probe` and `probe_key` say how to ask.
    waiting : Waiting
    """
    kind, key = f"query.{LOSS}", "loss"
    if reports.probe == "evaluate":
        kind, key = "evaluate", reports.probe_key or "eval_loss"
    queries = [Message(content, node, kind) for node in nodes]
    return _losses(exchange(grid, queries, waiting), nodes, key)


def _losses(replies: Iterable[Message], nodes: Mapping[int, Any], key: str) -> dict[Any, float]:
    losses: dict[Any, float] = {}
    why = ""
    for reply in replies:
        client = nodes.get(reply.metadata.src_node_id)
        try:
            if client is None or client in losses:
                raise ValueError("it was not asked, or replied twice")
            losses[client] = as_number(metrics_of(reply)[key], "its loss")
        except Exception as error:  # the roster warns once for all that gave none
            why = why or brief(repr(error))
            logger.debug("node %d gave no loss: %r", reply.metadata.src_node_id, error)
    if why:
        logger.warning("clients gave no loss, one of them because of %s", why)
    return losses
