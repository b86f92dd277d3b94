"""A linear model of updates in client features: updates in, the next global model out."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from ..head import Blur, HeadMap
from ..runtime.threads import serialised, single_blas_thread
from ..validation import Float, Ids, Mask, check_number, check_stored
from .base import Aggregator, Arrays, RoundUpdates, loading
from .flat import FlatLayout
from .importance import check_form, importance_factors, inclusion_for
from .noise import step_variance
from .row_store import LIMIT, RowStore

FACTOR_FORMS: Final = ("self-normalised", "horvitz-thompson")
HALF: Final = 0.5  # weight of the newest direction in a client's features


class FactorMemoryAggregator(Aggregator):
    r"""Updates of clients that do not report are predicted from C numbers about each client.

    With features f_k of client k and :math:`z_k = (1, f_k)`, its update is predicted as
    :math:`z_k V`; V has C + 1 rows, each as long as the model. The step is the regression
    estimator of survey sampling [1]_: the prediction for the whole population plus the mean
    error on the clients that reported,

    .. math:: \sum_k \alpha_k z_k V + \sum_{k\,\mathrm{selected}} d_k (u_k - z_k V),

    with :math:`d_k = \alpha_k / \pi_k`. After the round, V moves by one step of recursive least
    squares, weighted by d_k, in which earlier rounds fade by `fade`. The server keeps C + 1
    models where `MemoryAggregator` keeps one per client, and it can predict clients that were
    never seen: their features are the mean over the clients seen, weighted by
    :math:`\alpha_k q_k / (1 - q_k)`, with q_k the probability that the draws so far missed k.

    Parameters
    ----------
    features : array-like of shape (n_clients, C), optional
        Known features of all clients, such as label histograms. Default: the direction of the
        update of the output layer's bias (`cvrcore.head.HeadMap`), averaged over a client's
        reports.
    form : {"self-normalised", "horvitz-thompson"}
        The first divides the d_k by their sum: less variance, and a bias that vanishes as more
        clients are selected. The second is unbiased: predictions are then made from the
        features before the round.
    fade : float in (0, 1]
        Weight of the regression's past after each round.
    ridge : float above 0
        Regularisation of the regression.
    dtype, limit, folder
        See `MemoryAggregator`.
    noise, coarse, seed
        Noise on the directions, or a coarse part of them, as in `cvrcore.head.Blur`; not with
        `features`.

    References
    ----------
    .. [1] Sarndal, Swensson and Wretman, "Model assisted survey sampling", Springer, 1992.

    Examples
    --------
    Four clients of two kinds; the update of a client depends on its kind, which is known.

    >>> import numpy as np
    >>> import cvrcore
    >>> from cvrcore.aggregators import make_aggregator
    >>> kinds = np.array([[0.0], [0.0], [1.0], [1.0]])
    >>> aggregator, model = make_aggregator("factor-memory", features=kinds), [np.zeros(1)]
    >>> selector = cvrcore.make_selector("uniform", n_clients=4, n_select=2, seed=0)
    >>> for _ in range(20):
    ...     picked, before = selector.select(), model[0]
    ...     received = [[before + 1.0 + kinds[k]] for k in picked.clients]
    ...     model = aggregator.aggregate(model, received, picked.clients, [10] * 4, picked)
    ...     selector.observe(picked.clients)
    >>> (model[0] - before).round(2)  # the mean update of all four is 1.5
    array([1.5])
    """

    name = "factor-memory"
    whole_population = True
    needs_layers = True

    def __init__(
        self,
        features: ArrayLike | None = None,
        form: str = "self-normalised",
        fade: float = 0.9,
        ridge: float = 0.01,
        dtype: str = "float32",
        limit: int = LIMIT,
        folder: str | os.PathLike[str] | None = None,
        noise: float = 0.0,
        coarse: str = "none",
        seed: int = 0,
    ) -> None:
        self._blur = Blur(noise, coarse, seed)
        if features is not None and not self._blur.is_identity:
            raise ValueError("noise and coarse must be left out with given features")
        self.form = check_form(form, FACTOR_FORMS)
        self.fade = check_number(fade, "fade", above=0, maximum=1)
        self.ridge = check_number(ridge, "ridge", above=0)
        self._store = RowStore(dtype, limit, folder)  # V
        self._given = features is not None
        self._features = np.zeros((0, 0)) if features is None else _check_features(features)
        n_clients = self._features.shape[0]
        self._seen: Mask = np.full(n_clients, self._given)
        self._missed = np.ones(n_clients)  # q_k: the probability that no draw picked client k
        self._gram = np.zeros((0, 0))  # A of the regression

    @property
    def nbytes(self) -> int:
        """Bytes of V and of the features."""
        return self._store.nbytes + self._features.nbytes + self._gram.nbytes

    def _merge(self, received: RoundUpdates) -> Arrays:
        clients, weights = received.clients, received.weights
        inclusion = inclusion_for(self.name, received)
        factors = importance_factors(self.form, received, weights, inclusion)
        layout = FlatLayout(received.current)
        base = layout.flatten(received.current)
        changes = layout.differences(received.updates, clients, base)
        shares = weights / weights.sum()
        features, seen = self._fitted(received)
        missed = self._grown(self._missed, weights.size, 1.0) * (1.0 - np.minimum(inclusion, 1.0))

        after, seen_after = features, seen
        if not self._given:
            directions = HeadMap(received.current).updates(received.updates, received.current)
            directions = self._blur(directions, clients)
            after, seen_after = _updated(features, seen, clients, directions)
        z_after = _design(after, seen_after, shares, missed)
        z = z_after
        if self.form == "horvitz-thompson":  # predictions must not depend on the draw
            before = self._grown(self._missed, weights.size, 1.0)
            z = _design(features, seen, shares, before)

        n_rows = z.shape[1]
        factor_rows = self._rows(n_rows, layout.size)
        trust = np.diag(factors / factors.mean())
        gram = self._fitted_gram(n_rows) * self.fade + z_after[clients].T @ trust @ z_after[clients]
        gain = np.linalg.solve(
            gram + self.ridge * np.eye(n_rows), z_after[clients].T @ trust
        ).astype(np.float32)
        with single_blas_thread():
            errors = changes - z[clients].astype(np.float32) @ factor_rows
            step = (shares @ z).astype(np.float32) @ factor_rows
            miss = factors.astype(np.float32) @ errors
            step += miss
            if self.measures_noise:
                around = miss if self.form == "self-normalised" else np.float32(0.0)
                self.noise = step_variance(factors, errors - around, received.inclusion)
            if z is not z_after:
                errors = changes - z_after[clients].astype(np.float32) @ factor_rows
            factor_rows += gain @ errors

        self._store.fit(n_rows, layout.size)
        for i in range(n_rows):
            self._store.write(i, factor_rows[i])
        self._features, self._seen, self._missed, self._gram = after, seen_after, missed, gram
        return layout.unflatten(base + step)

    def _fitted(self, received: RoundUpdates) -> tuple[Float, Mask]:
        """Return features and seen clients for the present number of clients."""
        n_clients, present = received.weights.size, self._features.shape[0]
        if self._given:
            if present != n_clients:
                raise ValueError(
                    f"features must have one row for each of {n_clients} clients, got {present}"
                )
            return self._features, self._seen
        width = HeadMap(received.current).n_features
        if present and self._features.shape[1] != width:
            raise ValueError(
                f"updates must have {self._features.shape[1]} outputs, as those remembered, "
                f"got {width}"
            )
        features = np.zeros((n_clients, width))
        if present:
            features[:present] = self._features
        return features, self._grown(self._seen, n_clients, False)

    @staticmethod
    def _grown(array: Any, size: int, fill: Any) -> Any:
        return np.concatenate([array, np.full(size - array.size, fill, dtype=array.dtype)])

    def _rows(self, n_rows: int, size: int) -> Float:
        """Return V as float32."""
        rows = np.zeros((n_rows, size), dtype=np.float32)
        if self._store.known.any():
            self._store.fit(n_rows, size)  # refuses a model of another size
            for i in np.flatnonzero(self._store.known):
                rows[i] = self._store.read(int(i))
        return rows

    def _fitted_gram(self, n_rows: int) -> Float:
        return self._gram if self._gram.size else self.ridge * np.eye(n_rows)

    def _forget(self, client: int) -> None:
        """Erase the features of a client. V stays: like the model, it is learned from all."""
        if client >= self._features.shape[0]:
            return
        self._features[client] = 0.0
        self._seen[client] = self._given
        self._missed[client] = 1.0

    @serialised
    def state_dict(self) -> dict[str, Any]:
        """Return all state as arrays and plain values; see `RowStore` about files."""
        return {
            **super().state_dict(),
            "features": self._features.copy(),
            "seen": self._seen.copy(),
            "missed": self._missed.copy(),
            "gram": self._gram.copy(),
            "bank": self._store.state(),
        }

    @loading
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        super().load_state_dict(state)
        features = np.asarray(state["features"], dtype=np.float64)
        if features.ndim != 2 or not np.isfinite(features).all():
            raise ValueError(f"features must be a finite matrix, got shape {features.shape}")
        n_clients, width = features.shape
        seen = check_stored(state["seen"], "seen", n_clients, bool)
        missed = check_stored(state["missed"], "missed", n_clients)
        if missed.size and not (0 <= missed.min() and missed.max() <= 1):
            raise ValueError("missed must hold probabilities")
        gram = np.array(state["gram"], dtype=np.float64)
        n_rows = state["bank"]["shape"][0]
        if gram.shape not in ((0, 0), (width + 1, width + 1)) or not np.isfinite(gram).all():
            raise ValueError(f"gram must have shape {(width + 1, width + 1)}, got {gram.shape}")
        if n_rows != len(gram):
            raise ValueError(f"bank must have {len(gram)} rows, as gram has, got {n_rows}")
        if (np.diagonal(gram) < 0).any() or not np.allclose(gram, gram.T):
            raise ValueError("gram must be symmetric, with a non-negative diagonal")
        if not np.all(state["bank"]["known"]):  # every round writes all rows
            raise ValueError("bank must hold all of its rows")
        if self._given:
            same = features.shape == self._features.shape
            others = features[(features != self._features).any(axis=1)] if same else features
            if not same or others.any():  # zeros: the client was forgotten
                raise ValueError("features must be those of the saved state, got others")
        self._store.restore(state["bank"])
        self._features, self._seen, self._missed = features.copy(), seen, missed
        self._gram = gram


def _check_features(features: ArrayLike) -> Float:
    matrix = np.array(features, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] == 0 or not np.isfinite(matrix).all():
        raise ValueError(
            f"features must be a finite matrix with a row per client, got shape {matrix.shape}"
        )
    return matrix


def _updated(features: Float, seen: Mask, clients: Ids, directions: Float) -> tuple[Float, Mask]:
    """Return features after a round: the mean of old and new directions; a zero one is ignored."""
    features, seen = features.copy(), seen.copy()
    told = directions.any(axis=1)
    ids, new = clients[told], directions[told]
    old = seen[ids]
    features[ids[old]] = (1.0 - HALF) * features[ids[old]] + HALF * new[old]
    features[ids[~old]] = new[~old]
    seen[ids] = True
    return features, seen


def _design(features: Float, seen: Mask, shares: Float, missed: Float) -> Float:
    """Return z_k = (1, f_k); clients never seen get the weighted mean of the clients seen."""
    z = np.ones((features.shape[0], features.shape[1] + 1))
    z[:, 1:] = features
    if seen.any() and not seen.all():
        odds = shares[seen] * missed[seen] / np.maximum(1.0 - missed[seen], 1e-12)
        if not odds.sum() > 0:  # every client seen was certain to be drawn
            odds = shares[seen]
        total = odds.sum()
        z[~seen, 1:] = odds @ features[seen] / total if total > 0 else features[seen].mean(axis=0)
    return z
