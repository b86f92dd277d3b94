"""Train a small ranker of clients on past runs, then select with it: the policy `learned`.

Past runs pick clients uniformly. For each report the server measures on its own samples how far
this one update would lower the loss. A small network learns to predict that, relative to the
other clients of the round, from the features that `LearnedSelector` documents. New runs, with
other clients, pick the best by its prediction, and are compared with uniform selection.

    python examples/learned_digits.py
"""

import argparse
import dataclasses
import warnings

import numpy as np
import scipy.stats
from softmax_digits import N_CLASSES, N_TRAIN, digits, initial_model, probabilities

import cvrcore
from cvrcore.selectors.learned import LearnedSelector

N_CLIENTS, N_SELECT, N_ROUNDS, LAST = 50, 5, 40, 5
N_VALIDATION = 200  # samples of the server, which no client has
FEATURES = ("size", "picks", "age", "known", "loss", "norm")
PAST_SEEDS, NEW_SEEDS = range(20, 28), range(5)


@dataclasses.dataclass
class Federation:
    """Clients of uneven sizes and classes: images and labels of each, by a seed."""

    seed: int

    def __post_init__(self):
        self.x, self.y, _ = digits(10)
        rng = np.random.default_rng([self.seed, 1])
        order = rng.permutation(N_TRAIN)
        self.validation, left = order[:N_VALIDATION], order[N_VALIDATION:]
        owner = np.empty(left.size, dtype=np.int64)
        size = rng.lognormal(0.0, 0.7, N_CLIENTS)
        for label in range(N_CLASSES):
            mine = np.flatnonzero(self.y[left] == label)
            shares = size * rng.dirichlet(np.full(N_CLIENTS, 0.3))
            owner[mine] = rng.choice(N_CLIENTS, mine.size, p=shares / shares.sum())
        self.clients = [left[owner == k] for k in range(N_CLIENTS)]
        self.sizes = np.array([len(own) for own in self.clients], dtype=np.float64)

    def loss(self, model, rows):
        """Return the mean cross entropy over some samples."""
        law = probabilities(model, self.x[rows])
        return float(-np.log(law[np.arange(len(rows)), self.y[rows]] + 1e-12).mean())

    def train(self, model, client, steps=20, rate=0.5):
        """Return the model after gradient descent over a client's samples."""
        x, y = self.x[self.clients[client]], self.y[self.clients[client]]
        wanted = np.eye(N_CLASSES, dtype=np.float32)[y]
        model = model.copy()
        for _ in range(steps):
            model -= np.float32(rate / len(y)) * (probabilities(model, x) - wanted).T @ x
        return model

    def accuracy(self, model):
        """Return the share of test images whose class is hit."""
        law = probabilities(model, self.x[N_TRAIN:])
        return float((law.argmax(axis=1) == self.y[N_TRAIN:]).mean())


def play(federation, selector, n_rounds=N_ROUNDS, watch=None):
    """Run FedAvg; return the test accuracy after each round.

    `watch(clients, model, models)` is called in each round before the policy learns of it.
    """
    model, accuracies = initial_model(), []
    for _ in range(n_rounds):
        clients = selector.select().clients
        models = [federation.train(model, k) for k in clients]
        if watch is not None:
            watch(clients, model, models)
        report = {
            "losses": [federation.loss(model, federation.clients[k]) for k in clients],
            "norms": [np.linalg.norm(new - model) for new in models],
        }
        selector.observe(clients, **{k: report[k] for k in selector.needs & report.keys()})
        model = np.average(models, axis=0, weights=federation.sizes[clients]).astype(np.float32)
        accuracies.append(federation.accuracy(model))
    return np.array(accuracies)


def learned(federation, seed, scorer, explore=0.0):
    """Return a selector that ranks by `scorer`."""
    return LearnedSelector(
        N_CLIENTS,
        N_SELECT,
        federation.sizes,
        seed,
        scorer=scorer,
        features=FEATURES,
        explore=explore,
    )


def past_runs(seeds=PAST_SEEDS, n_rounds=N_ROUNDS):
    """Return features of clients that reported in uniform runs, and how much each one helped."""
    rows, targets = [], []
    for seed in seeds:
        federation = Federation(seed)
        selector = learned(federation, seed, scorer=lambda rows: np.zeros(len(rows)))

        def watch(clients, model, models, federation=federation, selector=selector):
            before = federation.loss(model, federation.validation)
            gains = np.array([before - federation.loss(m, federation.validation) for m in models])
            rows.append(selector.client_features()[clients])
            targets.append((gains - gains.mean()) / (gains.std() + 1e-12))

        play(federation, selector, n_rounds, watch)  # equal scores: ties at random, uniform
    return np.concatenate(rows), np.concatenate(targets)


def fit(rows, targets):
    """Return a scorer: a network with one hidden layer of 16 units."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(
        hidden_layer_sizes=(16,), alpha=1e-2, max_iter=300, early_stopping=True, random_state=0
    )
    model = make_pipeline(StandardScaler(), network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, targets)
    return model.predict


def compare(scorer, seeds=NEW_SEEDS, n_rounds=N_ROUNDS, explore=0.0):
    """Return the accuracy of uniform and learned selection, shape (seeds, 2).

    It is the mean over the last five rounds, with new clients in each seed.
    """
    found = []
    for seed in seeds:
        federation = Federation(seed)
        uniform = cvrcore.make_selector(
            "uniform", N_CLIENTS, N_SELECT, weights=federation.sizes, seed=seed
        )
        policies = (uniform, learned(federation, seed, scorer, explore))
        found.append([play(federation, policy, n_rounds)[-LAST:].mean() for policy in policies])
    return np.array(found)


def paired(found):
    """Return the mean difference of the second column from the first, and its 95 % interval."""
    difference = found[:, 1] - found[:, 0]
    error = difference.std(ddof=1) / len(difference) ** 0.5
    reach = scipy.stats.t.ppf(0.975, len(difference) - 1) * error
    return difference.mean(), difference.mean() - reach, difference.mean() + reach


def main():
    """Train the ranker, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    options = parser.parse_args()
    rows, targets = past_runs(n_rounds=options.rounds)
    scorer = fit(rows, targets)
    explained = np.corrcoef(scorer(rows), targets)[0, 1]
    print(f"{len(rows)} reports of past runs; correlation of the fit {explained:.2f}")
    for explore in (0.0, 0.4):
        found = compare(scorer, n_rounds=options.rounds, explore=explore)
        mean, low, high = 100 * np.array(paired(found))
        uniform, ours = 100 * found.mean(axis=0)
        print(
            f"explore={explore:g}: uniform {uniform:.1f} %, learned {ours:.1f} %, "
            f"difference {mean:+.1f} [{low:+.1f}, {high:+.1f}] points"
        )


if __name__ == "__main__":
    main()
