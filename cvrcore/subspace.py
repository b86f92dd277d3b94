"""The steps of filtered subspace iteration, which `cvrcore.spectral` puts together.

A block of vectors is filtered by a Chebyshev polynomial of the normalised affinity and then
turned into Ritz vectors, in float32.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from . import _backend
from ._validation import Float
from .normalised import NormalisedAffinity, Operator

FEW: Final = 160  # clients up to which our own small kernels beat calls of BLAS


def steepest(best: float, worst: float) -> int:
    """Return the degree that keeps the best vector within 1e4 of the worst in float32."""
    spread = math.acosh(max(best, 1.0)) - math.acosh(max(worst, 1.0))
    return max(2, int(math.log(1e4) / max(spread, 1e-3)))


def chebyshev(
    operator: Operator,
    vectors: Float,
    image: Float | None,
    half: float,
    largest: float,
    degree: int,
) -> tuple[Float, Float]:
    """Apply the scaled Chebyshev polynomial of [0, 2 half]; return the block and its image.

    `image` is that of `vectors`, if it is known.
    """
    if isinstance(operator, NormalisedAffinity) and vectors.shape[0] <= FEW and degree > 0:
        filtered, image = np.empty_like(vectors), np.empty_like(vectors)
        _backend.filter_block(operator.matrix, vectors, half, largest, degree, filtered, image)
        operator.products += degree + 1
        return filtered, image
    if image is None:
        image = operator.apply(vectors)
    if degree == 0:
        return vectors, image
    scale = vectors.dtype.type  # Python floats would do; NumPy scalars must not widen float32
    first = sigma = half / (largest - half)
    before, now = vectors, (image - scale(half) * vectors) * scale(first / half)
    for _ in range(degree - 1):
        following = 1.0 / (2.0 / first - sigma)

        def combine(
            part: Float,
            rows: slice,
            last: Float = now,
            older: Float = before,
            gain: float = 2.0 * following / half,
            loss: float = sigma * following,
        ) -> None:
            part -= scale(half) * last[rows]
            part *= scale(gain)
            part -= scale(loss) * older[rows]

        before, now, sigma = now, operator.apply(now, combine), following
    return now, operator.apply(now)


def rayleigh_ritz(
    operator: Operator, block: Float, image: Float, n_wanted: int
) -> tuple[Float, Float, Float, float]:
    """Return orthonormal Ritz vectors of a block's span, their images, values and error.

    Through the Gram matrix, where columns are not so parallel that float32 would tell. The
    error is the largest residual norm of the wanted pairs.
    """
    solve = _few_pairs if block.shape[0] <= FEW else _many_pairs
    found = solve(block, image, n_wanted)
    if found is None:
        block = np.linalg.qr(block)[0]
        found = solve(block, operator.apply(block), n_wanted)
        assert found is not None
    return found


def _few_pairs(
    block: Float, image: Float, n_wanted: int
) -> tuple[Float, Float, Float, float] | None:
    vectors, images, values = np.empty_like(block), np.empty_like(block), np.empty(block.shape[1])
    square = _backend.ritz(block, image, n_wanted, vectors, images, values)
    return None if square < 0.0 else (vectors, images, values, math.sqrt(square))


def _many_pairs(
    block: Float, image: Float, n_wanted: int
) -> tuple[Float, Float, Float, float] | None:
    wide = block.astype(np.float64)
    gram = wide.T @ wide
    try:
        lower = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        return None
    squares = lower.diagonal() ** 2
    if not ((squares > 1e-10 * gram.diagonal()) & (squares > 1e-30)).all():
        return None
    inverse = np.linalg.inv(lower)
    values, rotation = np.linalg.eigh(inverse @ (wide.T @ image) @ inverse.T)
    values = values[::-1].copy()
    turn = (inverse.T @ rotation[:, ::-1]).astype(block.dtype)
    vectors, images = block @ turn, image @ turn
    residual = images[:, :n_wanted] - vectors[:, :n_wanted] * values[:n_wanted].astype(block.dtype)
    return vectors, images, values, math.sqrt(float(np.square(residual).sum(axis=0).max()))
