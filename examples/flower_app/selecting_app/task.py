"""Data, model and training: replace this file by your own task.

Softmax regression on the digits of scikit-learn, in NumPy; each of ten clients has two classes.
"""

import functools

import numpy as np
from sklearn.datasets import load_digits

N_CLIENTS, N_CLASSES, N_TRAIN = 10, 10, 1500


@functools.cache
def load_data(client):
    """Return the training images and labels of one client, 0 to 9."""
    x, y = load_digits(return_X_y=True)
    by_class = np.argsort(y[:N_TRAIN], kind="stable")
    shards = np.random.default_rng(0).permutation(2 * N_CLIENTS).reshape(N_CLIENTS, 2)
    parts = np.array_split(by_class, 2 * N_CLIENTS)
    own = np.concatenate([parts[shard] for shard in shards[client % N_CLIENTS]])
    return x[own] / 16.0, y[own]


@functools.cache
def load_test_data():
    """Return the images and labels that no client trains on."""
    x, y = load_digits(return_X_y=True)
    return x[N_TRAIN:] / 16.0, y[N_TRAIN:]


def make_model():
    """Return the first model, by name of array."""
    return {"weight": np.zeros((N_CLASSES, 64)), "bias": np.zeros(N_CLASSES)}


def probabilities(model, x):
    """Return the probability of each class for each image."""
    scores = x @ model["weight"].T + model["bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def loss(model, x, y):
    """Return the mean cross entropy."""
    return float(-np.log(probabilities(model, x)[np.arange(len(y)), y]).mean())


def accuracy(model, x, y):
    """Return the share of images whose likeliest class is right."""
    return float((probabilities(model, x).argmax(axis=1) == y).mean())


def train(model, x, y, steps, rate=0.5):
    """Return the model after `steps` steps of gradient descent."""
    weight, bias = model["weight"].copy(), model["bias"].copy()
    wanted = np.eye(N_CLASSES)[y]
    for _ in range(steps):
        delta = (probabilities({"weight": weight, "bias": bias}, x) - wanted) / len(y)
        weight -= rate * delta.T @ x
        bias -= rate * delta.sum(axis=0)
    return {"weight": weight, "bias": bias}
