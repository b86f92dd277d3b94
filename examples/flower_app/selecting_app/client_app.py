"""The client: trains on its own data, and tells the server what policies need to know."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cvrcore.integrations.flower_client import partition_id, report_loss, selectable

from . import task

app = ClientApp()


@app.train()
def on_train(message, context):
    """Train the model that was received."""
    x, y = task.load_data(partition_id(context))
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    trained = task.train(received, x, y, steps=message.content["config"]["local-steps"])
    content = {
        "arrays": ArrayRecord({name: Array(array) for name, array in trained.items()}),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    # Policies that use losses read this one; the others ignore it.
    return report_loss(Message(RecordDict(content), reply_to=message), task.loss(received, x, y))


def own_loss(message, context):
    """Return the loss of the received model, for policies that ask before they select."""
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return task.loss(arrays, *task.load_data(partition_id(context)))


def label_counts(context):
    """Return how many samples of each class the client has: only some policies ask for it."""
    labels = task.load_data(partition_id(context))[1]
    return np.bincount(labels, minlength=task.N_CLASSES).tolist()


selectable(
    app,
    size=lambda context: len(task.load_data(partition_id(context))[1]),
    label_counts=label_counts,
    loss=own_loss,
)
