"""Cython twin of ``cvrcore/kernels/kmeans.py``: same names, same arithmetic, same bits."""

import numpy as np

from cython cimport floating
from libc.math cimport INFINITY

cdef extern from "kmeans_tiles.h":
    enum: BLOCK
    void distances_f64(
        const double*, Py_ssize_t, Py_ssize_t, const double*, Py_ssize_t, Py_ssize_t, double*
    ) nogil
    void distances_f32(
        const float*, Py_ssize_t, Py_ssize_t, const float*, Py_ssize_t, Py_ssize_t, float*
    ) nogil
    void nearest_f64(const double*, Py_ssize_t, double*, double*) nogil
    void nearest_f32(const float*, Py_ssize_t, float*, float*) nogil
    void moves_f64(
        const double*, Py_ssize_t, const double*, const double*, const double*, double*, double*
    ) nogil
    void moves_f32(
        const float*, Py_ssize_t, const float*, const float*, const float*, float*, float*
    ) nogil
    void exact_distances(const double*, const double*, Py_ssize_t, Py_ssize_t, double*) nogil


cdef void _round_centre(
    const double[:, ::1] centres, Py_ssize_t p, floating[:, ::1] rounded
) noexcept nogil:
    """Copy a centre into the precision of the points."""
    cdef Py_ssize_t j
    for j in range(centres.shape[1]):
        rounded[p, j] = <floating>centres[p, j]


cdef void _block_distances(
    const floating[:, ::1] points, const floating[:, ::1] rounded, Py_ssize_t start,
    Py_ssize_t stop, floating[:, ::1] lanes,
) noexcept nogil:
    """Write squared distances of points start .. stop - 1 to all centres into `lanes`."""
    cdef Py_ssize_t n_dims = points.shape[0], width = points.shape[1], count = stop - start
    cdef Py_ssize_t n_centres = rounded.shape[0]
    if floating is double:
        distances_f64(
            &points[0, start], width, n_dims, &rounded[0, 0], n_centres, count, &lanes[0, 0]
        )
    else:
        distances_f32(
            &points[0, start], width, n_dims, &rounded[0, 0], n_centres, count, &lanes[0, 0]
        )


cdef void _squared_distances(
    const floating[:, ::1] points, const double* centre, Py_ssize_t start, Py_ssize_t stop,
    floating* out,
) noexcept nogil:
    cdef Py_ssize_t n_dims = points.shape[0], width = points.shape[1], i, j = 0
    cdef floating c0, c1, c2, c3, total, difference
    cdef const floating* row
    for i in range(stop - start):
        out[i] = 0.0
    while j + 4 <= n_dims:
        c0, c1 = <floating>centre[j], <floating>centre[j + 1]
        c2, c3 = <floating>centre[j + 2], <floating>centre[j + 3]
        row = &points[j, start]
        for i in range(stop - start):
            total = out[i]
            difference = row[i] - c0
            total += difference * difference
            difference = row[width + i] - c1
            total += difference * difference
            difference = row[2 * width + i] - c2
            total += difference * difference
            difference = row[3 * width + i] - c3
            total += difference * difference
            out[i] = total
        j += 4
    while j < n_dims:
        c0 = <floating>centre[j]
        row = &points[j, start]
        for i in range(stop - start):
            difference = row[i] - c0
            out[i] += difference * difference
        j += 1


