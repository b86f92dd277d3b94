import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from fl.data import load_federation
from fl.data.partition import dirichlet, iid, shards, share_out

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def balanced_labels(n_classes, per_class):
    return np.repeat(np.arange(n_classes), per_class)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    n_clients=st.integers(1, 12),
    name=st.sampled_from(["dirichlet", "iid", "shards"]),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
    seed=st.integers(0, 2**32),
)
def test_every_sample_has_one_owner(labels, n_clients, name, alpha, seed):
    if name == "shards" and n_clients > len(labels):
        return
    clients, record = share_out(
        name,
        np.array(labels),
        n_clients,
        np.random.default_rng(seed),
        alpha=alpha,
        shards_per_client=1,
    )
    assert len(clients) == n_clients
    assert all(ids.dtype == np.int64 for ids in clients)
    assert_array_equal(np.sort(np.concatenate(clients)), np.arange(len(labels)))
    assert record["redraws"] == 0


def test_dirichlet_cuts_like_the_published_scripts():
    # Known of the authors' partition of MNIST (default_rng(42), classes in order): no
    # client is empty and the smallest holds 3 samples.
    labels = np.repeat(np.arange(10), MNIST_COUNTS)
    sizes = [len(ids) for ids in dirichlet(labels, 100, 0.1, np.random.default_rng(42))]
    assert min(sizes) == 3


def test_dirichlet_has_the_skew_of_the_paper():
    # Published facts of Dirichlet(0.1), K=100 on MNIST: median size about 420, about 5
    # classes a client, effective number of clients about 53. Mean of 20 seeds.
    labels = np.repeat(np.arange(10), MNIST_COUNTS)
    median, effective, classes = [], [], []
    for seed in range(20):
        clients = dirichlet(labels, 100, 0.1, np.random.default_rng(seed))
        sizes = np.array([len(ids) for ids in clients])
        median.append(np.median(sizes))
        effective.append(sizes.sum() ** 2 / (sizes**2).sum())
        classes.append(np.mean([len(np.unique(labels[ids])) for ids in clients]))
    assert 380 < np.mean(median) < 460
    assert 50 < np.mean(effective) < 57
    assert 4.5 < np.mean(classes) < 5.5


def test_dirichlet_shares_have_the_right_law():
    # Marginal of Dirichlet(a * 1_K): mean 1/K, variance (K-1) / (K^2 (K a + 1)).
    n_clients, alpha, n_draws = 4, 0.5, 4000
    labels = np.zeros(1000, dtype=np.int64)
    rng = np.random.default_rng(0)
    share = np.array(
        [len(dirichlet(labels, n_clients, alpha, rng)[0]) / 1000 for _ in range(n_draws)]
    )
    variance = (n_clients - 1) / (n_clients**2 * (n_clients * alpha + 1))
    assert abs(share.mean() - 1 / n_clients) < 4 * (variance / n_draws) ** 0.5 + 1e-3  # floor
    assert abs(share.var() / variance - 1) < 0.1


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(ids) for ids in iid(103, 10, np.random.default_rng(0))]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_shards_limit_the_labels_of_a_client():
    labels = np.random.default_rng(1).permutation(balanced_labels(10, 40))
    for ids in shards(labels, 20, 2, np.random.default_rng(0)):
        assert len(ids) == 20
        assert len(np.unique(labels[ids])) <= 2


def test_min_size_redraws_and_says_so():
    labels = balanced_labels(10, 60)
    clients, record = share_out(
        "dirichlet", labels, 20, np.random.default_rng(0), alpha=0.3, min_size=8
    )
    assert min(map(len, clients)) >= 8
    assert record["redraws"] > 0
    assert record["min_size"] == 8


def test_min_size_out_of_reach_stops():
    with pytest.raises(ValueError, match="min_size=20 was not reached by every client"):
        share_out("dirichlet", balanced_labels(2, 200), 20, np.random.default_rng(0), min_size=20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "zipf"}, "partition must be one of dirichlet, iid, shards, got 'zipf'"),
        ({"alpha": 0.0}, "alpha must be positive and finite, got 0.0"),
        ({"alpha": float("nan")}, "alpha must be positive and finite, got nan"),
        ({"n_clients": 0}, "n_clients must be at least 1, got 0"),
        ({"min_size": 7}, r"min_size must be in 0..6 for 20 samples and 3 clients, got 7"),
        ({"name": "shards", "shards_per_client": 0}, "shards_per_client must be at least 1"),
        ({"name": "shards", "shards_per_client": 9}, "at most the 20 samples, got 27"),
    ],
)
def test_share_out_rejects_bad_input(change, message):
    arguments = {"name": "dirichlet", "n_clients": 3, **change}
    with pytest.raises(ValueError, match=message):
        share_out(labels=balanced_labels(2, 10), rng=np.random.default_rng(0), **arguments)


def test_digits_federation_is_whole_and_recorded():
    federation = load_federation()
    assert federation.x.shape == (1797, 1, 8, 8)
    assert federation.x.dtype == np.float32
    assert (federation.x.min(), federation.x.max()) == (0.0, 1.0)
    held = np.concatenate([*federation.train, *federation.test])
    assert_array_equal(np.sort(held), np.arange(1797))
    assert_array_equal(federation.label_counts.sum(axis=1), federation.sizes)
    assert federation.n_clients == 100
    record = json.loads(json.dumps(federation.record))
    assert record["partition"] == "dirichlet"
    assert record["empty_clients"] == [
        k
        for k, (train, test) in enumerate(zip(federation.train, federation.test, strict=True))
        if len(train) + len(test) == 0
    ]


def test_seed_decides_everything_and_is_not_consumed():
    seed = np.random.SeedSequence(5)
    first, second = (load_federation(n_clients=7, seed=seed) for _ in range(2))
    other = load_federation(n_clients=7, seed=6)
    for a, b in zip(first.train + first.test, second.train + second.test, strict=True):
        assert_array_equal(a, b)
    assert seed.n_children_spawned == 0
    assert first.sizes.tolist() != other.sizes.tolist()


def test_subset_is_drawn_from_the_seed():
    federation = load_federation(n_clients=5, partition="iid", options={"n_samples": 200})
    assert len(federation.y) == 200
    assert federation.record["subset_of"] == 1797
    assert len(np.unique(federation.y)) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "imagenet"}, "dataset must be one of digits, .*got 'imagenet'"),
        ({"partition": "natural"}, "partition must be one of dirichlet, iid, shards"),
        ({"n_clients": 0}, "n_clients must be at least 1, got 0"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \[0, 1\), got 1.0"),
        ({"options": {"colour": 1}}, r"options of 'digits' must be among n_samples, got"),
        ({"options": {"n_samples": 1798}}, r"n_samples'\] must be in 1..1797 for 'digits'"),
    ],
)
def test_load_rejects_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_federation(**arguments)
