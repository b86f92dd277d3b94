"""Pairs of clients, sums of theirs that are kept, and memory that is taken before its time."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cvrcore import _backend
from cvrcore.history import BLOCK
from cvrcore.pairs import PairCache, Pairs
from cvrcore.store import CovarianceStore


def test_pairs_are_all_who_follow_somebody_else():
    labels, first = np.array([1, 0, 2, 1, 0, 1, 2]), np.array([4, 0, -1])
    pairs = Pairs.of(labels, first)
    found = dict(zip(pairs.clients.tolist(), pairs.others.tolist(), strict=True))
    assert found == {1: 4, 3: 0, 5: 0}
    assert_array_equal(pairs.groups, labels[pairs.clients])
    assert sorted(pairs.alone) == [0, 2, 4, 6]  # representatives, and a coalition without one
    assert_array_equal(pairs.clients, [1, 3, 5])
    other = Pairs.of(1 - labels.clip(0, 1), np.array([0, 1]))
    assert_array_equal(other.clients, [2, 3, 4, 5, 6])  # by id, not by coalition


def test_sums_that_were_lent_and_not_taken_back_are_made_anew():
    """A round that was cut off in the middle leaves nothing that a later one would go on from."""
    rng = np.random.default_rng(8)
    store = CovarianceStore(6, 3, "factored", np.float64)
    twin = CovarianceStore(6, 3, "factored", np.float64)
    representative = np.array([0, 0, 0, 3, 3, 3])

    def check():
        ours, theirs = store.entries(representative), twin.entries(representative)
        assert_array_equal(ours[[1, 2, 4, 5]], theirs[[1, 2, 4, 5]])

    for step in range(24):
        residual = rng.normal(size=(6, 3))
        store.append(residual, 1 / (step + 2))
        twin.append(residual, 1 / (step + 2))
        check()
    pairs = Pairs.of(representative, np.append(np.arange(6), -1))
    store.ask(pairs)
    store.read(pairs, 0, pairs.clients.size).sums[:] += 1.0  # and no `keep`
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
        self.store.append(residual, 1 / (self.steps + 2))
        self.plain.append(residual, 1 / (self.steps + 2))
        self.steps += 1

    @property
    def continuing(self):
        """Whether the store has begun to continue sums that nobody has asked for."""
        return self.store._cache is not None and self.store._cache._continuing is not None

    def check(self, first=None):
        """Ask for the pairs of a representative of each coalition, drawn anew if not given."""
        if first is None:
            first = [self.rng.choice(np.flatnonzero(self.labels == g)) for g in range(3)]
        representative = np.array(first)[self.labels]
        asked = np.flatnonzero(representative != np.arange(self.labels.size))
        ours = self.store.entries(representative)[asked]
        self.plain._cache = None
        assert_array_equal(ours, self.plain.entries(representative)[asked])


def test_sums_continued_ahead_are_those_made_anew():
    """Across blocks of residuals, with pairs that are met late, and some not for long."""
    world = Coalitions()
    advanced = 0
    for step in range(3 * BLOCK):
        world.step()
        advanced += world.continuing
        world.check()
        if step == BLOCK + 9:
            world.labels = world.rng.permutation(world.labels)
    assert advanced > 3


def test_sums_are_continued_ahead_only_while_most_are_known():
    world = Coalitions(n_clients=300)
    for _ in range(3 * BLOCK):
        world.step()
        assert not world.continuing
        world.labels = world.rng.permutation(world.labels)
        world.check()


@pytest.mark.parametrize(("size", "all_known"), [(PairCache.SLOTS + 1, True), (26, False)])
def test_pairs_nobody_has_asked_for_are_known_in_small_coalitions(size, all_known):
    """Always the same representatives, and then others: of as many as there are places for."""
    world = Coalitions(n_clients=3 * size)
    for _ in range(BLOCK + PairCache._EVERY):
        world.step()
        world.check([0, 1, 2])
    world.store._settle()
    known = []
    for r in range(3, 3 * size, 3):
        pairs = Pairs.of(world.labels, np.array([r, r + 1, r + 2]))
        begin = copy.deepcopy(world.store._cache).take(pairs, 99)  # what is taken is gone
        assert (begin[:3] > 0).all()  # with those who were representatives
        known.append(begin[3:] > 0)
    assert np.all(known) if all_known else not np.any(known)
    assert np.count_nonzero(world.store._cache.others >= 0) <= 3 * size * (size - 1) // 2
    for r in range(3, 12, 3):
        world.check([r, r + 1, r + 2])


def test_a_pair_is_one_pair_whoever_represents_the_other(kernels):
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
        kernels["take_pairs"](held, asked, reached, clients, others, now, places, begin)
        assert len(set(places.tolist())) == others.size  # nobody shares one
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


def test_what_is_asked_for_again_was_brought_near():
    """A pair met every tenth round would miss ten residuals; now it is eight at most."""
    world = Coalitions()
    for _ in range(3 * BLOCK):
        world.step()
        world.check()
    store = world.store
    for _ in range(PairCache._EVERY):
        world.step()
        store._settle()
        pairs = Pairs.of(world.labels, np.array([0, 1, 2]))
        count = store.history.count
        behind = count - store._cache.take(pairs, count)
        assert behind.max() < PairCache._EVERY
        world.check([0, 1, 2])  # what was taken is made anew


def test_continuing_that_is_cut_off_leaves_nothing_half_believed(monkeypatch):
    world = Coalitions()
    while not world.continuing:
        world.check()
        world.store._settle()
        world.step()
    world.store._settle()
    for _ in range(PairCache._EVERY - 1):
        world.step()
    add, calls = _backend.add_history, []

    def fail(*arguments):
        calls.append(arguments)
        add(*arguments)  # what is written stays written
        raise MemoryError("told to fail")

    with monkeypatch.context() as patch:
        patch.setitem(_backend.__dict__, "add_history", fail)
        world.step()
        with pytest.raises(MemoryError, match="told to fail"):
            world.store._settle()
    assert calls
    for _ in range(3):
        world.check()
        world.step()


def test_the_sum_least_asked_for_makes_place():
    n_clients = PairCache.SLOTS + 3
    cache = PairCache(n_clients, 1, np.float64)

    def ask(other, number):
        first = np.full(1, other)
        pairs = Pairs(np.array([0]), np.array([0]), first, first)
        found = cache.take(pairs, number)[0]
        cache.lend(0, 1, 0.0)
        cache.keep(0, 1, number)
        return found

    for number, other in enumerate(range(1, PairCache.SLOTS + 1), start=1):
        assert ask(other, number) == 0
    assert ask(1, 100) == 1  # the oldest no more
    cache.reached[:] = 100  # all brought up to date: that counts for nothing
    ask(n_clients - 1, 101)
    assert ask(1, 102) == 100
    assert ask(2, 103) == 0


@pytest.mark.parametrize("window", [None, BLOCK + 5])
def test_memory_taken_before_its_time_changes_nothing(window):
    rng, kind = np.random.default_rng(1), "factored" if window is None else "window"
    early, late = (CovarianceStore(4, 3, kind, "float64", window) for _ in range(2))
    early.reserve(BLOCK + 9)
    held = early.nbytes
    for step in range(BLOCK + 9):
        residual = rng.normal(size=(4, 3))
        early.append(residual, 0.2)
        late.append(residual, 0.2)
        assert_array_equal(early.dense(), late.dense())
        if step == 3:
            early.reserve(BLOCK)
            assert_array_equal(early.dense(), late.dense())
    assert early.nbytes == held
    assert [block.shape for block in early.history.blocks] == [
        block.shape for block in late.history.blocks
    ]
