"""Kernels for k-means with restarts; Cython twin: ``cvrcore_ext/_kmeans.pyx``.

Points come transposed, (n_dims, n_points), so that inner loops run over points: long,
contiguous, and vectorised without reordering a sum. Lloyd's iteration does the coarse
work; single-point moves (Hartigan) then leave optima that Lloyd cannot leave, so that few
restarts give the inertia of many.

Points are float32 or float64, and so is the arithmetic of distances; centres and inertia
are float64. Callers have validated shapes and dtypes; random numbers come in as arrays.
"""

import numpy as np

from ._jit import njit

BLOCK = 64


@njit
def _squared_distances(points, centre, start, stop, out):
    """Write squared distances of points start .. stop - 1 to `centre` into `out`."""
    real = points.dtype.type
    n_dims = points.shape[0]
    for i in range(stop - start):
        out[i] = 0.0
    j = 0
    while j + 4 <= n_dims:  # four dimensions a pass: fewer loads and stores of `out`
        c0, c1 = real(centre[j]), real(centre[j + 1])
        c2, c3 = real(centre[j + 2]), real(centre[j + 3])
        for i in range(stop - start):
            total = out[i]
            difference = points[j, start + i] - c0
            total += difference * difference
            difference = points[j + 1, start + i] - c1
            total += difference * difference
            difference = points[j + 2, start + i] - c2
            total += difference * difference
            difference = points[j + 3, start + i] - c3
            total += difference * difference
            out[i] = total
        j += 4
    while j < n_dims:
        c0 = real(centre[j])
        for i in range(stop - start):
            difference = points[j, start + i] - c0
            out[i] += difference * difference
        j += 1


@njit
def _seed_centres(points, uniforms, centres, closest, trial, best):
    """Choose centres among the points by greedy k-means++.

    ``uniforms[p, l]`` draws the l-th trial for centre p; the trial that leaves the
    smallest inertia wins.
    """
    n_dims, n_points = points.shape
    n_centres, n_trials = uniforms.shape
    first = min(int(uniforms[0, 0] * n_points), n_points - 1)
    for j in range(n_dims):
        centres[0, j] = np.float64(points[j, first])
    _squared_distances(points, centres[0], 0, n_points, closest)
    candidate = np.empty(n_dims)
    for p in range(1, n_centres):
        total = 0.0
        for i in range(n_points):
            total += np.float64(closest[i])
        lowest = np.inf
        for t in range(n_trials):
            goal = uniforms[p, t] * total
            running = 0.0
            chosen = n_points - 1
            for i in range(n_points):
                running += np.float64(closest[i])
                if running > goal:
                    chosen = i
                    break
            for j in range(n_dims):
                candidate[j] = np.float64(points[j, chosen])
            _squared_distances(points, candidate, 0, n_points, trial)
            potential = 0.0
            for i in range(n_points):
                trial[i] = min(trial[i], closest[i])
                potential += np.float64(trial[i])
            if potential < lowest:
                lowest = potential
                for i in range(n_points):
                    best[i] = trial[i]
                for j in range(n_dims):
                    centres[p, j] = candidate[j]
        for i in range(n_points):
            closest[i] = best[i]


@njit
def _mean_centres(points, labels, centres, sizes):
    """Set each centre to the mean of its points, and count them."""
    n_dims, n_points = points.shape
    for p in range(centres.shape[0]):
        sizes[p] = 0
        for j in range(n_dims):
            centres[p, j] = 0.0
    for i in range(n_points):
        sizes[labels[i]] += 1
    for j in range(n_dims):
        for i in range(n_points):
            centres[labels[i], j] += np.float64(points[j, i])
    for p in range(centres.shape[0]):
        for j in range(n_dims):
            centres[p, j] /= max(sizes[p], 1)


@njit
def _assign(points, centres, labels, closest, lane, best, choice):
    """Give every point its nearest centre; return how many labels changed."""
    n_points = points.shape[1]
    changed = 0
    for start in range(0, n_points, BLOCK):
        stop = min(start + BLOCK, n_points)
        for i in range(stop - start):
            best[i] = np.inf
            choice[i] = 0.0
        for p in range(centres.shape[0]):
            _squared_distances(points, centres[p], start, stop, lane)
            number = points.dtype.type(p)
            for i in range(stop - start):
                # A float label: one select of one width, which vectorises.
                nearer = lane[i] < best[i]
                choice[i] = number if nearer else choice[i]
                best[i] = lane[i] if nearer else best[i]
        for i in range(stop - start):
            label = int(choice[i])
            closest[start + i] = best[i]
            if labels[start + i] != label:
                labels[start + i] = label
                changed += 1
    return changed


@njit
def _fill_empty(labels, closest, sizes):
    """Move the point farthest from its centre into each empty cluster."""
    for i in range(labels.shape[0]):
        sizes[labels[i]] += 1
    moved = 0
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


@njit
def _lloyd(points, centres, labels, sizes, closest, lane, best, choice, max_iter, goal):
    """Alternate assignment and means until few labels change; never leave a cluster empty.

    Returns False as soon as the inertia, at eight times its last gain, would still be above
    `goal`: such a start cannot win.
    """
    few = labels.shape[0] // 100
    before = np.inf
    for iteration in range(max_iter):
        changed = _assign(points, centres, labels, closest, lane, best, choice)
        inertia = 0.0
        for i in range(labels.shape[0]):
            inertia += np.float64(closest[i])
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


