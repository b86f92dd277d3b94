"""Kernels that sort clients into groups and pair them; twin: ``cvrcore_ext/_groups.pyx``."""

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


@njit
def pair_clients(labels, first, clients, groups):
    """Write each client that follows a representative, and its coalition; return how many.

    By id. Representatives follow nobody, nor does a coalition that has none.

    Parameters
    ----------
    labels : int64 array of shape (n_clients,)
    first : int64 array of shape (n_coalitions,)
        The representative of each coalition, or -1.
    clients, groups : int64 arrays of shape (n_clients,)
    """
    n_found = 0
    for client in range(labels.shape[0]):
        j = first[labels[client]]
        clients[n_found] = client
        groups[n_found] = labels[client]
        n_found += j >= 0 and j != client  # without a branch: what does not count is overwritten
    return n_found


@njit
def take_pairs(held, asked, reached, clients, others, now, places, begin):
    """Find the place of each pair's sum, with either client, and how many rounds it holds.

    A pair that has none gets the one least asked for of its first client's, which then holds
    no rounds. Places that are taken count as empty from here on.

    Parameters
    ----------
    held : int64 array of shape (n_clients, n_slots)
        With whom a client's sums are, or -1.
    asked, reached : int64 arrays of shape (n_clients, n_slots)
        When a sum was asked for last, and how many rounds it holds.
    clients, others : int64 arrays of shape (n_asked,)
        Nobody is in both.
    now : int
    places, begin : int64 arrays of shape (n_asked,)
        Slots of all clients are counted in a row.
    """
    n_slots = held.shape[1]
    for i in range(clients.shape[0]):
        owner, slot = clients[i], -1
        for s in range(n_slots):
            if held[owner, s] == others[i]:
                slot = s
        if slot < 0:
            for s in range(n_slots):
                if held[others[i], s] == clients[i]:
                    owner, slot = others[i], s
        begin[i] = reached[owner, slot] if slot >= 0 else 0
        if slot < 0:
            slot = 0
            for s in range(1, n_slots):
                if asked[owner, s] < asked[owner, slot]:
                    slot = s
        held[owner, slot] = -1
        asked[owner, slot] = now
        places[i] = owner * n_slots + slot
