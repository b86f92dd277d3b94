"""HiCS-FL: updates of output biases in, clients of balanced data first out."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..selection import Selection
from ..validation import Float, Ids, Mask, check_count, check_number
from .base import Probe
from .guards import Guards
from .power_of_choice import gumbel_top_k
from .update_rows import UpdateRowsSelector

#: Clients above which the K x K distances of the clustering are refused.
MAX_CLIENTS = 10_000


def label_entropy(updates: ArrayLike, temperature: float) -> Float:
    """Estimate the entropy of each client's labels: that of softmax(update / temperature).

    A client with one label changes the bias of that output most, so that the softmax is
    concentrated; balanced labels leave all outputs alike.

    Examples
    --------
    >>> label_entropy([[0.0, 0.0], [1.0, 0.0]], temperature=0.5).round(4)
    array([0.6931, 0.3653])
    """
    rows = np.asarray(updates, dtype=np.float64) / temperature
    rows = rows - rows.max(axis=-1, keepdims=True)
    shares = np.exp(rows)
    total = shares.sum(axis=-1, keepdims=True)
    return np.asarray(np.log(total[..., 0]) - (shares / total * rows).sum(axis=-1))


class HiCSSelector(UpdateRowsSelector):
    r"""Hierarchical clustered sampling by estimated heterogeneity [1]_.

    1. The entropy of each client's labels is estimated from the update of the output layer's
       bias, `label_entropy`.
    2. Ward's method makes `n_groups` groups from the distances
       :math:`\arccos(\cos(g_i, g_j)) + \lambda |H_i - H_j|`.
    3. Each place goes to a group with probability in proportion to
       :math:`\exp(\gamma_t \bar H)`, :math:`\bar H` the group's mean entropy and
       :math:`\gamma_t = \gamma (1 - t / T)`: groups of balanced data first, all alike at the
       end. A full group gives no further place. Inside a group clients are drawn uniformly.

    Clients never seen are picked first. The published code passes the square matrix of
    distances to Ward's method as if its rows were points, and freezes updates after the first
    pass in one of its settings; here the condensed distances are clustered, and updates are
    always the last ones.

    Parameters
    ----------
    n_clients, n_select, weights, seed, guards
        See `Selector`; at most 10,000 clients: Ward's method needs all distances.
    n_features : int
        Outputs of the model. Updates must be those of the output layer's bias (without a
        bias, of the mean of each output's weights), not normalised.
    n_rounds : int, optional
        T. Default: gamma stays as it is.
    n_groups : int, optional
        Default: `n_select`.
    temperature, scale, gamma : float
        T of the softmax, lambda and gamma of the article. The article's experiments use
        0.0025 to 0.005 for the first; 0.001 in its code.

    References
    ----------
    .. [1] Chen and Vikalo, "Heterogeneity-guided client sampling: towards fast and efficient
       non-IID federated learning", NeurIPS, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> import cvrcore
    >>> selector = cvrcore.make_selector("hics", n_clients=10, n_select=5, n_features=3, seed=0)
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(3):
    ...     picked = selector.select()
    ...     selector.observe(picked.clients, updates=rng.normal(size=(5, 3)))
    >>> len(picked)
    5
    """

    name: ClassVar[str] = "hics"
    #: What a loop should watch: the output layer's bias, update not normalised.
    watches: ClassVar[str] = "head"

    def __init__(
        self,
        n_clients: int,
        n_select: int,
        weights: ArrayLike | None = None,
        seed: int | np.random.SeedSequence | None = None,
        *,
        n_features: int,
        n_rounds: int | None = None,
        n_groups: int | None = None,
        temperature: float = 0.001,
        scale: float = 10.0,
        gamma: float = 4.0,
        guards: Guards | str | None = None,
    ) -> None:
        super().__init__(n_clients, n_select, weights, seed, n_features=n_features, guards=guards)
        _check_size(self.n_clients)
        self.n_rounds = None if n_rounds is None else check_count(n_rounds, "n_rounds")
        groups = self.n_select if n_groups is None else n_groups
        self.n_groups = check_count(groups, "n_groups")
        self.temperature = check_number(temperature, "temperature", above=0.0)
        self.scale = check_number(scale, "scale", minimum=0.0)
        self.gamma = check_number(gamma, "gamma", minimum=0.0)

    def _choose(self, eligible: Mask, probe: Probe | None) -> Selection:
        first = self._unseen_first(eligible)
        n_picked = min(self.n_select, int(np.count_nonzero(eligible)))
        if first.size == n_picked:
            return Selection(clients=first, round=self.round)
        ids = np.flatnonzero(eligible & self._seen)
        entropy = label_entropy(self._rows[ids], self.temperature)
        labels = self._groups(self._rows[ids], entropy)
        sizes = np.bincount(labels)
        mean = np.bincount(labels, weights=entropy) / sizes
        places = self._places(mean, sizes, n_picked - first.size)
        chosen = [self._rng.permutation(ids[labels == g])[:n] for g, n in enumerate(places) if n]
        scores = np.full(self.n_clients, np.nan)
        scores[ids] = entropy
        clients = np.concatenate([first, *chosen]).astype(np.int64)
        return Selection(clients=clients, scores=scores, round=self.round)

    def _groups(self, rows: Float, entropy: Float) -> Ids:
        """Return the group of each row, 0 .. n - 1, every group with at least one row."""
        if len(rows) <= self.n_groups:
            return np.arange(len(rows))
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import squareform

        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        units = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
        distances = np.arccos(np.clip(units @ units.T, -1.0, 1.0))
        distances += self.scale * np.abs(entropy[:, None] - entropy)
        np.fill_diagonal(distances, 0.0)
        tree = linkage(squareform(distances, checks=False), "ward")
        found = fcluster(tree, self.n_groups, "maxclust")
        return np.unique(found, return_inverse=True)[1].astype(np.int64)

    def _places(self, entropy: Float, sizes: Ids, n_places: int) -> Ids:
        """Return how many clients each group gives: `n_places` in all, drawn one at a time."""
        left = 1.0 if self.n_rounds is None else max(0.0, 1.0 - self.round / self.n_rounds)
        logits = self.gamma * left * entropy
        places = np.zeros(sizes.size, dtype=np.int64)
        for _ in range(n_places):
            group = gumbel_top_k(np.where(places < sizes, logits, -np.inf), 1, self._rng)[0]
            places[group] += 1
        return places

    def _grow(self, n_clients: int, added: Float) -> None:
        _check_size(n_clients)
        super()._grow(n_clients, added)

    def _config(self) -> dict[str, Any]:
        names = ("n_rounds", "n_groups", "temperature", "scale", "gamma")
        return {**super()._config(), **{name: getattr(self, name) for name in names}}


def _check_size(n_clients: int) -> None:
    if n_clients > MAX_CLIENTS:
        raise ValueError(
            f"n_clients must be at most {MAX_CLIENTS} for hics, whose clustering needs all pairs "
            f"of clients, got {n_clients}"
        )
