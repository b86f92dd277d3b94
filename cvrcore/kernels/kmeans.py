"""k-means with restarts: points in, labels out; Cython twin: ``cvrcore_ext/kmeans.pyx``.

Points come transposed, (n_dims, n_points), and are copied into tiles of BLOCK points. The inner
loops run over the points of a tile: a fixed length, which vectorises without reordering a sum.
Lloyd's iteration does the coarse work; single-point moves (Hartigan) then leave optima that
Lloyd cannot leave, so that few restarts give the inertia of many.

Points are float32 or float64, and so is the arithmetic of distances; centres and inertia
are float64. Callers have validated shapes and dtypes; random numbers come in as arrays.

`kmeans` itself is plain Python and allocates all arrays: Numba compiles a helper again inside
each compiled caller, and allocation is slow to compile.
"""

import numpy as np

from .jit import njit

BLOCK = 64


@njit
def _squared_distances(tiles, tile, centres, p, out):
    """Write squared distances of the points of a tile to centre p into `out`."""
    for i in range(BLOCK):
        out[i] = 0.0
    for j in range(tiles.shape[1]):
        coordinate = tiles.dtype.type(centres[p, j])
        for i in range(BLOCK):
            difference = tiles[tile, j, i] - coordinate
            out[i] += difference * difference


@njit
def _seed_centres(points, tiles, first, uniforms, restart, centres, closest, trial, best, lane):
    """Choose centres among the points by greedy k-means++, the first being point `first`.

    ``uniforms[restart, p, t]`` draws the t-th trial for centre p; the trial that leaves the
    smallest inertia wins.
    """
    n_dims, n_points = points.shape
    n_trials = 1
    chosen = winner = first
    total = 0.0
    for i in range(n_points):
        closest[i] = np.inf
    for p in range(centres.shape[0]):
        lowest = np.inf
        for t in range(n_trials):
            if p > 0:
                goal = uniforms[restart, p, t] * total
                running = 0.0
                chosen = n_points - 1
                for i in range(n_points):
                    running += np.float64(closest[i])
                    if running > goal:
                        chosen = i
                        break
            for j in range(n_dims):
                centres[p, j] = points[j, chosen]
            potential = 0.0
            for tile in range(tiles.shape[0]):
                _squared_distances(tiles, tile, centres, p, lane)
                i = tile * BLOCK
                for k in range(min(BLOCK, n_points - i)):
                    trial[i] = min(lane[k], closest[i])
                    potential += np.float64(trial[i])
                    i += 1
            if potential < lowest:
                lowest = potential
                winner = chosen
                for i in range(n_points):
                    best[i] = trial[i]
        for i in range(n_points):
            closest[i] = best[i]
        for j in range(n_dims):
            centres[p, j] = points[j, winner]
        total = lowest
        n_trials = uniforms.shape[2]


@njit
def _mean_centres(points, labels, sizes, centres):
    """Set each centre to the mean of its points; `sizes` holds the number of points."""
    n_dims, n_points = points.shape
    for p in range(centres.shape[0]):
        for j in range(n_dims):
            centres[p, j] = 0.0
    for j in range(n_dims):
        for i in range(n_points):
            centres[labels[i], j] += points[j, i]
    for p in range(centres.shape[0]):
        if sizes[p] > 1:
            for j in range(n_dims):
                centres[p, j] /= sizes[p]


@njit
def _lloyd(points, tiles, centres, labels, sizes, closest, lane, best, choice, max_iter, goal):
    """Alternate assignment and means until few labels change; never leave a cluster empty.

    Returns False as soon as the inertia, at eight times its last gain, would still be above
    `goal`: such a start cannot win.
    """
    n_centres, n_points = centres.shape[0], points.shape[1]
    before = np.inf
    for iteration in range(max_iter):
        # Assignment: each point gets its nearest centre.
        changed = 0
        inertia = 0.0
        for p in range(n_centres):
            sizes[p] = 0
        for tile in range(tiles.shape[0]):
            for i in range(BLOCK):
                best[i] = np.inf
                choice[i] = 0.0
            for p in range(n_centres):
                _squared_distances(tiles, tile, centres, p, lane)
                number = tiles.dtype.type(p)
                for i in range(BLOCK):
                    # A float label: one select of one width, which vectorises.
                    nearer = lane[i] < best[i]
                    choice[i] = number if nearer else choice[i]
                    best[i] = lane[i] if nearer else best[i]
            i = tile * BLOCK
            for k in range(min(BLOCK, n_points - i)):
                label = np.int64(choice[k])
                sizes[label] += 1
                closest[i] = best[k]
                inertia += np.float64(best[k])
                if labels[i] != label:
                    labels[i] = label
                    changed += 1
                i += 1
        if iteration > 0 and inertia - 8.0 * (before - inertia) > goal:
            return False
        before = inertia
        # Each empty cluster gets the point that is farthest from its centre.
        for p in range(n_centres):
            if sizes[p] > 0:
                continue
            farthest = -1
            distance = -1.0
            for i in range(n_points):
                if sizes[labels[i]] > 1 and closest[i] > distance:
                    farthest = i
                    distance = closest[i]
            sizes[labels[farthest]] -= 1
            labels[farthest] = p
            closest[farthest] = 0.0
            sizes[p] = 1
            changed += 1
        _mean_centres(points, labels, sizes, centres)
        if changed <= n_points // 100:
            break
    return True


