"""A server round as the published scripts compute it, timed in part and scaled.

Written by us from the description of those scripts, not from their text. Whole models are
PyTorch modules; for each watched coordinate, every client's model and every client's predicted
model is flattened again to read one number: 2 K D times a round. A Python loop over coordinates
computes the score and updates one K x K covariance matrix per coordinate. Coalitions come from
scikit-learn on the normalised rows, and the predictor multiplies whole models by one cosine
per client. Loops over coordinates are timed on a few coordinates and scaled to D; everything
else is timed whole. Where the description leaves a form open, such as the K x K products of
the score and the covariance, the fast form is used.
"""

import copy
import time
import warnings

import numpy as np
import torch
from sklearn.cluster import SpectralClustering
from torch import nn

from bench.machine import mean_time
from bench.rows import Found, Row, part_main
from bench.workloads import Steady

PART = "published"


def make_model():
    """Return the MLP of the MNIST script: 784-200-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def flatten(model):
    """Return all parameters of a model as one vector: a copy of 159,010 numbers."""
    return torch.cat([p.data.view(-1) for p in model.parameters()])


class PublishedRound:
    """One server of the scripts: models of all clients, and C as D matrices."""

    def __init__(self, n_clients, n_features, n_select, seed=0):
        torch.manual_seed(seed)
        start = make_model()
        self.models = []
        for _ in range(n_clients):  # as after warm-up: nearly parallel, all different
            model = copy.deepcopy(start)
            for parameter in model.parameters():
                parameter.data += 0.01 * torch.randn_like(parameter)
            self.models.append(model)
        self.rng = np.random.default_rng(seed)
        last = 2000 + 10
        total = flatten(start).numel()
        chosen = self.rng.choice(last, size=n_features, replace=False)
        self.watched = total - last + np.sort(chosen)
        self.n_select = n_select
        self.alpha = torch.full((n_clients,), 1.0 / n_clients)
        self.cov = [torch.ones(n_clients, n_clients) for _ in range(n_features)]
        self.n_updates = 0

    def rows(self):
        return np.stack([flatten(model)[self.watched].numpy() for model in self.models])

    def cluster(self):
        rows = self.rows()
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spectral = SpectralClustering(self.n_select, affinity="rbf", gamma=1.0, random_state=0)
            return spectral.fit_predict(rows)

    def score(self, coordinates):
        """Add v_k^d over some coordinates."""
        scores = torch.zeros(len(self.models))
        for d in coordinates:
            scores += (self.cov[d] @ self.alpha) ** 2 / torch.diagonal(self.cov[d])
        return scores

    def draw(self, labels, scores):
        picked = []
        for p in range(self.n_select):
            members = np.flatnonzero(labels == p)
            law = torch.softmax(scores[members], dim=0)
            picked.append(int(members[torch.multinomial(law, 1).item()]))
        return picked

    def predict(self, labels, picked):
        """Multiply the representative's whole model by the cosine of the pair."""
        predicted = []
        for k, model in enumerate(self.models):
            other = self.models[picked[labels[k]]]
            mine = flatten(model)[self.watched]
            theirs = flatten(other)[self.watched]
            cosine = mine @ theirs / (mine.norm() * theirs.norm() + 1e-8)
            guess = copy.deepcopy(other)
            for parameter in guess.parameters():
                parameter.data *= cosine
            predicted.append(guess)
        return predicted

    def update(self, coordinates, predicted):
        """Read one number of each model and of each prediction, for each coordinate."""
        rate = 1.0 / (self.n_updates + 2)
        for d in coordinates:
            position = self.watched[d]
            now = torch.stack([flatten(model)[position] for model in self.models])
            guess = torch.stack([flatten(model)[position] for model in predicted])
            residual = now - guess
            self.cov[d] = (1 - rate) * self.cov[d] + rate * torch.outer(residual, residual)


def timed(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def round_time(n_clients, n_features, n_select, n_slice):
    """Return seconds of each part of a round; loops over coordinates are scaled to D."""
    server = PublishedRound(n_clients, n_features, n_select)
    some, scale = range(n_slice), n_features / n_slice
    seconds = {}
    seconds["clustering"], labels = timed(server.cluster)
    taken, scores = timed(lambda: server.score(some))
    seconds["score"] = scale * taken
    picked = server.draw(labels, scores)
    seconds["predictor"], predicted = timed(lambda: server.predict(labels, picked))
    taken, _ = timed(lambda: server.update(some, predicted))
    seconds["covariance"] = scale * taken
    return seconds


def measure(short=False):
    size = (20, 40, 4) if short else (100, 300, 10)
    n_slice = 4 if short else 10
    steady = Steady("flat", *size, n_rounds=40)
    reports = [steady.reports() for _ in range(100)]
    ours = mean_time(lambda: steady.round(reports.pop()), len(reports))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # copies of one small model: more threads are slower
    try:
        seconds = round_time(*size, n_slice)
    finally:
        torch.set_num_threads(threads)
    total = sum(seconds.values())
    label = f"K={size[0]}, D={size[1]}"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in seconds.items())
    note = f"{n_slice} of {size[1]} coordinates timed; {parts}"
    return Found(
        [
            Row(PART, f"{label}: a round as published", total, "s", note=note),
            Row(PART, f"{label}: a round of ours", 1e3 * ours, "ms"),
            Row(PART, f"{label}: as published / ours", total / ours, "x", ">="),
        ]
    )


if __name__ == "__main__":
    part_main(measure, __doc__)