@njit
def _move_points(points, centres, labels, sizes, lane, best, own, max_iter):
    """Move single points while that lowers the inertia (Hartigan's rule), and many do.

    Taking point x out of cluster a and into b changes the inertia by
    ``n_b / (n_b + 1) |x - c_b|^2 - n_a / (n_a - 1) |x - c_a|^2``.
    """
    n_dims, n_points = points.shape
    n_centres, few = centres.shape[0], points.shape[1] // 200
    point = np.empty(n_dims)
    real = points.dtype.type
    margin = 1.0 - 16.0 * np.finfo(points.dtype).eps  # rounding must not move points for ever
    for _ in range(max_iter):
        moved = 0
        for start in range(0, n_points, BLOCK):
            stop = min(start + BLOCK, n_points)
            # A scan in bulk finds who might gain; few do, and only they are looked at again.
            for i in range(stop - start):
                best[i] = np.inf
                own[i] = 0.0
            for p in range(n_centres):
                _squared_distances(points, centres[p], start, stop, lane)
                join = real(sizes[p] / (sizes[p] + 1.0))
                leave = real(sizes[p] / (sizes[p] - 1.0) if sizes[p] > 1 else 0.0)
                for i in range(stop - start):
                    if labels[start + i] == p:
                        own[i] = leave * lane[i]
                    else:
                        best[i] = min(best[i], join * lane[i])
            for i in range(stop - start):
                if np.float64(best[i]) >= np.float64(own[i]) * margin:
                    continue
                source = labels[start + i]
                if sizes[source] < 2:
                    continue
                for j in range(n_dims):
                    point[j] = np.float64(points[j, start + i])
                target = source
                lowest = np.inf
                present = 0.0
                for p in range(n_centres):
                    distance = 0.0
                    for j in range(n_dims):
                        difference = point[j] - centres[p, j]
                        distance += difference * difference
                    if p == source:
                        present = sizes[p] / (sizes[p] - 1.0) * distance
                    else:
                        cost = sizes[p] / (sizes[p] + 1.0) * distance
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
                labels[start + i] = target
                moved += 1
        if moved <= few:
            return


@njit
def _inertia(points, labels, centres, sizes):
    """Return the sum of squared distances to the clusters' means."""
    _mean_centres(points, labels, centres, sizes)
    total = 0.0
    for i in range(points.shape[1]):
        distance = 0.0
        for j in range(points.shape[0]):
            difference = np.float64(points[j, i]) - centres[labels[i], j]
            distance += difference * difference
        total += distance
    return total


@njit
def _number_by_appearance(labels, names):
    """Rename labels so that they first appear in the order 0, 1, 2, ...; `names` is room."""
    found = 0
    for i in range(names.shape[0]):
        names[i] = -1
    for i in range(labels.shape[0]):
        if names[labels[i]] < 0:
            names[labels[i]] = found
            found += 1
        labels[i] = names[labels[i]]


@njit
def kmeans(points, start, uniforms, swaps, max_iter, labels):
    """Cluster points; keep the best of a warm start, seeded restarts and random swaps.

    A swap takes one centre of the best partition so far away and puts it on a point:
    it leaves a poor optimum at a fraction of a restart's cost.

    Parameters
    ----------
    points : float32 or float64 array of shape (n_dims, n_points), C-contiguous
    start : int64 array of shape (n_points,) or (0,)
        Labels to start from besides the restarts, every cluster non-empty.
    uniforms : float64 array of shape (n_restarts, n_clusters, n_trials)
        Random numbers in [0, 1) for greedy k-means++.
    swaps : float64 array of shape (n_swaps, 2)
        Random numbers in [0, 1): which centre, and which point.
    max_iter : int
        Bound on Lloyd iterations and on passes of single moves, each.
    labels : int64 array of shape (n_points,)
        Output, numbered by first appearance; every cluster non-empty if
        n_points >= n_clusters.

    Returns
    -------
    inertia : float
    """
    n_dims, n_points = points.shape
    n_restarts, n_centres, _ = uniforms.shape
    centres = np.empty((n_centres, n_dims))
    sizes = np.zeros(n_centres, dtype=np.int64)
    trial_labels = np.empty(n_points, dtype=np.int64)
    closest = np.empty(n_points, dtype=points.dtype)
    lane = np.empty(n_points, dtype=points.dtype)
    scratch = np.empty(n_points, dtype=points.dtype)
    best = np.empty(BLOCK, dtype=points.dtype)
    own = np.empty(BLOCK, dtype=points.dtype)
    lowest = np.inf
    n_warm = 1 if start.shape[0] > 0 else 0
    for attempt in range(n_warm + n_restarts + swaps.shape[0]):
        if attempt < n_warm:
            for i in range(n_points):
                trial_labels[i] = start[i]
            _mean_centres(points, trial_labels, centres, sizes)
        elif attempt >= n_warm + n_restarts:
            _mean_centres(points, labels, centres, sizes)
            draw = swaps[attempt - n_warm - n_restarts]
            p = min(int(draw[0] * n_centres), n_centres - 1)
            i = min(int(draw[1] * n_points), n_points - 1)
            for j in range(n_dims):
                centres[p, j] = np.float64(points[j, i])
            for i in range(n_points):
                trial_labels[i] = labels[i]
        else:
            _seed_centres(points, uniforms[attempt - n_warm], centres, closest, lane, scratch)
            for i in range(n_points):
                trial_labels[i] = -1
        if not _lloyd(
            points, centres, trial_labels, sizes, closest, lane, best, own, max_iter, lowest
        ):
            continue
        _move_points(points, centres, trial_labels, sizes, lane, best, own, max_iter)
        inertia = _inertia(points, trial_labels, centres, sizes)
        if inertia < lowest or attempt == 0:
            lowest = inertia
            for i in range(n_points):
                labels[i] = trial_labels[i]
    _number_by_appearance(labels, sizes)
    return lowest
