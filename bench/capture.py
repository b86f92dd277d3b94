"""Selection capture: the share of picks that colluding attackers get, policy by policy.

``python -m bench.capture`` (``make capture``) takes a few minutes. A hundred clients hold the
digits of scikit-learn, split by a Dirichlet law; FedAvg in NumPy trains a softmax regression.
Ten attackers collude:

sign-flip
    attackers send the global model minus their update, and honest losses;
scaling
    attackers send their update times a thousand, and losses a thousand times too high;
score-seeking
    attackers send losses of a million and distant models, each in its own direction, so that
    every attacker is a coalition of one.

Aggregation drops hostile models, as a perfect robust rule would, so that only the selection is
measured. A uniform draw gives the attackers a share of 1.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import cvrcore

N_CLIENTS, N_SELECT, ROUNDS, SEEDS = 100, 10, 200, 3
ATTACKERS = np.arange(10)
ATTACKS = ("none", "sign-flip", "scaling", "score-seeking")
GUARDS = {"max_norm": "median", "max_loss": "median", "max_share": 1.25}
POLICIES = {
    "uniform": {},
    "power-of-choice": {},
    "active": {},
    "oort": {},
    "fedcbs": {},
    "fedcvr-bolt": {"warmup": 30},
    "fedcvr-bolt, zscore": {"warmup": 30, "score": "zscore"},
}


class Federation:
    """Digits split over clients, and the local training of one client."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        x, y = load_digits(return_X_y=True)
        x = np.hstack([x / 16.0, np.ones((len(x), 1))])
        order = rng.permutation(len(x))
        held, order = order[:300], order[300:]
        self.test = x[held], y[held]
        shares = rng.dirichlet(np.full(N_CLIENTS, 0.3), size=10).cumsum(axis=1)
        parts = [[] for _ in range(N_CLIENTS)]
        for digit in range(10):
            mine = order[y[order] == digit]
            cuts = (shares[digit][:-1] * len(mine)).astype(int)
            for part, ids in zip(parts, np.split(mine, cuts), strict=True):
                part.extend(ids)
        self.data = [(x[part], y[part]) for part in parts]
        self.sizes = np.array([len(part) for part in parts], dtype=float)
        self.counts = np.array([np.bincount(y[part], minlength=10) for part in parts])

    def losses(self, model, k):
        """Return the loss of each sample of client `k`."""
        x, y = self.data[k]
        logits = x @ model
        logits -= logits.max(axis=1, keepdims=True)
        return np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]

    def trained(self, model, k, epochs=5, rate=0.5):
        x, y = self.data[k]
        model, target = model.copy(), np.eye(10)[y]
        for _ in range(epochs):
            logits = x @ model
            odds = np.exp(logits - logits.max(axis=1, keepdims=True))
            model -= rate / len(x) * x.T @ (odds / odds.sum(axis=1, keepdims=True) - target)
        return model

    def accuracy(self, model):
        x, y = self.test
        return float(np.mean((x @ model).argmax(axis=1) == y))


def run(policy, attack, guards, seed):
    """Return the attackers' picks relative to a uniform draw, and the final accuracy."""
    federation, rng = Federation(seed), np.random.default_rng(seed + 1)
    model = np.zeros((65, 10))
    options = dict(POLICIES[policy])
    name = policy.partition(",")[0]
    if name == "fedcvr-bolt":
        options |= {"n_features": model.size, "initial": model.ravel()}
    if name == "fedcbs":
        options["label_counts"] = federation.counts
    selector = cvrcore.make_selector(
        name, N_CLIENTS, N_SELECT, weights=federation.sizes, seed=seed, **options, **guards
    )
    hostile = np.isin(np.arange(N_CLIENTS), ATTACKERS) & (attack != "none")
    directions = rng.normal(size=(N_CLIENTS, *model.shape))
    able = federation.sizes > 0
    picks = np.zeros(N_CLIENTS)

    def loss(k):
        values = federation.losses(model, k)
        mean = np.sqrt(np.mean(values**2)) if selector.loss_statistic == "rms" else values.mean()
        lies = {"scaling": 1e3 * mean, "score-seeking": 1e6} if hostile[k] else {}
        return lies.get(attack, mean)

    def answer(k):
        honest = federation.trained(model, k)
        if not hostile[k]:
            return honest
        if attack == "sign-flip":
            return 2 * model - honest
        if attack == "scaling":
            return model + 1e3 * (honest - model)
        return model + 1e3 * directions[k]

    for _ in range(ROUNDS):
        asked = selector.probe()
        clients = selector.select(
            losses=None if asked is None else np.array([loss(k) for k in asked])
        ).clients
        answers = np.array([answer(k) for k in clients])
        selector.observe(
            clients, answers.reshape(len(clients), -1), np.array([loss(k) for k in clients])
        )
        picks[clients] += 1
        sound = ~hostile[clients]
        if sound.any():
            model = np.average(answers[sound], axis=0, weights=federation.sizes[clients[sound]])
    there = able & np.isin(np.arange(N_CLIENTS), ATTACKERS)
    even = picks.sum() * there.sum() / able.sum()
    return picks[there].sum() / even, federation.accuracy(model)


def main(seeds=SEEDS):
    """Print a table of the attackers' shares, with the worst attack in the last column."""
    print(f"share of the picks, of 1; guards: {GUARDS}; {ROUNDS} rounds, {seeds} seeds\n")
    head = [f"{a}, {g}" for a in ATTACKS[1:] for g in ("off", "guarded")]
    print("| policy | " + " | ".join(head) + " | accuracy, off | guarded |")
    print("|---|" + "---:|" * (len(head) + 2))
    worst = 0.0
    for policy in POLICIES:
        cells = []
        for attack in ATTACKS[1:]:
            for guards in ({}, GUARDS):
                share = np.mean([run(policy, attack, guards, seed)[0] for seed in range(seeds)])
                worst = max(worst, share) if guards else worst
                cells.append(f"{share:.2f}")
        for guards in ({}, GUARDS):
            found = [run(policy, "none", guards, seed)[1] for seed in range(seeds)]
            cells.append(f"{100 * np.mean(found):.1f}")
        print(f"| {policy} | " + " | ".join(cells) + " |", flush=True)
    print(f"\nlargest share with guards: {worst:.2f} (wanted: at most 1.5)")
    return worst <= 1.5


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
