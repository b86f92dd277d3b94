"""Kernels of the local pivotal method; Cython twin: ``cvrcore_ext/pivotal.pyx``.

Callers have validated shapes and dtypes. Points lie in a balanced k-d tree of leaves with few
points: node i has the children 2 i + 1 and 2 i + 2. A decided point leaves its leaf, so that
a search meets undecided points only.
"""

import numpy as np

from .jit import njit


@njit
def _select(order, keys, start, stop, middle):
    """Reorder order[start:stop] so that keys before `middle` are at most those after it."""
    low, high = start, stop - 1
    while low < high:
        pivot = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@njit
def build_tree(points, n_box, order, starts, boxes):
    """Sort points into the leaves of a k-d tree.

    Parameters
    ----------
    points : float32 array of shape (n, n_features)
    n_box : int
        Leading coordinates that nodes are split by and have bounds of.
    order : int64 array of shape (n,)
        0 .. n - 1 in; on return leaf by leaf.
    starts : int64 array of shape (n_nodes + 1, 2)
        Output: first and last place in `order` of the points below each node.
    boxes : float32 array of shape (n_nodes, 2, n_box)
        Output: least and largest coordinate below each node.
    """
    n = points.shape[0]
    n_nodes = boxes.shape[0]
    keys = np.empty(n, dtype=np.float32)
    starts[0, 0], starts[0, 1] = 0, n
    for node in range(n_nodes):
        start, stop = starts[node, 0], starts[node, 1]
        for d in range(n_box):
            boxes[node, 0, d], boxes[node, 1, d] = np.inf, -np.inf
        for p in range(start, stop):
            for d in range(n_box):
                value = points[order[p], d]
                boxes[node, 0, d] = min(boxes[node, 0, d], value)
                boxes[node, 1, d] = max(boxes[node, 1, d], value)
        left = 2 * node + 1
        if left >= n_nodes:
            continue
        widest, width = 0, np.float32(-1.0)
        for d in range(n_box):
            if boxes[node, 1, d] - boxes[node, 0, d] > width:
                widest, width = d, boxes[node, 1, d] - boxes[node, 0, d]
        middle = (start + stop) >> 1
        for p in range(start, stop):
            keys[p] = points[order[p], widest]
        _select(order, keys, start, stop, middle)
        starts[left, 0], starts[left, 1] = start, middle
        starts[left + 1, 0], starts[left + 1, 1] = middle, stop


@njit
def _outside(box, point):
    """Return the squared distance of a point from a box."""
    total = np.float32(0.0)
    for d in range(box.shape[1]):
        below = box[0, d] - point[d]
        above = point[d] - box[1, d]
        gap = max(below, above, np.float32(0.0))
        total += gap * gap
    return total


@njit
def _scan(points, slots, start, count, own, best, nearest):
    """Return the least squared distance to the undecided points of a leaf, and whose it is."""
    n_features = points.shape[1]
    for p in range(start, start + count):
        other = slots[p]
        if other == own:
            continue
        total = np.float32(0.0)
        d = 0
        while d < n_features:
            stop = min(d + 16, n_features)
            while d < stop:
                gap = points[own, d] - points[other, d]
                total += gap * gap
                d += 1
            if total >= best:
                break
        if total < best:
            best, nearest = total, other
    return best, nearest


@njit
def _nearest(points, slots, starts, counts, boxes, own, leaf, budget, stack):
    """Return the nearest undecided point of `own`: exact, or the best of `budget` points."""
    n_nodes = boxes.shape[0]
    best, nearest = np.float32(np.inf), -1
    best, nearest = _scan(points, slots, starts[leaf, 0], counts[leaf], own, best, nearest)
    seen = counts[leaf] - 1
    node = leaf
    point = points[own]
    while node > 0:
        if seen >= budget and nearest >= 0:
            break
        sibling = node + 1 if node & 1 else node - 1
        node = (node - 1) >> 1
        if counts[sibling] == 0 or _outside(boxes[sibling], point) >= best:
            continue
        stack[0] = sibling
        top = 1
        while top > 0:
            top -= 1
            current = stack[top]
            if _outside(boxes[current], point) >= best:
                continue
            left = 2 * current + 1
            if left >= n_nodes:
                count = counts[current]
                best, nearest = _scan(points, slots, starts[current, 0], count, own, best, nearest)
                seen += count
                if seen >= budget and nearest >= 0:
                    break
                continue
            first, second = left, left + 1
            if _outside(boxes[first], point) > _outside(boxes[second], point):
                first, second = second, first
            if counts[second] > 0:
                stack[top] = second
                top += 1
            if counts[first] > 0:  # the nearer child is searched first
                stack[top] = first
                top += 1
    if nearest < 0:
        # Distances that overflow, or are equal to infinity: any undecided point will do.
        for node in range(n_nodes >> 1, n_nodes):
            for p in range(starts[node, 0], starts[node, 0] + counts[node]):
                if slots[p] != own:
                    return slots[p], best
    return nearest, best


@njit
def local_pivotal(points, inclusion, uniforms, budget, starts, boxes, settle):
    """Decide who is in the sample: inclusion probabilities become 0 or 1, in place.

    A random undecided point meets its nearest undecided neighbour; one of the two is decided,
    the other takes up the rest of their probabilities (Grafstrom, Lundstrom and Schelin,
    2012, their second variant). Inclusion is exact whatever the pairs are.

    Parameters
    ----------
    points : float32 array of shape (n, n_features)
        In the order of the leaves.
    inclusion : float64 array of shape (n,)
        Strictly between 0 and 1.
    uniforms : float64 array of shape (2, n)
    budget : int
        Points that a search looks at before it settles for the nearest so far.
    starts, boxes
        Of `build_tree`.
    settle : bool
        Whether the last point is decided too, where the probabilities do not sum to a whole
        number; otherwise it keeps the rest of the probability.

    Returns
    -------
    float
        Sum of the distances of all pairs.
    """
    n = points.shape[0]
    n_nodes = boxes.shape[0]
    slots, place = np.arange(n), np.arange(n)  # slots[place[i]] == i
    alive, rank = np.arange(n), np.arange(n)  # alive[rank[i]] == i
    counts = np.empty(n_nodes, dtype=np.int64)
    leaf_of = np.empty(n, dtype=np.int64)
    for node in range(n_nodes):
        counts[node] = starts[node, 1] - starts[node, 0]
        if 2 * node + 1 >= n_nodes:
            for p in range(starts[node, 0], starts[node, 1]):
                leaf_of[p] = node
    stack = np.empty(128, dtype=np.int64)
    total = 0.0
    left = n
    step = 0
    while left > 1:
        i = alive[int(uniforms[0, step] * left)]
        j, distance = _nearest(points, slots, starts, counts, boxes, i, leaf_of[i], budget, stack)
        total += np.sqrt(distance)
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
            alive[rank[gone]], rank[last] = last, rank[gone]
            node = leaf_of[gone]
            end = starts[node, 0] + counts[node] - 1
            moved = slots[end]
            slots[place[gone]], place[moved] = moved, place[gone]
            slots[end], place[gone] = gone, end
            while True:
                counts[node] -= 1
                if node == 0:
                    break
                node = (node - 1) >> 1
    if left == 1:
        i = alive[0]
        rest = inclusion[i]
        if abs(rest - round(rest)) < 1e-6:  # the probabilities sum to a whole number
            inclusion[i] = float(round(rest))
        elif settle:
            inclusion[i] = 1.0 if uniforms[1, step] < rest else 0.0
    return total
