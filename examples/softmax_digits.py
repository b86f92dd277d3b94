"""Softmax regression on scikit-learn's digits in NumPy: the clients of the examples."""

import functools

import numpy as np

N_CLASSES, N_TRAIN = 10, 1500


@functools.cache
def digits(n_clients):
    """Return images with a column of ones, labels, and each client's indices: two classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = np.hstack([x / 16.0, np.ones((len(x), 1))]).astype(np.float32)
    by_class = np.argsort(y[:N_TRAIN], kind="stable")  # the rest is for testing
    shards = np.random.default_rng(0).permutation(2 * n_clients).reshape(n_clients, 2)
    parts = np.array_split(by_class, 2 * n_clients)
    return x, y, [np.concatenate([parts[a], parts[b]]) for a, b in shards]


def initial_model():
    """Return weights and biases, one row a class."""
    return np.zeros((N_CLASSES, 65), dtype=np.float32)


def probabilities(model, x):
    """Return the softmax of the scores of each image."""
    scores = x @ model.T
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def size(client, n_clients):
    """Return the number of samples of a client."""
    return len(digits(n_clients)[2][client])


def label_counts(client, n_clients):
    """Return the samples of each class that a client has."""
    _, y, parts = digits(n_clients)
    return np.bincount(y[parts[client]], minlength=N_CLASSES).tolist()


def losses(model, client, n_clients):
    """Return the cross entropy of each sample of a client."""
    x, y, parts = digits(n_clients)
    own = parts[client]
    return -np.log(probabilities(model, x[own])[np.arange(len(own)), y[own]])


def loss(model, client, n_clients, statistic="mean"):
    """Return the mean or the root mean square of `losses`."""
    each = losses(model, client, n_clients).astype(np.float64)
    return float(each.mean() if statistic == "mean" else np.sqrt(np.square(each).mean()))


def train(model, client, n_clients, steps=20, rate=0.5):
    """Return the model after gradient descent over a client's samples."""
    x, y, parts = digits(n_clients)
    own = parts[client]
    wanted = np.eye(N_CLASSES, dtype=np.float32)[y[own]]
    model = np.array(model, dtype=np.float32)
    for _ in range(steps):
        model -= np.float32(rate / len(own)) * (probabilities(model, x[own]) - wanted).T @ x[own]
    return model


def accuracy(model, n_clients):
    """Return the share of test images whose class is hit."""
    x, y, _ = digits(n_clients)
    return float((probabilities(model, x[N_TRAIN:]).argmax(axis=1) == y[N_TRAIN:]).mean())
