"""
Memory in the merge, on digits
==============================

Twenty clients hold two classes of digits each, four of them train in a round. The same policy and
the same seeds, merged in two ways: by samples (FedAvg), and with the last update of every client
remembered. The curve with memory swings less.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import cvrcore
from cvrcore.aggregators import make_aggregator

EXAMPLES = Path.cwd()  # softmax_digits.py is in examples/
while not (EXAMPLES / "softmax_digits.py").exists():
    EXAMPLES = EXAMPLES / "examples" if (EXAMPLES / "examples").is_dir() else EXAMPLES.parent
sys.path.insert(0, str(EXAMPLES))
import softmax_digits

N_CLIENTS, N_SELECT, N_ROUNDS = 20, 4, 40
sizes = [softmax_digits.size(client, N_CLIENTS) for client in range(N_CLIENTS)]


def accuracies(aggregator_name, seed):
    """Return the test accuracy after each round."""
    selector = cvrcore.make_selector(
        "uniform", n_clients=N_CLIENTS, n_select=N_SELECT, weights=sizes, seed=seed
    )
    aggregator = make_aggregator(aggregator_name)
    model, found = [softmax_digits.initial_model()], []
    for _ in range(N_ROUNDS):
        picked = selector.select()
        received = [[softmax_digits.train(model[0], k, N_CLIENTS)] for k in picked.clients]
        selector.observe(picked.clients)
        model = aggregator.aggregate(model, received, picked.clients, sizes, picked)
        found.append(softmax_digits.accuracy(model[0], N_CLIENTS))
    return found


# %%
# Three seeds of each; the thick line is their mean.

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
for name, colour in (("sizes", "tab:gray"), ("memory", "tab:blue")):
    curves = np.array([accuracies(name, seed) for seed in range(3)])
    ax.plot(curves.T, color=colour, linewidth=0.7, alpha=0.6)
    ax.plot(curves.mean(axis=0), color=colour, linewidth=2.5, label=name)
    last = curves[:, -10:]
    print(f"{name}: mean of the last ten rounds {last.mean():.3f}, spread {last.std():.3f}")
ax.set_xlabel("round")
ax.set_ylabel("test accuracy")
ax.legend(title="aggregator")
plt.show()
