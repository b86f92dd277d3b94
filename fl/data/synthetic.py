"""Synthetic(alpha, beta): one logistic model and one Gaussian of inputs per client."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .federation import Samples

VARIANTS = ("fedprox", "authors")


def generate_synthetic(
    n_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    variant: str = "fedprox",
    n_features: int = 60,
    n_classes: int = 10,
    n_samples: int | None = None,
) -> Samples:
    """Generate the Synthetic(alpha, beta) classification task of Li et al. (2020).

    Client k draws ``W_k, b_k ~ N(u_k, 1)``, ``v_k ~ N(B_k, 1)``, its inputs
    ``x ~ N(v_k, diag(j ** -1.2))`` and labels ``argmax(x W_k + b_k)``.

    Parameters
    ----------
    n_clients : int
    rng : Generator
    alpha, beta : float, default=1.0
        Spread over clients of u_k (the model) and of B_k (the inputs), not negative:
        standard deviations in "fedprox", variances in "authors".
    variant : {"fedprox", "authors"}, default="fedprox"
        "fedprox" draws u_k and B_k as one number per client, and sizes
        ``50 + floor(lognormal(4, 2))``. One u_k moves every logit alike, so there `alpha`
        changes no label. "authors", as the paper's script, draws u_k per class and B_k
        per feature, and 100 samples for every client.
    n_features : int, default=60
    n_classes : int, default=10
    n_samples : int, optional
        The same size for every client, instead of the variant's.

    Returns
    -------
    samples : Samples
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    for name, spread in (("alpha", alpha), ("beta", beta)):
        if not 0 <= spread < np.inf:
            raise ValueError(f"{name} must be finite and not negative, got {spread}")
    for name, count in (("n_features", n_features), ("n_classes", n_classes)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if n_samples is not None and n_samples < 1:
        raise ValueError(f"n_samples must be at least 1, got {n_samples}")

    fedprox = variant == "fedprox"
    sizes = rng.lognormal(4.0, 2.0, n_clients).astype(np.int64) + 50  # drawn in any case
    if n_samples is not None or not fedprox:
        sizes = np.full(n_clients, 100 if n_samples is None else n_samples)
    spread_u, spread_b = (alpha, beta) if fedprox else (alpha**0.5, beta**0.5)
    scale = np.arange(1, n_features + 1) ** -0.6  # square root of the variances j ** -1.2

    def draw(size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        u = rng.normal(0.0, spread_u, 1 if fedprox else n_classes)
        weights = rng.normal(u, 1.0, (n_features, n_classes))
        bias = rng.normal(u, 1.0, n_classes)
        centre = rng.normal(
            rng.normal(0.0, spread_b, 1 if fedprox else n_features), 1.0, n_features
        )
        x = centre + scale * rng.standard_normal((size, n_features))
        return x.astype(np.float32), (x @ weights + bias).argmax(axis=1)

    clients = [draw(int(size)) for size in sizes]
    record: dict[str, Any] = {
        "variant": variant,
        "synthetic_alpha": float(alpha),
        "synthetic_beta": float(beta),
        "spread": "standard deviation" if fedprox else "variance",
        "sizes": "50 + floor(lognormal(4, 2))" if n_samples is None and fedprox else "equal",
    }
    return Samples(
        np.concatenate([x for x, _ in clients]),
        np.concatenate([y for _, y in clients]).astype(np.int64),
        n_classes,
        record,
        tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])),
    )
