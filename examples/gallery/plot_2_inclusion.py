"""
Who can be picked: inclusion probabilities
==========================================

Every policy states the probability of each client to be picked, in ``Selection.inclusion``.
Aggregators such as ``importance`` and ``memory`` need it. Here four policies select 5 of 30
clients whose sample counts differ, after they have seen the same reports.
"""

import matplotlib.pyplot as plt
import numpy as np

import cvrcore

N_CLIENTS, N_SELECT = 30, 5
rng = np.random.default_rng(1)
sizes = np.sort(rng.integers(10, 200, size=N_CLIENTS))
losses = rng.uniform(0.2, 2.0, size=N_CLIENTS)
norms = rng.uniform(0.5, 2.0, size=N_CLIENTS)


def after_rounds(name, n_rounds=60, **options):
    """Return the inclusion probabilities of a policy after some rounds."""
    selector = cvrcore.make_selector(
        name, n_clients=N_CLIENTS, n_select=N_SELECT, weights=sizes, seed=0, **options
    )
    for _ in range(n_rounds):
        picked = selector.select()
        told = picked.clients
        report = {}
        if "losses" in selector.needs:
            report["losses"] = losses[told]
        if "norms" in selector.needs:
            report["norms"] = norms[told]
        selector.observe(told, **report)
    return selector.select().inclusion


# %%
# The probabilities of each policy sum to 5, the clients of a round; a uniform draw gives 1/6 to
# each.

figure, axes = plt.subplots(2, 2, figsize=(8, 5), sharex=True, sharey=True, layout="constrained")
for ax, name in zip(axes.flat, ("uniform", "multinomial", "optimal", "oort"), strict=True):
    inclusion = after_rounds(name)
    ax.bar(np.arange(N_CLIENTS), inclusion, color="tab:blue")
    ax.axhline(N_SELECT / N_CLIENTS, color="black", linewidth=1, linestyle="--")
    ax.set_title(f"{name}: sum {inclusion.sum():.2f}")
for ax in axes[1]:
    ax.set_xlabel("client, by number of samples")
for ax in axes[:, 0]:
    ax.set_ylabel("probability")
plt.show()

# %%
# A policy that draws with replacement (``multinomial``) may pick fewer distinct clients, so its
# probabilities sum to less.
