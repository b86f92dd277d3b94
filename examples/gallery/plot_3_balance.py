"""
A sample that is spread out
===========================

`cvrcore.draws.pivotal.pivotal_sample` draws clients with given probabilities such that neighbours
seldom come together. The probabilities are exact; only the sample is more even. The policy
``pivotal`` uses it on what clients report.
"""

import matplotlib.pyplot as plt
import numpy as np

from cvrcore.draws.pivotal import pivotal_sample, spatial_balance

rng = np.random.default_rng(0)
features = rng.uniform(size=(200, 2))  # two numbers about each of 200 clients
inclusion = np.full(200, 0.1)

# %%
# Twenty of two hundred clients, by a balanced and by a simple random draw.

balanced = pivotal_sample(inclusion, features, rng)
simple = rng.choice(200, size=20, replace=False)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharex=True, sharey=True, layout="constrained")
for ax, drawn, title in zip(axes, (balanced, simple), ("balanced", "simple random"), strict=True):
    measure = spatial_balance(drawn, inclusion, features)
    ax.scatter(*features.T, s=8, color="tab:gray")
    ax.scatter(*features[drawn].T, s=50, color="tab:red")
    ax.set_title(f"{title}: imbalance {measure:.2f}")
plt.show()

# %%
# Over many draws every client is picked as often as its probability says.

counts = np.zeros(200)
for _ in range(2000):
    counts[pivotal_sample(inclusion, features, rng)] += 1
print(f"frequencies from {counts.min() / 2000:.3f} to {counts.max() / 2000:.3f}, wanted 0.1")
