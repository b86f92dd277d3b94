"""Kernels that sort clients into groups; Cython twin: ``cvrcore_ext/_groups.pyx``."""

from ._jit import njit


@njit
def sort_by_label(labels, kept, order, starts, sizes):
    """Write ids of kept clients into `order` by label, equal labels by id; return how many.

    By counting: no two labels are compared.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
        Below n_labels; those of clients that are not kept may be anything.
    kept : uint8 array of shape (n_clients,)
    order : int64 array of shape (n_clients,)
    starts, sizes : int64 arrays of shape (n_labels,)
        Where the ids of each label begin in `order`, and how many they are.
    """
    for label in range(sizes.shape[0]):
        sizes[label] = 0
    for client in range(labels.shape[0]):
        if kept[client]:
            sizes[labels[client]] += 1
    total = 0
    for label in range(sizes.shape[0]):
        starts[label] = total
        total += sizes[label]
    for client in range(labels.shape[0]):
        if kept[client]:
            order[starts[labels[client]]] = client
            starts[labels[client]] += 1
    for label in range(sizes.shape[0]):
        starts[label] -= sizes[label]
    return total
