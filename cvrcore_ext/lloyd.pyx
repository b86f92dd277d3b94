"""Cython twin of ``cvrcore/kernels/lloyd.py``: same names, same arithmetic, same bits."""


def nearest_centres(
    const float[:, ::1] products, const float[::1] halves, long long[::1] labels,
    float[::1] closeness,
):
    """Label each point with its centre of largest x . c - |c|^2 / 2; return how many changed."""
    cdef Py_ssize_t i, p, label, changed = 0
    cdef float best, value
    with nogil:
        for i in range(products.shape[0]):
            best = products[i, 0] - halves[0]
            label = 0
            for p in range(1, products.shape[1]):
                value = products[i, p] - halves[p]
                if value > best:
                    best = value
                    label = p
            closeness[i] = best
            if labels[i] != label:
                labels[i] = label
                changed += 1
    return changed


def add_points(
    const float[:, ::1] points, const long long[::1] labels, double[:, ::1] sums,
    long long[::1] sizes,
):
    """Add each point to the sum of its cluster, and count it."""
    cdef Py_ssize_t i, j, label
    with nogil:
        for i in range(points.shape[0]):
            label = labels[i]
            sizes[label] += 1
            for j in range(points.shape[1]):
                sums[label, j] += points[i, j]