@njit
def _move_points(points, tiles, centres, labels, sizes, lane, best, own, point, max_iter, margin):
    """Move single points while that lowers the inertia (Hartigan's rule), and many do.

    Taking point x out of cluster a and into b changes the inertia by
    ``n_b / (n_b + 1) |x - c_b|^2 - n_a / (n_a - 1) |x - c_a|^2``. The first term must be below
    `margin` times the second, or rounding errors would move points for ever.

    Returns the inertia after the last move.
    """
    real = points.dtype.type
    n_dims, n_points = points.shape
    n_centres = centres.shape[0]
    for _ in range(max_iter):
        moved = 0
        for tile in range(tiles.shape[0]):
            start = tile * BLOCK
            count = min(BLOCK, n_points - start)
            # A scan in the precision of the points finds the few that may gain by a move.
            for i in range(BLOCK):
                best[i] = np.inf
            for p in range(n_centres):
                _squared_distances(tiles, tile, centres, p, lane)
                size = np.float64(sizes[p])
                join = real(size / (size + 1.0))
                leave = real(size / (size - 1.0) if size > 1.0 else 0.0)
                for i in range(count):
                    if labels[start + i] == p:
                        own[i] = leave * lane[i]
                    else:
                        best[i] = min(best[i], join * lane[i])
            for k in range(count):
                if np.float64(best[k]) >= np.float64(own[k]) * margin:
                    continue
                i = start + k
                source = labels[i]
                if sizes[source] < 2:
                    continue
                for j in range(n_dims):
                    point[j] = points[j, i]
                target = source
                lowest = np.inf
                present = 0.0
                for p in range(n_centres):
                    distance = 0.0
                    for j in range(n_dims):
                        difference = point[j] - centres[p, j]
                        distance += difference * difference
                    size = np.float64(sizes[p])
                    if p == source:
                        present = size / (size - 1.0) * distance
                    else:
                        cost = size / (size + 1.0) * distance
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
                labels[i] = target
                moved += 1
        if moved <= n_points // 200:
            break
    _mean_centres(points, labels, sizes, centres)
    inertia = 0.0
    for i in range(n_points):
        distance = 0.0
        for j in range(n_dims):
            difference = np.float64(points[j, i]) - centres[labels[i], j]
            distance += difference * difference
        inertia += distance
    return inertia


@njit
def _number_by_appearance(labels, names):
    """Rename labels so that they first appear in the order 0, 1, 2, ...; `names` is scratch."""
    found = 0
    for p in range(names.shape[0]):
        names[p] = -1
    for i in range(labels.shape[0]):
        label = labels[i]
        if names[label] < 0:
            names[label] = found
            found += 1
        labels[i] = names[label]


def _tiles(points):
    """Copy points into tiles of shape (n_tiles, n_dims, BLOCK), the last one padded with 0."""
    n_dims, n_points = points.shape
    tiles = np.zeros((-(-n_points // BLOCK), n_dims, BLOCK), dtype=points.dtype)
    for tile in range(tiles.shape[0]):
        part = points[:, tile * BLOCK : (tile + 1) * BLOCK]
        tiles[tile, :, : part.shape[1]] = part
    return tiles


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
    tiles = _tiles(points)
    centres, point = np.empty((n_centres, n_dims)), np.empty(n_dims)
    sizes, found = np.empty(n_centres, dtype=np.int64), np.empty(n_points, dtype=np.int64)
    closest, trial, scratch = np.empty((3, n_points), dtype=points.dtype)
    lane, best, own = np.empty((3, BLOCK), dtype=points.dtype)
    margin = 1.0 - 16.0 * float(np.finfo(points.dtype).eps)
    lowest = np.inf
    n_warm = 1 if start.shape[0] > 0 else 0
    for attempt in range(n_warm + n_restarts + swaps.shape[0]):
        restart = attempt - n_warm
        if 0 <= restart < n_restarts:
            first = min(int(uniforms[restart, 0, 0] * n_points), n_points - 1)
            _seed_centres(
                points, tiles, first, uniforms, restart, centres, closest, trial, scratch, lane
            )
            found[:] = -1
        else:
            found[:] = start if attempt < n_warm else labels
            sizes[:] = np.bincount(found, minlength=n_centres)
            _mean_centres(points, found, sizes, centres)
        if restart >= n_restarts:
            draw = swaps[restart - n_restarts]
            p = min(int(draw[0] * n_centres), n_centres - 1)
            centres[p] = points[:, min(int(draw[1] * n_points), n_points - 1)]
        if not _lloyd(
            points, tiles, centres, found, sizes, closest, lane, best, own, max_iter, lowest
        ):
            continue
        inertia = _move_points(
            points, tiles, centres, found, sizes, lane, best, own, point, max_iter, margin
        )
        if inertia < lowest or attempt == 0:
            lowest = inertia
            labels[:] = found
    _number_by_appearance(labels, sizes)
    return lowest
