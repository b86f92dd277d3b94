"""Spectral embedding through landmarks (Nystrom): rows of many clients in, points out.

With m landmarks, C the affinities of clients to landmarks and W the affinities among
landmarks, the whole affinity is approximated by ``C W^-1 C^T``. Its normalised eigenvectors
follow from an m x m problem, whose matrix ``C^T diag(degree)^-1 C`` is a mean over clients,
estimated from a random sample. Clients are then embedded one chunk at a time: O(K m D) time,
O(K P) memory.
"""

from __future__ import annotations

import functools
import importlib
from typing import Final

import numpy as np

from ..kernels import dispatch
from ..runtime.journal import Journal
from ..runtime.threads import run_chunks, single_blas_thread
from ..validation import Float, Ids
from .affinity import apply_kernel

LANDMARKS: Final = ("uniform", "kmeans++")
_CHUNK: Final = 256  # clients of one task: their affinities stay in cache
_SAMPLE: Final = 16  # clients per landmark in the sample of the m x m problem
_CUT: Final = 1e-7  # eigenvalues of W below this share of the largest are noise


class Landmarks:
    """Affinities of any rows to landmark rows, in float32.

    Parameters
    ----------
    rows : array of shape (n_landmarks, n_features)
    kernel, gamma
        See `cvrcore.influence`; "median" is taken over the landmarks.
    """

    def __init__(self, rows: Float, kernel: str, gamma: float | str) -> None:
        self.rows, self.kernel = rows, kernel
        self.reference = np.zeros(rows.shape[1], dtype=rows.dtype)
        self.reference = self._offsets(rows)[0].mean(axis=0)
        self.offsets, self.squares, self.nonzero = self._offsets(rows)
        self.columns = np.ascontiguousarray(self.offsets.T)
        self.gamma = gamma if not isinstance(gamma, str) else self._inverse_median()

    def affinities(self, rows: Float) -> Float:
        """Return the kernel between rows and landmarks, (len(rows), n_landmarks)."""
        offsets, squares, nonzero = self._offsets(rows)
        distances = self._distances(offsets, squares)
        apply_kernel(self.kernel, self.gamma, distances, nonzero, self.nonzero)
        return distances

    @functools.cached_property
    def root(self) -> Float:
        """``W^-1/2`` up to a rotation, without the directions of noise."""
        linalg = importlib.import_module("scipy.linalg")
        values, vectors = linalg.eigh(self.among(), check_finite=False)
        kept = values > _CUT * values[-1]
        return vectors[:, kept] / np.sqrt(values[kept])

    def among(self) -> Float:
        """Return the kernel among landmarks, float64."""
        distances = self._distances(self.offsets, self.squares).astype(np.float64)
        np.fill_diagonal(distances, 0.0)
        apply_kernel(self.kernel, self.gamma, distances, self.nonzero, self.nonzero)
        return 0.5 * (distances + distances.T)

    def _offsets(self, rows: Float) -> tuple[Float, Float, Float]:
        rows = np.ascontiguousarray(rows)  # not yet in float32, whose range may be too small
        offsets = np.empty_like(rows)
        squares, nonzero = np.empty(rows.shape[0]), np.empty(rows.shape[0])
        reference = self.reference.astype(rows.dtype)
        dispatch.unit_offsets(rows, reference, offsets, squares, nonzero)
        narrow = np.float32
        return offsets.astype(narrow, copy=False), squares.astype(narrow), nonzero.astype(narrow)

    def _distances(self, offsets: Float, squares: Float) -> Float:
        if self.kernel == "laplacian":
            distances = np.empty((offsets.shape[0], self.offsets.shape[0]), dtype=np.float32)
            dispatch.manhattan_rows(offsets, self.offsets, distances)
            return distances
        distances = offsets @ self.columns
        distances *= -2.0
        distances += squares[:, None]
        distances += self.squares
        return np.maximum(distances, 0.0, out=distances)

    def _inverse_median(self) -> float:
        distances = self._distances(self.offsets, self.squares)
        median = float(np.median(distances[np.triu_indices_from(distances, k=1)]))
        return 1.0 / median if median > np.finfo(np.float32).tiny else 1.0


