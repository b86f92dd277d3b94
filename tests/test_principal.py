"""Principal coordinates in place of the affinity's eigenvectors, against LAPACK."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models

import cvrcore
from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.direct import DenseAffinity
from cvrcore.clustering.eigensolver import _measured, spectral_points
from cvrcore.clustering.operators import NormalisedAffinity
from cvrcore.clustering.principal import Principal
from cvrcore.clustering.subspace import TOLERANCE

SIZE = (400, 100)


def drifting(n_rounds, gamma=1.0, seed=3):
    """Yield an affinity of flat rows, a twentieth of which change each round."""
    rng = np.random.default_rng(seed)
    rows = flat_models(*SIZE, rng)
    affinity = Affinity(rows, "rbf", gamma)
    yield affinity
    for _ in range(n_rounds):
        ids = rng.choice(SIZE[0], size=SIZE[0] // 20, replace=False)
        rows[ids] += 0.05 * rng.normal(size=(ids.size, SIZE[1]))
        affinity.update(ids, rows[ids])
        yield affinity


def solve(rounds, told):
    """Return the last basis and its affinity, and the products that rounds took."""
    basis, products = None, []
    for affinity in rounds:
        principal = affinity.principal if told else None
        _, basis = spectral_points(DenseAffinity(affinity.matrix(), principal=principal), 20, basis)
        products.append(basis.products)
    return basis, affinity, products[-8:]


def residuals(affinity, vectors, values):
    """Return the length of each vector's residual, in float64."""
    vectors = vectors.astype(np.float64)
    rest = NormalisedAffinity(affinity.matrix()).matrix @ vectors - vectors * values
    return np.linalg.norm(rest, axis=0)


@pytest.mark.parametrize(
    ("gamma", "share"),
    [(0.3, 0.0), (1.0, 0.4), (3.0, 0.6), (10.0, 0.7)],
)
def test_rows_close_together_cost_few_products_or_none(gamma, share):
    """And the vectors are as near to the affinity's as those that took many: in float64."""
    basis, affinity, products = solve(drifting(16, gamma), told=True)
    _, _, before = solve(drifting(16, gamma), told=False)
    assert np.mean(products) <= share * np.mean(before)
    values = basis.values[:19]
    assert residuals(affinity, basis.vectors[:, :19], values).max() < 1.2 * TOLERANCE * values[-1]


@pytest.mark.parametrize("decay", [0.0, 0.03], ids=["flat", "steep: in several sweeps"])
def test_vectors_match_a_singular_value_decomposition(decay):
    """From the axes of the last time, while a twentieth of the rows is replaced each time."""
    rng = np.random.default_rng(0)
    scales = np.exp(-decay * np.arange(60)) * np.where(np.arange(60) < 16, 2.0, 1.0)
    rows = rng.normal(size=(400, 60)) * scales
    principal, axes = Principal(rows), None
    for _ in range(6):
        axes = principal.axes(24, 16, axes)
        found = principal.vectors(axes).astype(np.float64)
        exact, _, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        wanted = found[:, :16]
        missed = exact[:, :16] - wanted @ (wanted.T @ exact[:, :16])
        assert np.linalg.norm(missed, axis=0).max() < 0.01
        assert_allclose(wanted.T @ wanted, np.eye(16), atol=1e-3)
        ids = rng.choice(400, size=20, replace=False)
        rows[ids] = rng.normal(size=(20, 60)) * scales
        principal.update(ids)
    assert axes.products > 0  # it did iterate