cdef void _seed_centres(
    const floating[:, ::1] points, const double[:, ::1] uniforms, double[:, ::1] centres,
    floating[::1] closest, floating[::1] trial, floating[::1] best, double[::1] candidate,
) noexcept nogil:
    cdef Py_ssize_t n_dims = points.shape[0], n_points = points.shape[1]
    cdef Py_ssize_t n_centres = uniforms.shape[0], n_trials = uniforms.shape[1]
    cdef Py_ssize_t first, chosen, i, j, p, t
    cdef double total, lowest, goal, running, potential
    first = min(<Py_ssize_t>(uniforms[0, 0] * n_points), n_points - 1)
    for j in range(n_dims):
        centres[0, j] = points[j, first]
    _squared_distances(points, &centres[0, 0], 0, n_points, &closest[0])
    for p in range(1, n_centres):
        total = 0.0
        for i in range(n_points):
            total += closest[i]
        lowest = INFINITY
        for t in range(n_trials):
            goal = uniforms[p, t] * total
            running = 0.0
            chosen = n_points - 1
            for i in range(n_points):
                running += closest[i]
                if running > goal:
                    chosen = i
                    break
            for j in range(n_dims):
                candidate[j] = points[j, chosen]
            _squared_distances(points, &candidate[0], 0, n_points, &trial[0])
            potential = 0.0
            for i in range(n_points):
                trial[i] = trial[i] if trial[i] < closest[i] else closest[i]
                potential += trial[i]
            if potential < lowest:
                lowest = potential
                for i in range(n_points):
                    best[i] = trial[i]
                for j in range(n_dims):
                    centres[p, j] = candidate[j]
        for i in range(n_points):
            closest[i] = best[i]


cdef void _mean_centres(
    const floating[:, ::1] points, const long long[::1] labels, double[:, ::1] centres,
    long long[::1] sizes,
) noexcept nogil:
    cdef Py_ssize_t n_dims = points.shape[0], n_points = points.shape[1], i, j, p
    for p in range(centres.shape[0]):
        sizes[p] = 0
        for j in range(n_dims):
            centres[p, j] = 0.0
    for i in range(n_points):
        sizes[labels[i]] += 1
    for j in range(n_dims):
        for i in range(n_points):
            centres[labels[i], j] += points[j, i]
    for p in range(centres.shape[0]):
        for j in range(n_dims):
            centres[p, j] /= max(sizes[p], 1)


cdef Py_ssize_t _assign(
    const floating[:, ::1] points, const double[:, ::1] centres, long long[::1] labels,
    floating[::1] closest, floating[:, ::1] rounded, floating[:, ::1] lanes, floating* best,
    floating* choice,
) noexcept nogil:
    cdef Py_ssize_t n_points = points.shape[1], start = 0, stop, i, p, changed = 0
    cdef long long label
    for p in range(centres.shape[0]):
        _round_centre(centres, p, rounded)
    while start < n_points:
        stop = min(start + BLOCK, n_points)
        _block_distances(points, rounded, start, stop, lanes)
        if floating is double:
            nearest_f64(&lanes[0, 0], centres.shape[0], best, choice)
        else:
            nearest_f32(&lanes[0, 0], centres.shape[0], best, choice)
        for i in range(stop - start):
            label = <long long>choice[i]
            closest[start + i] = best[i]
            if labels[start + i] != label:
                labels[start + i] = label
                changed += 1
        start = stop
    return changed


cdef Py_ssize_t _fill_empty(
    long long[::1] labels, floating[::1] closest, long long[::1] sizes
) noexcept nogil:
    cdef Py_ssize_t i, p, farthest, moved = 0
    cdef double distance
    for i in range(labels.shape[0]):
        sizes[labels[i]] += 1
    for p in range(sizes.shape[0]):
        if sizes[p] > 0:
            continue
        farthest = -1
        distance = -1.0
        for i in range(labels.shape[0]):
            if sizes[labels[i]] > 1 and closest[i] > distance:
                farthest = i
                distance = closest[i]
        sizes[labels[farthest]] -= 1
        labels[farthest] = p
        closest[farthest] = 0.0
        sizes[p] = 1
        moved += 1
    return moved


cdef bint _lloyd(
    const floating[:, ::1] points, double[:, ::1] centres, long long[::1] labels,
    long long[::1] sizes, floating[::1] closest, floating[:, ::1] rounded, floating[:, ::1] lanes,
    floating* best, floating* choice, Py_ssize_t max_iter, double goal,
) noexcept nogil:
    cdef Py_ssize_t few = labels.shape[0] // 100, changed, iteration, i, p
    cdef double before = INFINITY, inertia
    for iteration in range(max_iter):
        changed = _assign(points, centres, labels, closest, rounded, lanes, best, choice)
        inertia = 0.0
        for i in range(labels.shape[0]):
            inertia += closest[i]
        if iteration > 0 and inertia - 8.0 * (before - inertia) > goal:
            return False
        before = inertia
        for p in range(sizes.shape[0]):
            sizes[p] = 0
        changed += _fill_empty(labels, closest, sizes)
        _mean_centres(points, labels, centres, sizes)
        if changed <= few:
            break
    return True


