"""Cython twin of ``cvrcore/_groups.py``: same names, same arithmetic, same bits."""


def sort_by_label(
    const long long[::1] labels,
    const unsigned char[::1] kept,
    long long[::1] order,
    long long[::1] starts,
    long long[::1] sizes,
):
    """Write ids of kept clients into order by label, equal labels by id; return how many."""
    cdef Py_ssize_t n_clients = labels.shape[0], n_labels = sizes.shape[0], client, label
    cdef long long total = 0
    with nogil:
        for label in range(n_labels):
            sizes[label] = 0
        for client in range(n_clients):
            if kept[client]:
                sizes[labels[client]] += 1
        for label in range(n_labels):
            starts[label] = total
            total += sizes[label]
        for client in range(n_clients):
            if kept[client]:
                order[starts[labels[client]]] = client
                starts[labels[client]] += 1
        for label in range(n_labels):
            starts[label] -= sizes[label]
    return total


def pair_clients(
    const long long[::1] labels,
    const long long[::1] first,
    long long[::1] clients,
    long long[::1] groups,
):
    """Write each client that follows a representative, and its coalition; return how many."""
    cdef Py_ssize_t client, n_found = 0
    cdef long long j
    with nogil:
        for client in range(labels.shape[0]):
            j = first[labels[client]]
            clients[n_found] = client
            groups[n_found] = labels[client]
            n_found += j >= 0 and j != client
    return n_found


def take_pairs(
    long long[:, ::1] held,
    long long[:, ::1] asked,
    const long long[:, ::1] reached,
    const long long[::1] clients,
    const long long[::1] others,
    long long now,
    long long[::1] places,
    long long[::1] begin,
):
    """Find the place of each pair's sum, with either client, and how many rounds it holds."""
    cdef Py_ssize_t n_slots = held.shape[1], i, s, slot, owner
    with nogil:
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
