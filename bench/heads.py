"""Last layers of simulated clients on real digits: client ids in, trained last layers out.

A small network is first trained briefly on all samples, as after warm-up. Its hidden layer is
then fixed; each client trains the current last layer by a few steps on its own samples, and
the selector sees these last layers.
"""

import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fl.data import load_federation

ROOT = Path(__file__).resolve().parent.parent
N_HIDDEN = 29  # with the bias: 30 x 10 coordinates


def find_federation(n_clients):
    """Return real MNIST if its files are found, else the digits of scikit-learn."""
    for folder in (os.environ.get("CVRCORE_DATA"), ROOT.parent / "shared" / "data"):
        if folder and any(Path(folder, "mnist").glob("train-images*")):
            options = {"n_clients": n_clients, "download": False, "seed": 0}
            return load_federation("mnist", data_dir=str(folder), **options)
    return load_federation("digits", n_clients=min(n_clients, 100), seed=0)


class Heads:
    """Last layers of clients, each trained from the current global last layer."""

    def __init__(self, n_clients=1000, seed=0, steps=8, rate=0.2):
        federation = find_federation(n_clients)
        self.name = federation.name
        self.rng = np.random.default_rng(seed)
        self.steps, self.rate = steps, rate
        pixels = federation.x.reshape(len(federation.x), -1)
        self.features, self.head = self._pretrained(pixels, federation.y, seed)
        self.labels, self.samples = federation.y, federation.train
        self.weights = np.array([len(part) for part in self.samples], dtype=float)
        counts = [np.bincount(federation.y[part], minlength=10) for part in self.samples]
        self.truth = np.array([int(np.argmax(count)) for count in counts])
        self.initial = self.draw(np.arange(len(self.samples)))

    @staticmethod
    def _pretrained(pixels, labels, seed, steps=300):
        """Return hidden features of all samples with a column of ones, and the last layer."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            hidden, last = nn.Linear(pixels.shape[1], N_HIDDEN), nn.Linear(N_HIDDEN, 10)
        x, y = torch.from_numpy(pixels), torch.from_numpy(labels)
        generator = torch.Generator().manual_seed(seed)
        optimiser = torch.optim.SGD([*hidden.parameters(), *last.parameters()], lr=0.1)
        for _ in range(steps):
            batch = torch.randint(len(x), (100,), generator=generator)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(last(torch.relu(hidden(x[batch]))), y[batch])
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            found = torch.relu(hidden(x)).numpy()
            head = torch.cat([last.weight, last.bias[:, None]], dim=1).T.numpy()
        return np.hstack([found, np.ones((len(found), 1), np.float32)]), head.astype(np.float64)

    def _train(self, client):
        """Take a few steps of softmax regression on batches of a client's samples."""
        head, own = self.head.copy(), self.samples[client]
        for _ in range(self.steps if len(own) else 0):
            batch = own[self.rng.integers(len(own), size=min(len(own), 20))]
            x, y = self.features[batch], self.labels[batch]
            logits = x @ head
            law = np.exp(logits - logits.max(axis=1, keepdims=True))
            law /= law.sum(axis=1, keepdims=True)
            law[np.arange(len(batch)), y] -= 1.0
            head -= self.rate / len(batch) * (x.T @ law)
        return head.ravel()

    def draw(self, ids):
        return np.stack([self._train(client) for client in ids])

    def learn(self, clients, models):
        """Replace the global last layer by the sample-weighted mean of `models`."""
        shares = self.weights[clients] / self.weights[clients].sum()
        self.head = (shares @ models).reshape(self.head.shape)
