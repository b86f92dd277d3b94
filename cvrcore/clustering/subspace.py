"""Chebyshev-filtered subspace iteration: an operator and a start in, leading eigenvectors out.

A block of vectors is filtered by a Chebyshev polynomial of the matrix, then rotated to Ritz
vectors (Rayleigh-Ritz), in float32, until their residuals are within the tolerance (Zhou, Saad,
Tiago and Chelikowsky, 2006).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import numpy as np

from ..kernels import dispatch
from ..runtime.sizes import SMALL
from ..validation import Float, check_count, check_matrix, check_vector
from .operators import Operator

EMPTY_IDS: Final = np.empty(0, dtype=np.int64)
TOLERANCE: Final = 1e-3  # residual of each eigenpair, relative to the smallest wanted value
_MAX_SWEEPS: Final = 5
_MAX_DEGREE: Final = 24


@dataclasses.dataclass
class Basis:
    """A converged block of eigenvectors, guard vectors included, to start from next time."""

    vectors: Float  # (n_rows, n_wanted + guard), orthonormal up to TOLERANCE
    values: Float  # Ritz values, largest first
    degree: int = 4  # of the filter that the next problem is likely to need
    products: int = 0  # matrix-block products spent, 0 where there were none
    axes: Basis | None = None  # principal axes of the rows, where they were used

    def state(self) -> dict[str, Any]:
        """Return everything as arrays and plain values."""
        return {
            "vectors": self.vectors.copy(),
            "values": self.values.copy(),
            "degree": self.degree,
            "products": self.products,
            "axes": None if self.axes is None else self.axes.state(),
        }

    @classmethod
    def restored(cls, state: dict[str, Any], n_rows: int | None) -> Basis:
        """Build from what `state` returned."""
        vectors = check_matrix(state["vectors"], "vectors", (n_rows, None)).copy()
        values = check_vector(state["values"], "values", vectors.shape[1], None).copy()
        degree = check_count(state["degree"], "degree", 0, 2 * _MAX_DEGREE)
        products = check_count(state["products"], "products", 0, 2**53)
        axes = state.get(
            "axes"
        )  # states of older versions have none; axes have no axes of their own
        if axes is not None:
            axes = cls.restored({**axes, "axes": None}, None)
        return cls(vectors, values, degree, products, axes)


def filtered_subspace(
    operator: Operator, start: Basis, n_wanted: int, tolerance: float = TOLERANCE
) -> Basis | None:
    """Run Chebyshev-filtered subspace iteration; None if it does not converge.

    Each sweep damps the spectrum below the block's smallest Ritz value. The first sweep takes
    the degree that the last problem needed; the degree of later ones follows from the error
    that is left. The images of Ritz vectors, which are known, give one more damping for free.
    """
    vectors = start.vectors.astype(operator.dtype, copy=False)
    values, degree, spent = start.values, start.degree, 0
    image: Float | None = None
    for _ in range(_MAX_SWEEPS):
        largest, smallest, edge = values[[0, n_wanted - 1, -1]].tolist()
        if not edge > 0 or smallest < 1e-3 * largest:
            return None  # no interval to damp, or beyond the precision of float32
        degree = min(degree, steepest(2.0 * largest / edge - 1.0, 2.0 * smallest / edge - 1.0))
        vectors, image = operator.filtered(vectors, image, edge / 2, largest, degree)
        spent += degree
        vectors, image, values, error = rayleigh_ritz(operator, vectors, image, n_wanted)
        smallest = float(values[n_wanted - 1])
        if not smallest > 0:
            return None
        edge = max(float(values[-1]), 1e-3 * smallest)  # smaller values are not resolved
        excess = error * edge / (tolerance * smallest**2)
        growth = math.acosh(max(2.0 * smallest / edge - 1, 1.0001))
        if excess <= 1.0:
            # Aim at half the tolerance next time: too much work costs less than a second sweep.
            spare = math.log(0.5 / max(excess, 1e-6)) / growth
            likely = min(max(spent - math.floor(min(spare, max(1.0, spent / 2))), 0), _MAX_DEGREE)
            damped = image[:, :n_wanted] / values[:n_wanted]
            vectors[:, :n_wanted] = damped  # guard vectors may be of next to nothing
            return Basis(vectors, values, likely, operator.products)
        degree = min(max(math.ceil(math.acosh(4.0 * excess) / growth), 2), _MAX_DEGREE)
    return None


def steepest(best: float, worst: float) -> int:
    """Return the degree that keeps the best vector within 1e4 of the worst in float32."""
    spread = math.acosh(max(best, 1.0)) - math.acosh(max(worst, 1.0))
    return max(2, int(math.log(1e4) / max(spread, 1e-3)))


def rayleigh_ritz(
    operator: Operator, block: Float, image: Float, n_wanted: int
) -> tuple[Float, Float, Float, float]:
    """Return orthonormal Ritz vectors of a block's span, their images, values and error.

    Through the Gram matrix, where columns are not so parallel that float32 would tell. The
    error is the largest residual norm of the wanted pairs.
    """
    solve = _few_pairs if block.shape[0] <= SMALL else _many_pairs
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
    square = dispatch.ritz(block, image, n_wanted, vectors, images, values)
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
