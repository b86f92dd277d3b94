"""Cython twin of ``cvrcore/kernels/pivotal.py``: same names, same arithmetic, same bits."""

import numpy as np

from libc.math cimport INFINITY, fabs, rint, sqrtf


cdef struct Found:
    float distance  # squared
    long long point  # -1 if there is none


cdef void _select(
    long long* order, float* keys, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t middle
) noexcept nogil:
    """Reorder order[start:stop] so that keys before `middle` are at most those after it."""
    cdef Py_ssize_t low = start, high = stop - 1, i, j
    cdef float pivot, key
    cdef long long moved
    while low < high:
        pivot = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                key, keys[i] = keys[i], keys[j]
                keys[j] = key
                moved, order[i] = order[i], order[j]
                order[j] = moved
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


def build_tree(
    const float[:, ::1] points,
    Py_ssize_t n_box,
    long long[::1] order,
    long long[:, ::1] starts,
    float[:, :, ::1] boxes,
):
    """Sort points into the leaves of a k-d tree."""
    cdef Py_ssize_t n = points.shape[0], n_nodes = boxes.shape[0]
    cdef Py_ssize_t node, start, stop, middle, left, widest, p, d
    cdef float value, width
    cdef float[::1] keys = np.empty(n, dtype=np.float32)
    with nogil:
        starts[0, 0], starts[0, 1] = 0, n
        for node in range(n_nodes):
            start, stop = starts[node, 0], starts[node, 1]
            for d in range(n_box):
                boxes[node, 0, d], boxes[node, 1, d] = INFINITY, -INFINITY
            for p in range(start, stop):
                for d in range(n_box):
                    value = points[order[p], d]
                    if value < boxes[node, 0, d]:
                        boxes[node, 0, d] = value
                    if value > boxes[node, 1, d]:
                        boxes[node, 1, d] = value
            left = 2 * node + 1
            if left >= n_nodes:
                continue
            widest, width = 0, -1.0
            for d in range(n_box):
                if boxes[node, 1, d] - boxes[node, 0, d] > width:
                    widest, width = d, boxes[node, 1, d] - boxes[node, 0, d]
            middle = (start + stop) >> 1
            for p in range(start, stop):
                keys[p] = points[order[p], widest]
            _select(&order[0], &keys[0], start, stop, middle)
            starts[left, 0], starts[left, 1] = start, middle
            starts[left + 1, 0], starts[left + 1, 1] = middle, stop


cdef float _outside(
    const float[:, :, ::1] boxes, Py_ssize_t node, const float* point
) noexcept nogil:
    """Return the squared distance of a point from the box of a node."""
    cdef Py_ssize_t d
    cdef float total = 0.0, below, above, gap
    for d in range(boxes.shape[2]):
        below = boxes[node, 0, d] - point[d]
        above = point[d] - boxes[node, 1, d]
        gap = below if below > above else above
        if not gap > 0.0:
            gap = 0.0
        total += gap * gap
    return total


cdef void _scan(
    const float[:, ::1] points, const long long* slots, Py_ssize_t start, Py_ssize_t count,
    long long own, Found* best,
) noexcept nogil:
    """Update the least squared distance to the undecided points of a leaf, and whose it is."""
    cdef Py_ssize_t n_features = points.shape[1], p, d, stop
    cdef const float* mine = &points[own, 0]
    cdef const float* other
    cdef float total, gap
    for p in range(start, start + count):
        if slots[p] == own:
            continue
        other = &points[slots[p], 0]
        total = 0.0
        d = 0
        while d < n_features:
            stop = d + 16 if d + 16 < n_features else n_features
            while d < stop:
                gap = mine[d] - other[d]
                total += gap * gap
                d += 1
            if total >= best.distance:
                break
        if total < best.distance:
            best.distance, best.point = total, slots[p]


