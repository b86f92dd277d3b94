"""A grid without a runtime, and a small federation on it; not a test.

The app and the messages are Flower's own. Nodes have random ids, replies come in random
order, and single nodes can be made to fail, lie, lag or leave.
"""

import random
import time
from types import SimpleNamespace

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from cvrcore.integrations.flower import (
    SelectingStrategy,
    nodes,
    partition_id,
    report_loss,
    selectable,
    wanted_loss,
)

try:  # messages carry who writes them; a runtime would set it
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
except ImportError:  # an older flwr asks for no such thing
    pass

nodes.POLL = 0.02  # these nodes connect at once

N_CLIENTS = 12
SIZES = [20 + 3 * k for k in range(N_CLIENTS + 4)]
INITIAL = {"hidden": np.zeros((4, 3)), "out.weight": np.ones((2, 4)), "out.bias": np.zeros(2)}


def record(model):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def target(k):
    """Where client `k` would take the model: three kinds of clients."""
    rng = np.random.default_rng(k % 3)
    own = np.random.default_rng(100 + k)
    return {
        n: rng.normal(size=a.shape) + 0.1 * own.normal(size=a.shape) for n, a in INITIAL.items()
    }


def trained(model, k):
    goal = target(k)
    return {name: array + 0.3 * (goal[name] - array) for name, array in model.items()}


def loss_of(model, k):
    goal = target(k)
    return float(sum(np.square(model[name] - goal[name]).sum() for name in goal))


def numpy_of(content, name="arrays"):
    return {key: array.numpy() for key, array in content[name].items()}


def make_app(mods=(), change=None, train_mods=(), introduced=True, app=None):
    """Return the app; `change(k, message, reply)` may return another reply of client `k`."""
    app = app or ClientApp(mods=list(mods))

    @app.train(mods=list(train_mods))
    def train(message, context):
        k = partition_id(context)
        received = numpy_of(message.content)
        metrics = MetricRecord({"num-examples": SIZES[k], "train_loss": loss_of(received, k)})
        content = {"arrays": record(trained(received, k)), "metrics": metrics}
        reply = Message(RecordDict(content), reply_to=message)
        if wanted_loss(message):
            report_loss(reply, loss_of(received, k))
        return reply if change is None else change(k, message, reply)

    @app.evaluate()
    def evaluate(message, context):
        k = partition_id(context)
        metrics = {"num-examples": SIZES[k], "eval_loss": loss_of(numpy_of(message.content), k)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    if not introduced:
        return app
    selectable(
        app,
        size=lambda context: SIZES[partition_id(context)],
        label_counts=lambda context: [1 + partition_id(context) % 3, 5, SIZES[0]],
        loss=lambda message, context: loss_of(numpy_of(message.content), partition_id(context)),
    )
    return app


class FakeGrid:
    """Nodes in this process; `nodes` maps node ids to partition ids."""

    def __init__(self, app=None, partitions=range(N_CLIENTS), seed=None):
        self.app = app or make_app()
        self._random = random.Random(seed)
        self.nodes = {}
        self.contexts = {}
        self.delay = {}  # seconds, by partition
        self.dead = set()  # partitions that never reply
        self.broken = set()  # partitions whose app raises
        self.pushed = []
        self.extra = []  # unasked replies, delivered with the next ones
        self._waiting = {}
        for k in partitions:
            self.join(k)

    def join(self, partition):
        node = self._random.getrandbits(62)
        self.nodes[node] = partition
        config = {"partition-id": partition, "num-partitions": N_CLIENTS}
        self.contexts[node] = Context(
            run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={}
        )
        return node

    def leave(self, partition):
        node = next(n for n, k in self.nodes.items() if k == partition)
        del self.nodes[node]
        return node

    def get_node_ids(self):
        return self._random.sample(list(self.nodes), len(self.nodes))

    def get_nodes(self):
        return [
            SimpleNamespace(node_id=n, name=f"node-{k:02d}", public_key=bytes([k] * 4))
            for n, k in self.nodes.items()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            id = f"{self._random.getrandbits(62)}"
            message.metadata.__dict__["_message_id"] = id
            self.pushed.append(message)
            self._waiting[id] = (time.monotonic() + self.delay.get(self.nodes[node], 0), message)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids):
        now, replies = time.monotonic(), []
        for id in self._random.sample(sorted(message_ids), len(message_ids)):
            due, message = self._waiting[id]
            partition = self.nodes[message.metadata.dst_node_id]
            if due <= now and partition not in self.dead:
                replies.append(self._reply(message, partition))
        extra, self.extra = self.extra, []
        return extra + replies

    def _reply(self, message, partition):
        context = self.contexts[message.metadata.dst_node_id]
        try:
            if partition in self.broken and message.metadata.message_type == "train":
                raise RuntimeError("out of memory")
            return self.app(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    def trained(self):
        """Partitions asked to train, in the order of the messages."""
        return [
            self.contexts[m.metadata.dst_node_id].node_config["partition-id"]
            for m in self.pushed
            if m.metadata.message_type == "train"
        ]


def make_strategy(policy="fedcvr-bolt", inner=None, **options):
    if policy == "fedcvr-bolt":
        options.setdefault("warmup", 2)
    if isinstance(policy, str):
        options.setdefault("n_select", 4)
        options.setdefault("seed", 7)
    if "waiting" not in options:
        options.setdefault("wait", 5)
    inner = inner or FedAvg(fraction_evaluate=0.0)
    return SelectingStrategy(inner, policy, **options)


def run(strategy, grid=None, rounds=6, **options):
    return strategy.start(grid or FakeGrid(), record(INITIAL), rounds, timeout=20, **options)


def picks(strategy):
    return [found.selected for found in strategy.rounds]
