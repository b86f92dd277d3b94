import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fl.data import load_federation
from fl.data.regression import generate_regression
from fl.data.synthetic import generate_synthetic


def synthetic(seed=0, n_clients=100, **options):
    return generate_synthetic(n_clients, np.random.default_rng(seed), **options)


def regression(seed=0, n_clients=100, **options):
    return generate_regression(n_clients, np.random.default_rng(seed), **options)


def grand_means(samples):
    return np.array([samples.x[ids].mean() for ids in samples.clients])


@pytest.mark.parametrize("make", [synthetic, regression])
def test_clients_hold_every_sample_once(make):
    samples = make(n_clients=7)
    assert len(samples.clients) == 7
    assert_array_equal(np.concatenate(samples.clients), np.arange(len(samples.y)))
    assert samples.x.dtype == np.float32


def test_fedprox_sizes_follow_the_generator():
    sizes = np.array([len(ids) for ids in synthetic(n_clients=400).clients])
    assert sizes.min() >= 50
    # Median of floor(lognormal(4, 2)) is 54; a median's error is 1.25 sigma / sqrt(n).
    error = 4 * 1.25 * 2 / 400**0.5
    assert abs(np.log(np.median(sizes) - 50) - 4) < error


def test_authors_sizes_are_equal():
    assert {len(ids) for ids in synthetic(variant="authors").clients} == {100}


def test_inputs_have_the_published_variances():
    samples = synthetic(n_clients=30, n_samples=2000)
    within = np.mean([samples.x[ids].var(axis=0) for ids in samples.clients], axis=0)
    assert_allclose(within, np.arange(1, 61) ** -1.2, rtol=4 * (2 / 60_000) ** 0.5)


def test_client_offset_is_one_number_in_fedprox_only():
    # Variance over clients of the grand mean: about 1 + 1/60 with one B_k for all
    # features, about 2/60 with a B_k per feature.
    fedprox = grand_means(synthetic(n_clients=400, n_samples=20)).var()
    authors = grand_means(synthetic(n_clients=400, n_samples=20, variant="authors")).var()
    error = 4 * (2 / 400) ** 0.5
    assert abs(fedprox / (1 + 1 / 60) - 1) < error
    assert abs(authors / (2 / 60) - 1) < error + 0.1  # plus sampling noise of 20 inputs


def test_alpha_changes_labels_in_the_authors_variant_only():
    # The stream is the same for every alpha: only the shift u_k differs.
    def flips(variant):
        a, b = (synthetic(alpha=alpha, variant=variant, n_samples=50) for alpha in (0.0, 1.0))
        assert_array_equal(a.x, b.x)
        return (a.y != b.y).mean()

    assert flips("fedprox") == 0
    assert flips("authors") > 0.2


def test_beta_is_a_deviation_in_fedprox_and_a_variance_for_the_authors():
    fedprox = grand_means(synthetic(n_clients=400, n_samples=5, beta=3.0)).var()
    assert abs(fedprox / 9 - 1) < 4 * (2 / 400) ** 0.5
    authors = synthetic(n_clients=400, variant="authors", beta=3.0)
    centres = np.array([authors.x[ids].mean(axis=0) for ids in authors.clients])
    assert abs(centres.var(axis=0).mean() / 4 - 1) < 0.1  # 3 + 1, averaged over features


def test_synthetic_federation_is_natural_and_recorded():
    federation = load_federation("synthetic", n_clients=20, seed=3)
    assert federation.record["partition"] == "natural"
    assert federation.record["variant"] == "fedprox"
    assert federation.n_clients == 20
    assert_array_equal(federation.label_counts.sum(axis=1), federation.sizes)
    json.dumps(federation.record)


def test_split_does_not_change_generated_data():
    a = load_federation("synthetic", n_clients=5, test_fraction=0.2)
    b = load_federation("synthetic", n_clients=5, test_fraction=0.5)
    assert_array_equal(a.x, b.x)


@pytest.mark.parametrize("dim", [1, 2])
def test_regression_groups_are_recovered_by_least_squares(dim):
    samples = regression(dim=dim, n_groups=2, n_samples=400, n_clients=40)
    assert samples.x.shape == (16_000, dim)
    if dim == 2:
        assert (samples.x[:, 0] == 1).all()
    groups, theta = np.array(samples.record["groups"]), np.array(samples.record["theta"])
    assert ((-5 <= theta) & (theta <= 0)).all()
    for group in range(2):
        ids = np.concatenate([samples.clients[k] for k in np.flatnonzero(groups == group)])
        fit, *_ = np.linalg.lstsq(samples.x[ids], samples.y[ids], rcond=None)
        assert_allclose(fit, theta[group], atol=0.02)  # 0.1 noise over about 8000 samples


def test_iid_regression_leaves_only_the_noise_of_theta():
    # With one group the best line errs by sigma_theta^2 E[x^2]; the mean over data seeds of
    # E[x^2] is 0.25 + 1/3. The published error of FedAvg is 0.0060 +- 0.0030.
    errors = []
    for seed in range(60):
        samples = regression(seed, n_groups=1, n_clients=20)
        x, y = samples.x[:, 0].astype(float), samples.y
        errors.append(np.mean((y - x * (x @ y) / (x @ x)) ** 2))
    expected, spread = 0.01 * (0.25 + 1 / 3), 0.01 * (4 / 45) ** 0.5  # variance of mu^2
    assert abs(np.mean(errors) - expected) < 4 * spread / 60**0.5
    assert abs(np.std(errors) - 0.0030) < 0.001


def test_regression_federation_has_targets_and_no_classes():
    federation = load_federation("regression", n_clients=10, options={"dim": 2, "n_groups": 1})
    assert federation.n_classes == 0
    assert federation.y.dtype == np.float32
    assert federation.label_counts.shape == (10, 0)
    assert federation.sizes.tolist() == [80] * 10
    assert federation.record["split"]["unstratified"] == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"variant": "leaf"}}, "variant must be one of fedprox, authors, got 'leaf'"),
        ({"options": {"alpha": -1.0}}, "alpha must be finite and not negative, got -1.0"),
        ({"options": {"n_samples": 0}}, "n_samples must be at least 1, got 0"),
        ({"options": {"gamma": 1}}, r"options of 'synthetic' must be among alpha, .*'gamma'"),
        ({"partition": "iid"}, "partition must be left at its default for 'synthetic'"),
        ({"min_size": 10**6}, "min_size must be at most .* for 'synthetic' as it is"),
    ],
)
def test_synthetic_rejects_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_federation("synthetic", n_clients=3, **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 3}, "dim must be 1 or 2, got 3"),
        ({"n_groups": 0}, "n_groups must be at least 1, got 0"),
        ({"sigma_x": -0.5}, "sigma_x must be finite and not negative, got -0.5"),
    ],
)
def test_regression_rejects_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        load_federation("regression", n_clients=3, options=options)
