"""FedCor: covariance against scikit-learn, conditioning against plain Gaussian algebra."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from cvrcore.selectors.fedcor import FedCorSelector, choose_correlated, factor_covariance


def test_factor_covariance_is_scikit_learns_probabilistic_pca():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(200, 8)) @ rng.normal(size=(8, 8))
    samples = np.concatenate([half, -half])  # mean zero: ours subtracts no mean
    factors, noise = factor_covariance(samples, np.ones(400), rank=3)
    theirs = PCA(n_components=3).fit(samples)
    # scikit-learn divides by n - 1.
    expected = theirs.get_covariance() * 399 / 400
    assert_allclose(factors @ factors.T + noise * np.eye(8), expected, rtol=1e-10)


def dense_choice(cov, shares, discounts, eligible, size):
    """The rule as the article writes it, on the whole matrix."""
    cov, chosen = cov.copy(), []
    for _ in range(size):
        gain = discounts * (shares @ cov) / np.sqrt(np.diag(cov))
        gain[~eligible] = -np.inf
        gain[chosen] = -np.inf
        k = int(np.argmax(gain))
        chosen.append(k)
        cov = cov - np.outer(cov[:, k], cov[k]) / cov[k, k]
        cov[k, k] = 1.0  # its row is zero; only the division needs a number
    return chosen


@pytest.mark.parametrize("seed", range(8))
def test_choice_equals_conditioning_of_the_whole_covariance(seed):
    rng = np.random.default_rng(seed)
    factors, noise = rng.normal(size=(30, 4)), 0.05
    shares, discounts = rng.dirichlet(np.ones(30)), 0.9 ** rng.integers(0, 4, size=30)
    eligible = rng.random(30) < 0.7
    found = choose_correlated(factors, noise, shares, discounts, eligible, 6)
    cov = factors @ factors.T + noise * np.eye(30)
    assert_array_equal(found, dense_choice(cov, shares, discounts, eligible, 6))


def test_conditioning_is_the_posterior_of_a_gaussian_process():
    """What remains of the variance after three picks is scikit-learn's predictive variance."""
    rng = np.random.default_rng(3)
    factors, noise = rng.normal(size=(12, 3)), 0.1
    process = GaussianProcessRegressor(DotProduct(sigma_0=0.0, sigma_0_bounds="fixed"), alpha=noise)
    chosen = [0, 4, 7]
    process.fit(factors[chosen], np.zeros(3))
    theirs = np.square(process.predict(factors, return_std=True)[1])
    inner = np.eye(3)
    for k in chosen:
        direction = inner @ factors[k]
        inner -= np.outer(direction, direction) / (factors[k] @ direction + noise)
    assert_allclose(np.einsum("kr,rs,ks->k", factors, inner, factors), theirs, atol=1e-10)


def run(selector, rounds, losses):
    asked = []
    for t in range(rounds):
        probed = selector.probe()
        asked.append(0 if probed is None else probed.size)
        selection = selector.select(losses=None if probed is None else losses(t)[probed])
        selector.observe(selection.clients)
    return asked


def test_losses_of_all_are_asked_in_warm_up_and_in_pairs_of_rounds():
    selector = FedCorSelector(6, 2, warmup=3, interval=4, seed=0)
    asked = run(selector, 12, lambda t: np.full(6, 1.0 / (t + 1)))
    assert asked == [6, 6, 6, 6, 0, 0, 6, 6, 0, 0, 6, 6]
    assert len(selector._changes) == 3 + 2


def test_clients_that_move_with_everybody_are_picked_first():
    """Clients 0 to 4 share one cause, 5 to 9 change on their own."""
    rng = np.random.default_rng(5)
    steps = np.cumsum(rng.normal(size=(40, 1)) @ np.ones((1, 5)), axis=0)
    own = np.cumsum(0.3 * rng.normal(size=(40, 5)), axis=0)
    losses = np.hstack([steps, own])
    selector = FedCorSelector(10, 1, warmup=30, interval=100, seed=0)
    run(selector, 31, lambda t: losses[t])
    assert selector.select().clients[0] < 5


def test_missing_answers_change_as_the_others_do():
    selector = FedCorSelector(4, 1, warmup=2, seed=0)
    for t, losses in enumerate(([1.0, 2.0, 3.0, np.nan], [0.5, 1.0, 2.0, 4.0])):
        selector.probe()
        selection = selector.select(losses=losses)
        selector.observe(selection.clients)
        assert selector.round == t + 1
    assert_allclose(selector._changes, [[-0.5, -1.0, -1.0, -2.5 / 3]])


def test_discounts_start_anew_when_the_covariance_is_fitted():
    selector = FedCorSelector(6, 2, warmup=2, interval=3, seed=0)
    run(selector, 4, lambda t: np.arange(6.0) / (t + 1))
    assert selector._picks.sum() == 2 * 2  # rounds 2 and 3: the last fit was in round 2
