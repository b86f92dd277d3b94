"""Cython twin of ``cvrcore/_affinity.py``: same names, same arithmetic, same bits."""

from cython cimport floating
from libc.math cimport fabs


def manhattan_rows(
    const floating[:, ::1] rows, const floating[:, ::1] models, double[:, ::1] distances
):
    """Write ||rows_i - models_k||_1 into distances[i, k]."""
    cdef Py_ssize_t n_rows = rows.shape[0], n_features = rows.shape[1], i, k, d, lane
    cdef Py_ssize_t blocks = n_features // 8 * 8
    cdef double[8] lanes
    with nogil:
        for i in range(n_rows):
            for k in range(models.shape[0]):
                for lane in range(8):
                    lanes[lane] = 0.0
                for d in range(0, blocks, 8):
                    for lane in range(8):
                        lanes[lane] += fabs(
                            <double>rows[i, d + lane] - <double>models[k, d + lane]
                        )
                for d in range(blocks, n_features):
                    lanes[d - blocks] += fabs(<double>rows[i, d] - <double>models[k, d])
                distances[i, k] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
                    (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
                )


def normalise_rows(
    const double[:, ::1] affinity,
    const double[::1] inverse_root,
    const double[::1] lead,
    Py_ssize_t start,
    Py_ssize_t stop,
    floating[:, ::1] out,
):
    """Write rows start .. stop - 1 of S A S - lead lead^T into out, in one pass."""
    cdef Py_ssize_t i, j
    cdef double scale, weight
    with nogil:
        for i in range(start, stop):
            scale = inverse_root[i]
            weight = lead[i]
            for j in range(affinity.shape[1]):
                out[i, j] = <floating>(
                    affinity[i, j] * (scale * inverse_root[j]) - weight * lead[j]
                )
