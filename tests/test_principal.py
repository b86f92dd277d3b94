"""Principal axes as a start of the affinity's eigenvectors, against LAPACK."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import flat_models, planted_models

import cvrcore
from cvrcore.affinity import Affinity
from cvrcore.normalised import NormalisedAffinity
from cvrcore.principal import Principal
from cvrcore.spectral import TOLERANCE, Bare, spectral_points

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
        _, basis = spectral_points(Bare(affinity.matrix(), principal=principal), 20, basis)
        products.append(basis.products)
    return basis, affinity, products[-8:]


@pytest.mark.parametrize(("gamma", "share"), [(1.0, 0.4), (10.0, 0.7)])
def test_rows_close_together_cost_few_products(gamma, share):
    """And the vectors are as near to the affinity's as those that took many: in float64."""
    basis, affinity, products = solve(drifting(16, gamma), told=True)
    _, _, before = solve(drifting(16, gamma), told=False)
    assert np.mean(products) < share * np.mean(before)
    wanted, values = basis.vectors[:, :19].astype(np.float64), basis.values[:19]
    residual = NormalisedAffinity(affinity.matrix()).matrix @ wanted - wanted * values
    assert np.linalg.norm(residual, axis=0).max() < 1.2 * TOLERANCE * values[-1]


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["flat", "steep: in several sweeps"])
def test_a_filtered_block_spans_the_leading_axes(decay):
    """A block that is off by a third comes within a hundredth of LAPACK's vectors."""
    rng = np.random.default_rng(0)
    scales = np.exp(-decay * np.arange(60)) * np.where(np.arange(60) < 16, 2.0, 1.0)
    rows = rng.normal(size=(400, 60)) * scales
    centred = rows - rows.mean(axis=0)
    vectors, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    noise = 0.33 * rng.normal(size=(400, 20)) / np.sqrt(400)
    start = np.linalg.qr(vectors[:, :20] + noise)[0].astype(np.float32)
    found = Principal(rows).filtered(start, 1e-3 * lengths[:20] ** 2, 16)
    spanned = np.linalg.qr(found.astype(np.float64))[0]
    missed = vectors[:, :16] - spanned @ (spanned.T @ vectors[:, :16])
    assert np.linalg.norm(missed, axis=0).max() < 0.01


def test_what_is_kept_is_that_of_the_rows_as_they_are():
    """After rounds that replaced some of them, far from where they began."""
    rng = np.random.default_rng(6)
    rows = rng.normal(size=(150, 7))
    principal = Principal(rows)
    principal.coordinates(3)
    for _ in range(20):
        ids = rng.choice(150, size=9, replace=False)
        rows[ids] = rng.normal(size=(9, 7)) + 3.0
        principal.update(ids)
    kept, mean, gram = principal._centred()
    assert_allclose(kept - mean, rows - rows.mean(axis=0), atol=1e-5)
    assert_allclose(gram, 149 * np.cov(rows.T), rtol=1e-4, atol=1e-3)


def test_coordinates_are_those_of_a_singular_value_decomposition():
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
def test_it_is_used_where_it_pays(kernel, kind, size, wanted):
    rng = np.random.default_rng(2)
    rows = flat_models(*size, rng) if kind == "flat" else planted_models(*size, 20, rng)[0]
    affinity = Affinity(rows, kernel, 1.0 if kernel != "laplacian" else 0.01)
    mean = NormalisedAffinity(affinity.matrix()).mean_affinity
    assert_allclose(mean, affinity.matrix().mean())
    assert affinity.principal.explains(mean, 32) == wanted


def test_equal_rows_and_rounding_between_them_are_no_start(monkeypatch):
    """Nothing to divide by: a federation whose models collapse goes on."""
    monkeypatch.setattr("cvrcore.principal._NEAR", 0.0)
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
    """In chunks of vectors, of rows close together."""
    monkeypatch.setattr("cvrcore.principal._COLUMNS", 8)

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
