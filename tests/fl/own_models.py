"""Models, federations and losses of a caller; not a test."""

import numpy as np
import torch
from torch import nn

from fl.data import Federation


class Net(nn.Module):
    """Not a chain of layers, with BatchNorm and dropout."""

    def __init__(self, n_inputs=8, n_outputs=3, dropout=0.2):
        super().__init__()
        self.first = nn.Linear(n_inputs, 6)
        self.bn = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(6, n_outputs)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.bn(self.first(x.flatten(1))))))


class Tokens(nn.Module):
    def __init__(self, n_tokens=5):
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 4)
        self.gru = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, n_tokens)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x))[0])


def make_net(in_shape, n_classes):
    return Net(int(np.prod(in_shape)), n_classes)


def federation(n_clients=6, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, size=20 * n_clients)
    x = rng.normal(size=(len(y), 8)) + y[:, None]
    return Federation.from_arrays(x, y, clients=np.repeat(np.arange(n_clients), 20), name="mine")


def text(n_clients=5):
    """Cyclic texts, each client's with a step of its own: a GRU can learn them."""
    rows = [(start + step * np.arange(9)) % 5 for step in (1, 2) for start in range(5)] * n_clients
    tokens = np.array(rows)
    return Federation.from_arrays(
        tokens[:, :-1], tokens[:, 1:], partition="iid", n_clients=n_clients, name="text"
    )