cdef Found _nearest(
    const float[:, ::1] points, const long long* slots, const long long[:, ::1] starts,
    const long long* counts, const float[:, :, ::1] boxes, long long own, Py_ssize_t leaf,
    long long budget,
) noexcept nogil:
    """Return the nearest undecided point of `own`: exact, or the best of `budget` points."""
    cdef Py_ssize_t n_nodes = boxes.shape[0], node = leaf, sibling, current, left, first, second
    cdef Py_ssize_t top, p
    cdef long long seen = counts[leaf] - 1
    cdef Py_ssize_t stack[128]
    cdef const float* point = &points[own, 0]
    cdef Found best
    best.distance, best.point = INFINITY, -1
    _scan(points, slots, starts[leaf, 0], counts[leaf], own, &best)
    while node > 0:
        if seen >= budget and best.point >= 0:
            break
        sibling = node + 1 if node & 1 else node - 1
        node = (node - 1) >> 1
        if counts[sibling] == 0 or _outside(boxes, sibling, point) >= best.distance:
            continue
        stack[0] = sibling
        top = 1
        while top > 0:
            top -= 1
            current = stack[top]
            if _outside(boxes, current, point) >= best.distance:
                continue
            left = 2 * current + 1
            if left >= n_nodes:
                _scan(points, slots, starts[current, 0], counts[current], own, &best)
                seen += counts[current]
                if seen >= budget and best.point >= 0:
                    break
                continue
            first, second = left, left + 1
            if _outside(boxes, first, point) > _outside(boxes, second, point):
                first, second = second, first
            if counts[second] > 0:
                stack[top] = second
                top += 1
            if counts[first] > 0:  # the nearer child is searched first
                stack[top] = first
                top += 1
    if best.point < 0:
        # Distances that overflow, or are equal to infinity: any undecided point will do.
        for node in range(n_nodes >> 1, n_nodes):
            for p in range(starts[node, 0], starts[node, 0] + counts[node]):
                if slots[p] != own:
                    best.point = slots[p]
                    return best
    return best


def local_pivotal(
    const float[:, ::1] points,
    double[::1] inclusion,
    const double[:, ::1] uniforms,
    long long budget,
    const long long[:, ::1] starts,
    const float[:, :, ::1] boxes,
    bint settle,
):
    """Decide who is in the sample: inclusion probabilities become 0 or 1, in place."""
    cdef Py_ssize_t n = points.shape[0], n_nodes = boxes.shape[0]
    cdef Py_ssize_t node, p, end, left = n, step = 0, turn
    cdef long long i, j, gone, last, moved
    cdef double total = 0.0, a, b, u, rest, lost
    cdef Found found
    cdef long long[::1] slots = np.arange(n, dtype=np.int64)  # slots[place[i]] == i
    cdef long long[::1] place = np.arange(n, dtype=np.int64)
    cdef long long[::1] alive = np.arange(n, dtype=np.int64)  # alive[rank[i]] == i
    cdef long long[::1] rank = np.arange(n, dtype=np.int64)
    cdef long long[::1] counts = np.empty(n_nodes, dtype=np.int64)
    cdef long long[::1] leaf_of = np.empty(n, dtype=np.int64)
    with nogil:
        for node in range(n_nodes):
            counts[node] = starts[node, 1] - starts[node, 0]
            if 2 * node + 1 >= n_nodes:
                for p in range(starts[node, 0], starts[node, 1]):
                    leaf_of[p] = node
        while left > 1:
            i = alive[<Py_ssize_t>(uniforms[0, step] * left)]
            found = _nearest(points, &slots[0], starts, &counts[0], boxes, i, leaf_of[i], budget)
            j = found.point
            total += sqrtf(found.distance)
            a, b = inclusion[i], inclusion[j]
            u = uniforms[1, step]
            step += 1
            if a + b < 1.0:
                rest, lost = a + b, 0.0
                if u * (a + b) < a:
                    i, j = j, i  # the first of the pair is decided
            else:
                rest, lost = a + b - 1.0, 1.0
                if u * (2.0 - a - b) >= 1.0 - b:
                    i, j = j, i
            inclusion[i], inclusion[j] = lost, rest
            for turn in range(2):
                gone = i if turn == 0 else j
                if turn == 1 and 0.0 < rest < 1.0:
                    break
                left -= 1
                last = alive[left]
                alive[rank[gone]] = last
                rank[last] = rank[gone]
                node = leaf_of[gone]
                end = starts[node, 0] + counts[node] - 1
                moved = slots[end]
                slots[place[gone]] = moved
                place[moved] = place[gone]
                slots[end] = gone
                place[gone] = end
                while True:
                    counts[node] -= 1
                    if node == 0:
                        break
                    node = (node - 1) >> 1
        if left == 1:
            i = alive[0]
            rest = inclusion[i]
            if fabs(rest - rint(rest)) < 1e-6:  # the probabilities sum to a whole number
                inclusion[i] = rint(rest)
            elif settle:
                inclusion[i] = 1.0 if uniforms[1, step] < rest else 0.0
    return total
