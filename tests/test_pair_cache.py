"""Pairs of clients, the LRU cache of their sums, and memory that is reserved."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from problems import append, entries

from cvrcore.covariance.pairs import CACHED_PAIRS, PairCache, Pairs
from cvrcore.covariance.residual_log import BLOCK
from cvrcore.covariance.store import CovarianceStore


def test_pairs_are_the_clients_that_a_representative_predicts():
    labels, first = np.array([1, 0, 2, 1, 0, 1, 2]), np.array([4, 0, -1])
    pairs = Pairs.of(labels, first)
    found = dict(zip(pairs.clients.tolist(), pairs.others.tolist(), strict=True))
    assert found == {1: 4, 3: 0, 5: 0}
    assert_array_equal(pairs.groups, labels[pairs.clients])
    assert sorted(pairs.unpredicted) == [0, 2, 4, 6]  # representatives, and a coalition without one
    assert_array_equal(pairs.clients, [1, 3, 5])
    other = Pairs.of(1 - labels.clip(0, 1), np.array([0, 1]))
    assert_array_equal(other.clients, [2, 3, 4, 5, 6])  # by id, not by coalition


def test_sums_without_commit_are_computed_again():
    """A round that was cut off in the middle leaves nothing that a later one would go on from."""
    rng = np.random.default_rng(8)
    store = CovarianceStore(6, 3, "factored", np.float64)
    twin = CovarianceStore(6, 3, "factored", np.float64)
    representative = np.array([0, 0, 0, 3, 3, 3])

    def check():
        ours, theirs = entries(store, representative), entries(twin, representative)
        assert_array_equal(ours[[1, 2, 4, 5]], theirs[[1, 2, 4, 5]])

    for step in range(24):
        residual = rng.normal(size=(6, 3))
        append(store, residual, 1 / (step + 2))
        append(twin, residual, 1 / (step + 2))
        check()
    pairs = Pairs.of(representative, np.append(np.arange(6), -1))
    store.prepare(pairs)
    store.read(pairs, 0, pairs.clients.size).sums[:] += 1.0  # and no `commit`
    check()


class Coalitions:
    """A store asked for pairs of fixed coalitions, beside one that keeps no sums."""

    def __init__(self, n_clients=30, n_features=5, n_groups=3):
        self.rng, self.steps = np.random.default_rng(3), 0
        self.labels = np.arange(n_clients) % n_groups
        self.store = CovarianceStore(n_clients, n_features, "factored", "float64")
        self.plain = CovarianceStore(n_clients, n_features, "factored", "float64")

    def step(self):
        residual = self.rng.normal(size=(self.store.n_clients, self.store.n_features))
        append(self.store, residual, 1 / (self.steps + 2))
        append(self.plain, residual, 1 / (self.steps + 2))
        self.steps += 1

    def check(self, first=None):
        """Ask for the pairs of a representative of each coalition, drawn anew if not given."""
        if first is None:
            first = [self.rng.choice(np.flatnonzero(self.labels == g)) for g in range(3)]
        representative = np.array(first)[self.labels]
        asked = np.flatnonzero(representative != np.arange(self.labels.size))
        ours = entries(self.store, representative)[asked]
        self.plain._cache = None
        assert_array_equal(ours, entries(self.plain, representative)[asked])


def test_cached_sums_equal_sums_over_the_whole_log():
    """Across blocks of residuals, with pairs that come late, return or are evicted."""
    world = Coalitions()
    for step in range(3 * BLOCK):
        world.step()
        world.check()
        if step == BLOCK + 9:
            world.labels = world.rng.permutation(world.labels)
    assert (world.store._cache.others >= 0).any()


def test_a_pair_is_one_pair_whichever_client_represents_the_other(kernels):
    """Against a dictionary, with clients that are followed and follow by turns."""
    rng, n_clients, n_slots = np.random.default_rng(0), 9, 3
    held = np.full((n_clients, n_slots), -1)
    asked, reached = np.zeros((2, n_clients, n_slots), dtype=np.int64)
    last: dict[frozenset, int] = {}
    n_known = 0
    for now in range(1, 300):
        first = rng.choice(n_clients, 2, replace=False)
        clients = np.setdiff1d(np.arange(n_clients), first)[: rng.integers(1, 8)]
        others = first[rng.integers(2, size=clients.size)]
        places, begin = np.empty((2, others.size), dtype=np.int64)
        kernels["lookup_pairs"](held, asked, reached, clients, others, now, places, begin)
        assert len(set(places.tolist())) == others.size  # all places differ
        for k, j, place, n_rounds in zip(clients, others, places, begin, strict=True):
            owner = place // n_slots
            assert owner in (k, j)
            if n_rounds:
                assert n_rounds == last[frozenset((k, j))]
                n_known += 1
            held.ravel()[place], reached.ravel()[place] = k + j - owner, now
            last[frozenset((k, j))] = now
        stored = [frozenset((k, j)) for k in range(n_clients) for j in held[k] if j >= 0]
        assert len(set(stored)) == len(stored)
    assert n_known > 300


def test_a_sum_stays_known_when_the_representative_changes_sides():
    """Stored with client 0, continued while client 0 represents client 1, found again."""
    cache = PairCache(3, 1, np.float64)
    for number, (client, other) in enumerate([(0, 1), (1, 0), (1, 0), (0, 1)], start=1):
        first = np.full(1, other)
        pairs = Pairs(np.array([client]), np.array([0]), first, first)
        assert cache.lookup(pairs, number)[0] == number - 1
        cache.borrow(0, 1, 0.0)
        cache.commit(0, 1, number)


def test_the_least_recently_used_sum_is_evicted():
    n_clients = CACHED_PAIRS + 3
    cache = PairCache(n_clients, 1, np.float64)

    def ask(other, number):
        first = np.full(1, other)
        pairs = Pairs(np.array([0]), np.array([0]), first, first)
        found = cache.lookup(pairs, number)[0]
        cache.borrow(0, 1, 0.0)
        cache.commit(0, 1, number)
        return found

    for number, other in enumerate(range(1, CACHED_PAIRS + 1), start=1):
        assert ask(other, number) == 0
    assert ask(1, 100) == 1  # the oldest no more
    cache.reached[:] = 100  # all brought up to date: that counts for nothing
    ask(n_clients - 1, 101)
    assert ask(1, 102) == 100
    assert ask(2, 103) == 0


@pytest.mark.parametrize("window", [None, BLOCK + 5])
def test_reserved_memory_changes_nothing(window):
    rng, kind = np.random.default_rng(1), "factored" if window is None else "window"
    early, late = (CovarianceStore(4, 3, kind, "float64", window) for _ in range(2))
    early.reserve(BLOCK + 9)
    held = early.nbytes
    for step in range(BLOCK + 9):
        residual = rng.normal(size=(4, 3))
        append(early, residual, 0.2)
        append(late, residual, 0.2)
        assert_array_equal(early.dense(), late.dense())
        if step == 3:
            early.reserve(BLOCK)
            assert_array_equal(early.dense(), late.dense())
    assert early.nbytes == held
    assert [block.shape for block in early.log.blocks] == [block.shape for block in late.log.blocks]


@pytest.mark.parametrize(("kind", "window", "n_clients"), [("window", 64, 50), ("auto", None, 200)])
def test_the_cache_is_dropped_with_the_form_that_it_belongs_to(kind, window, n_clients):
    """A ring buffer that overwrites residuals, and a log that becomes dense."""
    rng = np.random.default_rng(4)
    store = CovarianceStore(n_clients, 2, kind, "float64", window)
    representative = np.repeat(np.arange(0, n_clients, 5), 5)
    asked = np.flatnonzero(representative != np.arange(n_clients))
    used = False
    for step in range(70 if window else 105):
        found = store.scale * entries(store, representative)[asked]
        used |= store._cache is not None
        if step % 13 == 0 or step > 100:
            exact = store.dense()[:, asked, representative[asked]].T
            np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12)
        append(store, rng.normal(size=(n_clients, 2)), 1 / (step + 2))
    assert used
    assert store._cache is None
    assert store.form == ("window" if window else "dense")