def choose_landmarks(rows: Float, n_landmarks: int, how: str, rng: np.random.Generator) -> Ids:
    """Return ids of landmarks: a uniform sample, or k-means++ seeds of a larger sample."""
    n_clients = rows.shape[0]
    if how == "uniform":
        return np.sort(rng.choice(n_clients, size=n_landmarks, replace=False))
    pool = np.sort(rng.choice(n_clients, size=min(n_clients, 8 * n_landmarks), replace=False))
    candidates = Landmarks(rows[pool], "rbf", 1.0)
    chosen = np.empty(n_landmarks, dtype=np.int64)
    chosen[0] = rng.integers(pool.size)
    closest = np.full(pool.size, np.inf)
    for i in range(n_landmarks):
        if i:
            mass = closest.copy()
            mass[chosen[:i]] = 0.0  # by rounding, a chosen row may have a distance to itself
            if not mass.sum() > 0:  # all other rows equal chosen rows: choose any of them
                mass = np.ones(pool.size)
                mass[chosen[:i]] = 0.0
            chosen[i] = rng.choice(pool.size, p=mass / mass.sum())
        newest = chosen[i]
        distance = candidates.squares + candidates.squares[newest]
        distance = distance - 2.0 * (candidates.offsets @ candidates.offsets[newest])
        closest = np.minimum(closest, np.maximum(distance, 0.0))
    return np.sort(pool[chosen])


def nystrom_points(
    rows: Float,
    n_coalitions: int,
    rng: np.random.Generator,
    kernel: str = "rbf",
    gamma: float | str = 1.0,
    n_landmarks: int = 500,
    landmarks: str = "uniform",
) -> Float:
    """Embed clients by approximate eigenvectors of their normalised affinity.

    Parameters
    ----------
    rows : array of shape (n_clients, n_features)
    n_coalitions : int
    rng : Generator
        Draws the landmarks and the sample of the m x m problem.
    kernel, gamma
        See `cvrcore.influence`.
    n_landmarks : int
        m, at least n_coalitions.
    landmarks : {"uniform", "kmeans++"}

    Returns
    -------
    ndarray of float32, shape (n_clients, n_coalitions - 1)
    """
    chosen = choose_landmarks(rows, n_landmarks, landmarks, rng)
    near = LandmarkAffinities(Landmarks(rows[chosen], kernel, gamma), rows)
    return near.embed(rows, n_coalitions, rng)


class LandmarkAffinities:
    """Affinities of all clients to landmarks; with `keep`, only changed rows are recomputed.

    Parameters
    ----------
    marks : Landmarks
    rows : array of shape (n_clients, n_features)
    keep : bool
        Whether to hold the (n_clients, n_landmarks) matrix: O(K m) memory.
    """

    def __init__(self, marks: Landmarks, rows: Float, keep: bool = False) -> None:
        self.marks = marks
        self.kept: Float | None = None
        self._points = np.empty((0, 0), dtype=np.float32)  # buffer that `embed` reuses
        if keep:
            self.kept = np.empty((rows.shape[0], marks.offsets.shape[0]), dtype=np.float32)
            self.update(np.arange(rows.shape[0]), rows)

    def update(self, ids: Ids, rows: Float, journal: Journal | None = None) -> None:
        """Recompute the affinities of clients `ids`; `rows` are the rows of all clients."""
        kept = self.kept
        if kept is None:
            return
        if journal is not None:
            journal.rows(ids, kept)

        def fill(start: int, stop: int) -> None:
            kept[ids[start:stop]] = self.marks.affinities(rows[ids[start:stop]])

        with single_blas_thread():
            run_chunks(fill, ids.size, _CHUNK)

    def _of(self, rows: Float, start: int, stop: int) -> Float:
        if self.kept is not None:
            return self.kept[start:stop]
        return self.marks.affinities(rows[start:stop])

    def embed(self, rows: Float, n_coalitions: int, rng: np.random.Generator) -> Float:
        """Return points of all clients, float32, (n_clients, n_coalitions - 1).

        The next call overwrites them. A point is a linear map of the client's row of C,
        divided by its degree; see `_solve`.
        """
        n_clients, n_wanted = rows.shape[0], n_coalitions - 1
        n_sampled = min(n_clients, _SAMPLE * self.marks.offsets.shape[0])
        sample = np.sort(rng.choice(n_clients, size=n_sampled, replace=False))
        if self._points.shape != (n_clients, n_wanted):
            self._points = np.empty((n_clients, n_wanted), dtype=np.float32)
        points = self._points
        with single_blas_thread():
            some = self._sampled(rows, sample)
            degree_of, embedding = _solve(self.marks, some, n_clients, n_wanted)

            def embed(start: int, stop: int) -> None:
                near = self._of(rows, start, stop)
                degrees = near @ degree_of
                np.matmul(near, embedding, out=points[start:stop])
                points[start:stop] /= np.maximum(degrees, _least(degrees))[:, None]

            run_chunks(embed, n_clients, _CHUNK)
        return points

    def _sampled(self, rows: Float, sample: Ids) -> Float:
        if self.kept is not None:
            return self.kept[sample]
        near = np.empty((sample.size, self.marks.offsets.shape[0]), dtype=np.float32)

        def fill(start: int, stop: int) -> None:
            near[start:stop] = self.marks.affinities(rows[sample[start:stop]])

        run_chunks(fill, sample.size, _CHUNK)
        return near


