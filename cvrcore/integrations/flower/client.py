"""The client's side: a ClientApp in, its id, size, loss and watched coordinates out.

Import this in the file of the ``ClientApp``; it loads neither the server's modules nor torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ...features import FeatureMap
from ...head import HeadMap, watched_map

#: Name of cvrcore's record in a message, and of its two queries.
RECORD = "cvrcore"
HELLO, LOSS = "cvrcore_hello", "cvrcore_loss"


def selectable(
    app: ClientApp,
    size: Callable[[Context], int],
    *,
    identity: Callable[[Context], str | int] | None = None,
    label_counts: Callable[[Context], Sequence[int]] | None = None,
    loss: Callable[[Message, Context], float] | None = None,
) -> None:
    """Register the queries of `SelectingStrategy` with a ClientApp.

    Parameters
    ----------
    app : ClientApp
    size : callable
        Returns the client's number of training samples.
    identity : callable, optional
        Returns the client's permanent id. Default: the node's ``partition-id``, which a
        simulation sets and a deployment may (``--node-config "partition-id=3"``).
    label_counts : callable, optional
        Returns its number of samples of each class, for policies that need them.
    loss : callable, optional
        Returns the mean loss of the model in the message over the client's *training*
        samples, for policies that probe.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> selectable(app, size=lambda context: 120)  # yours: the client's number of samples
    """

    @app.query(HELLO)
    def hello(message: Message, context: Context) -> Message:
        info: dict[str, Any] = {"id": (identity or partition_id)(context)}
        info["num-examples"] = int(size(context))
        if label_counts is not None:
            info["label-counts"] = [int(n) for n in label_counts(context)]
        return Message(RecordDict({RECORD: ConfigRecord(info)}), reply_to=message)

    if loss is None:
        return

    @app.query(LOSS)
    def current_loss(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"loss": float(loss(message, context))})
        return Message(RecordDict({RECORD: metrics}), reply_to=message)


def partition_id(context: Context) -> str | int:
    """Return the node's ``partition-id``.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> partition_id(SimpleNamespace(node_config={"partition-id": 3}))
    3
    """
    if "partition-id" not in context.node_config:
        raise ValueError(
            "node_config must hold 'partition-id': set it, or give selectable() an identity"
        )
    return context.node_config["partition-id"]


def report_loss(reply: Message, loss: float) -> Message:
    """Add to a training reply the loss that the policy needs, and return the reply.

    The loss is that of the model *received*, over the training samples; `wanted_loss` says
    whether its mean or its root mean square. The server removes it before aggregation.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from flwr.app import RecordDict
    >>> reply = SimpleNamespace(content=RecordDict())  # yours: a Message of flwr
    >>> report_loss(reply, 0.7) is reply
    True
    """
    _record(reply)["loss"] = float(loss)
    return reply


def wanted_loss(message: Message) -> str | None:
    """Return the loss that the server needs with the reply: None, "mean" or "rms".

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from flwr.app import RecordDict
    >>> message = SimpleNamespace(content=RecordDict())  # a Message of a server that wants no loss
    >>> wanted_loss(message) is None
    True
    """
    asked = message.content.config_records.get(RECORD, {})
    return str(asked["loss"]) if "loss" in asked else None


class Reveal:
    """A Flower mod that sends the watched coordinates to the selector, and nothing else.

    The full update may then go into secure aggregation: put this mod *after* the mod that
    masks, ``ClientApp(mods=[masking_mod, Reveal()])``, so that it reads the unmasked update.
    The server names the coordinates that it watches. The client refuses more than
    `max_features` of them, and any later change of the set: several different sets would
    add up to the whole update.

    Parameters
    ----------
    max_features : int, default=300

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from cvrcore.integrations.flower import Reveal
    >>> app = ClientApp(mods=[Reveal(max_features=100)])
    >>> callable(app)
    True
    """

    def __init__(self, max_features: int = 300) -> None:
        self.max_features = max_features

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Train, then add the watched coordinates to the reply, and the norm if it is asked for."""
        reply = call_next(message, context)
        asked = message.content.config_records.get(RECORD, {})
        if "features" not in asked or reply.has_error():
            return reply
        features = self._agreed(str(asked["features"]), context)
        model = _model(reply)
        if isinstance(features, HeadMap):
            row = features.updates([model], _model(message))[0]
        else:
            row = features.extract(model)
        record = _record(reply)
        record["features"] = row.astype(np.float64).tolist()
        if asked.get("norm"):
            record["norm"] = _update_norm(model, message)
        return reply

    def _agreed(self, text: str, context: Context) -> FeatureMap | HeadMap:
        """Return the coordinates to reveal; refuse too many, and another set than before."""
        kept = context.state.config_records.get(RECORD)
        if kept is not None and kept["features"] != text:
            raise ValueError("the server must watch the same coordinates in every round")
        features = read_features(text)
        if features.n_features > self.max_features:
            raise ValueError(
                f"the server may watch at most {self.max_features} coordinates, "
                f"got {features.n_features}"
            )
        context.state[RECORD] = ConfigRecord({"features": text})
        return features


def write_features(features: FeatureMap | HeadMap) -> str:
    """Return a set of watched coordinates as text, for a message."""
    state = features.state_dict()
    if isinstance(state.get("index"), np.ndarray):
        state["index"] = state["index"].tolist()
    return json.dumps(state)


def read_features(text: str) -> FeatureMap | HeadMap:
    """Read what `write_features` wrote."""
    return watched_map(json.loads(text))


def _model(message: Message) -> dict[str, Any]:
    """Return the arrays of a message or a reply by name."""
    arrays = next(iter(message.content.array_records.values()))
    return {name: array.numpy() for name, array in arrays.items()}


def _update_norm(model: dict[str, Any], message: Message) -> float:
    """Return the norm of the difference of a model from the one in the message."""
    received = next(iter(message.content.array_records.values()))
    changes = [
        np.subtract(model[name], array.numpy(), dtype=np.float64).ravel()
        for name, array in received.items()
    ]
    return float(np.sqrt(sum(float(change @ change) for change in changes)))


def _record(reply: Message) -> MetricRecord:
    """Return cvrcore's record of a reply, added if it is missing."""
    if RECORD not in reply.content:
        reply.content[RECORD] = MetricRecord()
    return reply.content.metric_records[RECORD]