cdef void _weigh_moves(double size, floating* join, floating* leave) noexcept nogil:
    """Write the weights of squared distances for a point that joins, or leaves, a cluster."""
    join[0] = <floating>(size / (size + 1.0))
    leave[0] = <floating>(size / (size - 1.0) if size > 1 else 0.0)


cdef void _move_points(
    const floating[:, ::1] points, double[:, ::1] centres, long long[::1] labels,
    long long[::1] sizes, floating[:, ::1] rounded, floating[:, ::1] lanes, floating[:, ::1] weights,
    floating* best, floating* own, double[::1] point, double[::1] exact, double margin,
    Py_ssize_t max_iter,
) noexcept nogil:
    cdef Py_ssize_t n_dims = points.shape[0], n_points = points.shape[1]
    cdef Py_ssize_t n_centres = centres.shape[0]
    cdef Py_ssize_t iteration, moved, start, stop, i, j, p, source, target
    cdef Py_ssize_t few = n_points // 200
    cdef floating[BLOCK] mine
    cdef double lowest, present, cost
    for p in range(n_centres):
        _round_centre(centres, p, rounded)
        _weigh_moves(sizes[p], &weights[0, p], &weights[1, p])
    for iteration in range(max_iter):
        moved = start = 0
        while start < n_points:
            stop = min(start + BLOCK, n_points)
            _block_distances(points, rounded, start, stop, lanes)
            for i in range(BLOCK):
                mine[i] = labels[start + i] if start + i < stop else -1
            if floating is double:
                moves_f64(
                    &lanes[0, 0], n_centres, mine, &weights[0, 0], &weights[1, 0], best, own
                )
            else:
                moves_f32(
                    &lanes[0, 0], n_centres, mine, &weights[0, 0], &weights[1, 0], best, own
                )
            for i in range(stop - start):
                if <double>best[i] >= <double>own[i] * margin:
                    continue
                source = labels[start + i]
                if sizes[source] < 2:
                    continue
                for j in range(n_dims):
                    point[j] = points[j, start + i]
                exact_distances(&point[0], &centres[0, 0], n_dims, n_centres, &exact[0])
                target = source
                lowest = INFINITY
                present = 0.0
                for p in range(n_centres):
                    if p == source:
                        present = sizes[p] / (sizes[p] - 1.0) * exact[p]
                    else:
                        cost = sizes[p] / (sizes[p] + 1.0) * exact[p]
                        if cost < lowest:
                            lowest = cost
                            target = p
                if lowest >= present * margin:
                    continue
                for j in range(n_dims):
                    centres[source, j] -= (point[j] - centres[source, j]) / (sizes[source] - 1.0)
                    centres[target, j] += (point[j] - centres[target, j]) / (sizes[target] + 1.0)
                sizes[source] -= 1
                sizes[target] += 1
                _round_centre(centres, source, rounded)
                _round_centre(centres, target, rounded)
                _weigh_moves(sizes[source], &weights[0, source], &weights[1, source])
                _weigh_moves(sizes[target], &weights[0, target], &weights[1, target])
                labels[start + i] = target
                moved += 1
            start = stop
        if moved <= few:
            return


cdef double _inertia(
    const floating[:, ::1] points, const long long[::1] labels, double[:, ::1] centres,
    long long[::1] sizes,
) noexcept nogil:
    cdef Py_ssize_t n_points = points.shape[1], start = 0, count, i, j
    cdef double total = 0.0, difference
    cdef double[BLOCK] distances
    _mean_centres(points, labels, centres, sizes)
    while start < n_points:
        count = min(<Py_ssize_t>BLOCK, n_points - start)
        for i in range(count):
            distances[i] = 0.0
        for j in range(points.shape[0]):  # in memory order
            for i in range(count):
                difference = <double>points[j, start + i] - centres[labels[start + i], j]
                distances[i] += difference * difference
        for i in range(count):
            total += distances[i]
        start += count
    return total


