"""The usual research loop: DataLoader over Subset, deepcopy of models, one client at a time.

This module imports neither fl nor cvrcore. `PixelDataset` does the work of torchvision's MNIST
with ToTensor for each sample, without the conversion through PIL; `TensorDataset` is the
fastest form.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset


class PixelDataset(Dataset):
    """Bytes in memory; `__getitem__` scales each item to a float tensor."""

    def __init__(self, pixels, labels):
        self.pixels = torch.from_numpy(pixels)
        self.labels = torch.from_numpy(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.pixels[i].unsqueeze(0).float().div(255), int(self.labels[i])


def tensor_dataset(pixels, labels):
    """All samples converted to float tensors in advance."""
    x = torch.from_numpy(pixels).unsqueeze(1).float().div(255)
    return TensorDataset(x, torch.from_numpy(labels))


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


class ResearchLoop:
    """FedAvg with uniform selection, evaluated on every client each round."""

    def __init__(self, dataset, train, test, lr=0.01, epochs=10, batch_size=100, seed=0):
        self.model = make_mlp(seed)
        self.train = [Subset(dataset, part.tolist()) for part in train]
        self.test = [Subset(dataset, part.tolist()) for part in test]
        self.lr, self.epochs, self.batch_size = lr, epochs, batch_size

    def local_update(self, client):
        model = copy.deepcopy(self.model)
        optimiser = torch.optim.SGD(model.parameters(), lr=self.lr)
        loader = DataLoader(self.train[client], batch_size=self.batch_size, shuffle=True)
        for _ in range(self.epochs):
            for x, y in loader:
                optimiser.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimiser.step()
        return model.state_dict()

    def aggregate(self, clients, states):
        sizes = np.array([len(self.train[k]) for k in clients], dtype=float)
        shares = sizes / sizes.sum()
        mean = copy.deepcopy(states[0])
        for name in mean:
            mean[name] = sum(s * state[name] for s, state in zip(shares, states, strict=True))
        self.model.load_state_dict(mean)

    @torch.no_grad()
    def evaluate(self):
        accuracies = []
        for subset in self.test:
            if len(subset) == 0:
                continue
            hits = 0
            for x, y in DataLoader(subset, batch_size=self.batch_size):
                hits += (self.model(x).argmax(1) == y).sum().item()
            accuracies.append(hits / len(subset))
        return float(np.mean(accuracies))

    def round(self, clients):
        self.aggregate(clients, [self.local_update(k) for k in clients])
        return self.evaluate()
