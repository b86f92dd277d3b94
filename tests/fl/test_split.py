import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.model_selection import train_test_split

from fl.data.split import split_clients, stratified_split


def split(labels, test_fraction=0.2, seed=0):
    labels = np.asarray(labels, dtype=np.int64)
    return stratified_split(labels, labels.size, test_fraction, np.random.default_rng(seed))


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    test_fraction=st.sampled_from([0.1, 0.2, 0.25, 0.5]),
)
def test_split_agrees_with_scikit_learn(labels, test_fraction):
    train, test, rule = split(labels, test_fraction)
    assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    ids = np.arange(len(labels))
    try:
        theirs, _ = train_test_split(ids, test_size=test_fraction, stratify=labels, random_state=0)
        assert rule == "stratified"
        # Ties of the largest remainder are broken at random: one apart at most.
        ours = np.bincount(np.take(labels, train), minlength=5)
        reference = np.bincount(np.take(labels, theirs), minlength=5)
        assert abs(ours - reference).max() <= 1
    except ValueError:
        theirs, _ = train_test_split(ids, test_size=test_fraction, random_state=0)
        assert rule == "unstratified"
    assert len(train) == len(theirs)


def test_split_equals_scikit_learn_where_nothing_is_tied():
    labels = np.repeat([0, 1, 2], [50, 31, 22])
    train, _, _ = split(labels)
    theirs, _ = train_test_split(labels, test_size=0.2, stratify=labels, random_state=0)
    assert_array_equal(np.bincount(labels[train]), np.bincount(theirs))


@pytest.mark.parametrize(
    ("labels", "n_train", "n_test", "rule"),
    [
        ([], 0, 0, "empty"),
        ([3], 1, 0, "single"),
        ([3, 3], 1, 1, "stratified"),
        ([3, 4], 1, 1, "unstratified"),
        ([0] * 10, 8, 2, "stratified"),
        ([0] * 9 + [1], 8, 2, "unstratified"),  # a class with one sample
        ([0, 0, 1, 1, 2, 2], 4, 2, "unstratified"),  # fewer test places than classes
        ([0] * 8 + [1] * 2, 8, 2, "stratified"),
    ],
)
def test_edge_rules(labels, n_train, n_test, rule):
    train, test, done = split(labels)
    assert (len(train), len(test), done) == (n_train, n_test, rule)
    assert train.dtype == test.dtype == np.int64


def test_each_sample_is_tested_equally_often():
    labels = np.repeat([0, 1], [20, 30])
    rng = np.random.default_rng(0)
    n_draws = 4000
    hits = np.zeros(50)
    for _ in range(n_draws):
        hits[stratified_split(labels, 50, 0.2, rng)[1]] += 1
    atol = 4.5 * (0.2 * 0.8 / n_draws) ** 0.5  # 50 entries at once
    np.testing.assert_allclose(hits / n_draws, 0.2, atol=atol)


def test_at_least_one_sample_trains():
    train, test, _ = split([0, 0, 0], test_fraction=0.99)
    assert (len(train), len(test)) == (1, 2)


def test_no_test_fraction_means_no_test():
    train, test, _ = split([0, 1, 0, 1], test_fraction=0.0)
    assert_array_equal(train, [0, 1, 2, 3])
    assert test.size == 0


def test_clients_keep_to_their_own_samples_and_are_counted():
    labels = np.repeat([0, 1], 10)
    clients = [np.arange(0, 10), np.array([], dtype=np.int64), np.array([12]), np.array([9, 15])]
    train, test, record = split_clients(labels, clients, 0.2, np.random.default_rng(0))
    for ids, keep, hold in zip(clients, train, test, strict=True):
        assert_array_equal(np.sort(np.concatenate([keep, hold])), ids)
    assert record == {
        "test_fraction": 0.2,
        "split": {"stratified": 1, "unstratified": 1, "single": 1, "empty": 1},
        "empty_clients": [1],
        "single_sample_clients": [2],
    }


def test_regression_targets_are_never_strata():
    targets = np.zeros(10, dtype=np.float32)
    _, _, record = split_clients(
        targets, [np.arange(10)], 0.2, np.random.default_rng(0), stratify=False
    )
    assert record["split"]["unstratified"] == 1
