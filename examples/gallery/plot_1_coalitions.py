"""
Coalitions of clients that look alike
=====================================

Sixty clients hold one of three kinds of data. The server never sees the data: it sees a few
numbers of each model that comes back. `cvrcore.CoalitionSelector` finds the kinds by itself and
draws one client from each.
"""

import matplotlib.pyplot as plt
import numpy as np

import cvrcore

rng = np.random.default_rng(0)
kinds = rng.integers(0, 3, size=60)
centres = np.array([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])


def train(clients):
    """Return what the clients send: the centre of their kind, and noise of their own."""
    return centres[kinds[clients]] + 0.4 * rng.normal(size=(len(clients), 2))


# %%
# A selector for 60 clients, 3 of them a round. It begins with uniform rounds (the warm-up), in
# which it meets most clients.

selector = cvrcore.CoalitionSelector(n_clients=60, n_features=2, n_select=3, warmup=60, seed=0)
last = np.full((60, 2), np.nan)
for _ in range(100):
    picked = selector.select()
    rows = train(picked.clients)
    last[picked.clients] = rows
    selector.observe(picked.clients, rows)

# %%
# Coalitions of the last round, beside the true kinds. A coalition has the colour of the kind that
# most of its clients have; the three picked clients are circled.

colours = [np.bincount(kinds[picked.coalitions == p]).argmax() for p in range(3)]
shown = np.array(colours)[picked.coalitions]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained")
for ax, labels, title in zip(
    axes, (kinds, shown), ("kinds of data (hidden)", "coalitions found"), strict=True
):
    ax.scatter(*last.T, c=labels, cmap="viridis", s=30)
    ax.set_title(title)
    ax.set_xlabel("first watched coordinate")
axes[0].set_ylabel("second watched coordinate")
axes[1].scatter(*last[picked.clients].T, s=160, facecolors="none", edgecolors="red", linewidths=2)
plt.show()

# %%
# The share of pairs of clients on which both agree:

same_kind = kinds[:, None] == kinds
same_coalition = picked.coalitions[:, None] == picked.coalitions
print(f"pairs that agree: {(same_kind == same_coalition).mean():.3f}")