cdef void _number_by_appearance(long long[::1] labels, long long[::1] names) noexcept nogil:
    cdef Py_ssize_t i
    cdef long long found = 0
    for i in range(names.shape[0]):
        names[i] = -1
    for i in range(labels.shape[0]):
        if names[labels[i]] < 0:
            names[labels[i]] = found
            found += 1
        labels[i] = names[labels[i]]


def kmeans(
    const floating[:, ::1] points,
    const long long[::1] start,
    const double[:, :, ::1] uniforms,
    const double[:, ::1] swaps,
    Py_ssize_t max_iter,
    long long[::1] labels,
):
    """Cluster points; keep the best of a warm start, seeded restarts and random swaps."""
    cdef Py_ssize_t n_dims = points.shape[0], n_points = points.shape[1]
    cdef Py_ssize_t n_restarts = uniforms.shape[0], n_centres = uniforms.shape[1]
    cdef Py_ssize_t n_warm = 1 if start.shape[0] > 0 else 0, attempt, i, j, p
    cdef double[:, ::1] centres = np.empty((n_centres, n_dims))
    cdef long long[::1] sizes = np.zeros(n_centres, dtype=np.int64)
    cdef long long[::1] trial_labels = np.empty(n_points, dtype=np.int64)
    cdef str real = "float64" if floating is double else "float32"
    cdef floating[::1] closest = np.empty(n_points, dtype=real)
    cdef floating[::1] lane = np.empty(n_points, dtype=real)
    cdef floating[::1] scratch = np.empty(n_points, dtype=real)
    cdef floating[:, ::1] rounded = np.empty((n_centres, n_dims), dtype=real)
    cdef floating[:, ::1] lanes = np.empty((n_centres, BLOCK), dtype=real)
    cdef floating[:, ::1] weights = np.empty((2, n_centres), dtype=real)
    cdef double[::1] point = np.empty(n_dims), exact = np.empty(n_centres)
    cdef floating[BLOCK] best
    cdef floating[BLOCK] own
    cdef double lowest = INFINITY, inertia, margin = 1.0 - 16.0 * (
        2.220446049250313e-16 if floating is double else 1.1920928955078125e-07
    )
    with nogil:
        for attempt in range(n_warm + n_restarts + swaps.shape[0]):
            if attempt < n_warm:
                for i in range(n_points):
                    trial_labels[i] = start[i]
                _mean_centres(points, trial_labels, centres, sizes)
            elif attempt >= n_warm + n_restarts:
                _mean_centres(points, labels, centres, sizes)
                j = attempt - n_warm - n_restarts
                p = min(<Py_ssize_t>(swaps[j, 0] * n_centres), n_centres - 1)
                i = min(<Py_ssize_t>(swaps[j, 1] * n_points), n_points - 1)
                for j in range(n_dims):
                    centres[p, j] = points[j, i]
                for i in range(n_points):
                    trial_labels[i] = labels[i]
            else:
                _seed_centres(
                    points, uniforms[attempt - n_warm], centres, closest, lane, scratch, point
                )
                for i in range(n_points):
                    trial_labels[i] = -1
            if not _lloyd(
                points, centres, trial_labels, sizes, closest, rounded, lanes, best, own,
                max_iter, lowest,
            ):
                continue
            _move_points(
                points, centres, trial_labels, sizes, rounded, lanes, weights, best, own, point,
                exact, margin, max_iter,
            )
            inertia = _inertia(points, trial_labels, centres, sizes)
            if inertia < lowest or attempt == 0:
                lowest = inertia
                for i in range(n_points):
                    labels[i] = trial_labels[i]
        _number_by_appearance(labels, sizes)
    return lowest