def _solve(marks: Landmarks, near: Float, n_clients: int, n_wanted: int) -> tuple[Float, Float]:
    """Return the linear maps from affinities to landmarks to degrees and to coordinates.

    `near` holds the affinities of a sample of clients and is overwritten. With
    ``B = W^-1/2``: ``degree = C g``, ``g = W^-1 C^T 1``; the eigenvectors of
    ``B C^T diag(degree)^-1 C B`` are U with values L, the eigenvectors of the normalised
    affinity are ``degree^-1/2 C B U L^-1/2``, and the embedding divides by ``degree^1/2``
    once more.
    """
    linalg = importlib.import_module("scipy.linalg")
    root = marks.root
    scale = n_clients / near.shape[0]
    total = scale * near.sum(axis=0, dtype=np.float64)
    degree_of = root @ (root.T @ total)
    degrees = near @ degree_of
    near /= np.sqrt(np.maximum(degrees, _least(degrees)))[:, None].astype(np.float32)
    gram = scale * _gram(near, root.astype(np.float32))
    n_found = min(n_wanted + 1, gram.shape[0])
    # All eigenvectors: divide and conquer is faster than a subset of a fifth or more.
    values, vectors = linalg.eigh(gram, driver="evd", check_finite=False)
    # Largest first, without the constant eigenvector; missing coordinates are 0.
    values, vectors = values[::-1][1:n_found], vectors[:, ::-1][:, 1:n_found]
    weights = np.where(values > 0, 1.0 / np.sqrt(np.maximum(values, 1e-300)), 0.0)
    embedding = np.zeros((root.shape[0], n_wanted))
    embedding[:, : n_found - 1] = root @ (vectors * weights)
    return degree_of.astype(np.float32), embedding.astype(np.float32)


def _gram(block: Float, root: Float) -> Float:
    """Return ``root^T block^T block root`` in float64, summed over chunks of rows.

    Rows are multiplied by `root` (W^-1/2) first: applied to the Gram matrix afterwards,
    W^-1/2 would amplify float32 rounding above the small eigenvalues of flat affinities.
    """
    n_tasks = 8
    chunk = -(-block.shape[0] // n_tasks)
    sums = np.zeros((n_tasks, root.shape[1], root.shape[1]))

    def add(start: int, stop: int) -> None:
        for first in range(start, stop, 2 * _CHUNK):
            part = block[first : min(first + 2 * _CHUNK, stop)] @ root
            sums[start // chunk] += part.T @ part

    run_chunks(add, block.shape[0], chunk)
    return sums.sum(axis=0)


def _least(degrees: Float) -> float:
    """Return a positive floor for degrees: approximate degrees may be near or below 0."""
    return 1e-6 * float(np.abs(degrees).mean())