def test_rows_of_few_directions_have_no_vectors():
    """There is nothing to scale to length 1."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 60))
    principal = Principal(rows)
    assert principal.vectors(principal.axes(24, 16, None)) is None


@pytest.mark.parametrize("apart", [0.0, 0.3], ids=["flat", "some far from all others"])
def test_a_sample_of_rows_estimates_the_largest_residual(apart):
    """The largest residual of principal coordinates, within a half, and rather too much."""
    rng = np.random.default_rng(1)
    rows = flat_models(1000, 100, rng)
    rows[rng.choice(1000, size=12, replace=False)] += apart * rng.normal(size=(12, 100))
    affinity = Affinity(rows, "rbf", 1.0)
    vectors = affinity.principal.vectors(affinity.principal.axes(32, 19, None))
    changed = np.sort(rng.choice(1000, size=50, replace=False))
    operator = NormalisedAffinity(affinity.matrix(), np.float32)
    values, error = _measured(operator, vectors, 19, changed)
    wide = vectors.astype(np.float64)
    images = NormalisedAffinity(affinity.matrix()).matrix @ wide
    exact = np.einsum("ij,ij->j", wide, images) / np.square(wide).sum(axis=0)
    assert_allclose(values, exact, rtol=1e-3 if apart == 0 else 1e-2)
    truth = residuals(affinity, vectors[:, :19], exact[:19]).max()
    assert 0.9 * truth < error < 1.5 * truth


@pytest.mark.parametrize("client", [2, 501, 998])
def test_every_changed_client_is_sampled_now_and_then(client):
    """Whose affinities are not as coordinates say is noticed before long, whatever the id."""
    rng = np.random.default_rng(1)
    affinity = Affinity(flat_models(1000, 100, rng), "rbf", 1.0)
    vectors = affinity.principal.vectors(affinity.principal.axes(32, 19, None))
    operator = NormalisedAffinity(affinity.matrix(), np.float32)
    _, before = _measured(operator, vectors, 19, np.arange(50))
    operator.matrix[client] *= 30.0
    errors = []
    for _ in range(20):
        changed = np.union1d(rng.choice(1000, size=49, replace=False), client)
        errors.append(_measured(operator, vectors, 19, changed)[1])
    assert np.mean(np.array(errors) > 2 * before) > 0.3


def test_clients_far_from_all_others_are_sampled():
    """Twelve clients whose affinities are not linear, none of them in the sample."""
    rng = np.random.default_rng(1)
    rows = flat_models(1000, 100, rng)
    changed = np.arange(200, 250)
    rows[100:112] += 0.6 * rng.normal(size=(12, 100))
    affinity = Affinity(rows, "rbf", 1.0)
    assert affinity.principal.is_worth_using(float(affinity.matrix().mean()), 32)
    _, basis = spectral_points(affinity, 20)
    _, basis = spectral_points(affinity, 20, basis, changed)
    assert basis.products > 0  # coordinates were not near enough, and were mended
    values = basis.values[:19]
    assert residuals(affinity, basis.vectors[:, :19], values).max() < 1.2 * TOLERANCE * values[-1]


def test_a_loaded_selector_continues_from_the_same_axes():
    rng = np.random.default_rng(8)
    common = flat_models(1, SIZE[1], rng)
    selector = cvrcore.CoalitionSelector(
        *SIZE, 20, warmup=0, seed=1, initial=common + 0.02 * rng.normal(size=SIZE)
    )
    for _ in range(4):
        picked = selector.select()
        selector.observe(picked.clients, common + 0.02 * rng.normal(size=(20, SIZE[1])))
    state = selector.state_dict()
    loaded = cvrcore.CoalitionSelector(*SIZE, 20, warmup=0)
    loaded.load_state_dict(state)
    selector.select()
    loaded.select()
    found, other = selector._partition.basis, loaded._partition.basis
    assert found.axes.products > 0  # it did iterate
    assert_array_equal(other.axes.vectors, found.axes.vectors)
    assert_array_equal(other.vectors, found.vectors)


def test_moments_match_the_current_rows():
    """After rounds that replaced some of them, far from where they began."""
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(150, 7))
    principal = Principal(rows)
    principal.coordinates(3)
    for _ in range(20):
        ids = rng.choice(150, size=9, replace=False)
        rows[ids] = rng.normal(size=(9, 7)) + 3.0
        principal.update(ids)
    kept, mean = principal._centred()
    assert_allclose(kept - mean, rows - rows.mean(axis=0), atol=1e-5)
    assert_allclose(principal._gram(), 149 * np.cov(rows.T), rtol=1e-4, atol=1e-3)


def test_coordinates_match_a_singular_value_decomposition():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(30, 4)) * [4, 3, 2, 1] + 5.0
    found = Principal(rows).coordinates(6)
    vectors, lengths, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert_allclose(np.abs(found[:, :4]), np.abs(vectors * lengths), rtol=1e-3, atol=1e-4)
    assert found[:, 4:].std() > 0.5  # noise fills up


@pytest.mark.parametrize(
    ("kernel", "kind", "size", "wanted"),
    [
        ("rbf", "flat", SIZE, True),
        ("cosine", "flat", SIZE, True),
        ("laplacian", "flat", SIZE, False),  # has no derivative where rows meet
        ("rbf", "planted", SIZE, False),  # far apart
        ("rbf", "flat", (150, 60), False),  # few clients
        ("rbf", "flat", (400, 300), False),  # many coordinates
        ("rbf", "flat", (400, 40), False),  # too few
    ],
)
def test_principal_start_is_used_where_it_is_faster(kernel, kind, size, wanted):
    rng = np.random.default_rng(2)
    rows = flat_models(*size, rng) if kind == "flat" else planted_models(*size, 20, rng)[0]
    affinity = Affinity(rows, kernel, 1.0 if kernel != "laplacian" else 0.01)
    mean = NormalisedAffinity(affinity.matrix()).mean_affinity
    assert_allclose(mean, affinity.matrix().mean())
    assert affinity.principal.is_worth_using(mean, 32) == wanted


def test_equal_rows_and_rounding_between_them_are_no_start(monkeypatch):
    """Nothing to divide by: a federation whose models collapse goes on."""
    monkeypatch.setattr("cvrcore.clustering.principal._NEAR", 0.0)
    rng = np.random.default_rng(4)
    selector = cvrcore.CoalitionSelector(
        200, 60, 8, warmup=0, seed=0, initial=flat_models(200, 60, rng)
    )
    for spread in (1.0, 1e-6, 1e-13, 0.0, 1e-6, 1.0):
        for _ in range(3):
            picked = selector.select()
            models = 1.0 + spread * rng.normal(size=(len(picked), 60))
            selector.observe(picked.clients, models)
            assert np.isfinite(selector.scores).all()


def test_any_number_of_threads_selects_the_same(monkeypatch):
    """In chunks of axes, of rows close together."""
    monkeypatch.setattr("cvrcore.clustering.principal._Gram.chunk", 16)

    def run(threads):
        monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
        rng = np.random.default_rng(5)
        selector = cvrcore.CoalitionSelector(
            *SIZE, 20, warmup=0, seed=1, initial=flat_models(*SIZE, rng)
        )
        clients = []
        for _ in range(6):
            picked = selector.select()
            selector.observe(picked.clients, flat_models(len(picked), SIZE[1], rng))
            clients.append(picked.clients)
        return clients

    first, second, third = run("1"), run("2"), run("3")
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
