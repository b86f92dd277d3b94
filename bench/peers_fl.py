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


def make_cnn(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class PflRounds:
    """Local training of pfl's simulation on the same samples, one client after the other."""

    def __init__(self, x, y, train, lr=0.01, epochs=10, batch_size=100):
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.dataset import Dataset
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = make_cnn()

            def forward(self, inputs):
                return self.net(inputs)

            def loss(self, inputs, targets, is_eval=False):
                self.eval() if is_eval else self.train()
                return F.cross_entropy(self(inputs), targets)

            def metrics(self, inputs, targets):
                return {}

        net = Net()
        self.model = PyTorchModel(
            net,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        )
        x, y, self.queue = torch.from_numpy(x), torch.from_numpy(y), []
        parts = [torch.from_numpy(part) for part in train]

        def make_user(k):
            order = parts[k][torch.randperm(len(parts[k]))]
            return Dataset(raw_data=[x[order], y[order]], user_id=str(k))

        users = FederatedDataset(make_user, lambda: self.queue.pop(0))
        self.backend = SimulatedBackend(training_data=users, val_data=None)
        self.params = NNTrainHyperParams(batch_size, epochs, lr)
        self.make = lambda n: (
            FederatedAveraging(),
            NNAlgorithmParams(
                central_num_iterations=1,
                evaluation_frequency=1000,
                train_cohort_size=n,
                val_cohort_size=0,
            ),
        )

    def train(self, clients):
        self.queue += [int(k) for k in clients]
        algorithm, params = self.make(len(clients))
        algorithm.run(params, self.backend, self.model, self.params, None, callbacks=[])

    def close(self):
        pass


class ResearchLoop:
    """FedAvg with uniform selection, evaluated on every client each round."""

    def __init__(
        self, dataset, train, test, lr=0.01, epochs=10, batch_size=100, seed=0, model=None
    ):
        self.model = make_mlp(seed) if model is None else model
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
