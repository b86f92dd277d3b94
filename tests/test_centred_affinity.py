"""The affinity less its mean, kept up to date, and products with what it stands for."""

import naive
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore.clustering.affinity import Affinity
from cvrcore.clustering.operators import CentredAffinity, NormalisedAffinity, ScaledCentredAffinity


def rows_of(kind, n_clients=90, n_features=12, seed=0):
    """Return rows in groups, or close together as last layers are."""
    rng = np.random.default_rng(seed)
    if kind == "apart":
        return rng.normal(size=(6, n_features))[np.arange(n_clients) % 6] + 0.3 * rng.normal(
            size=(n_clients, n_features)
        )
    return rng.normal(size=n_features) + 0.02 * rng.normal(size=(n_clients, n_features))


def played(affinity, n_rounds, kind, seed=1):
    """Replace a few rows in each of some rounds; return all rows as they are then."""
    rng, rows = np.random.default_rng(seed), rows_of(kind)
    for number in range(n_rounds):
        ids = np.sort(rng.choice(len(rows), 7, replace=False))
        rows[ids] = rows_of(kind, seed=2 + number)[ids]
        affinity.update(ids, rows[ids].astype(affinity.offsets.dtype))
    return rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["apart", "close"])
@pytest.mark.parametrize("at_once", [4, 1024])  # rows of a round come in two parts, or in one
def test_updated_centred_affinity_equals_a_recomputed_one(monkeypatch, kind, dtype, at_once):
    monkeypatch.setattr("cvrcore.clustering.affinity._AT_ONCE", at_once)
    affinity = Affinity(rows_of(kind).astype(dtype), "rbf", 1.0)
    kept = affinity.centred()
    rows = played(affinity, 40, kind)
    assert affinity.centred() is kept

    expected = naive.affinity(rows)
    spread = np.abs(expected - expected.mean()).max()
    near = 1e-6 if dtype == np.float32 else 0.0  # what the rows themselves have lost
    assert_allclose(kept.values + kept.centre, expected, rtol=0, atol=1e-7 * spread + near)
    assert_array_equal(kept.values, kept.values.T)
    assert_allclose(kept.degrees, (kept.values.astype(float) + kept.centre).sum(axis=1), rtol=1e-12)
    assert_allclose(affinity.matrix(), expected, rtol=1e-5 if dtype == np.float32 else 1e-12)


def test_columns_are_mirrored_when_the_matrix_is_read():
    often, once = (Affinity(rows_of("apart"), "rbf", 1.0) for _ in range(2))
    once.centred()  # from here on they are what is kept up to date
    rng = np.random.default_rng(0)
    for seed in range(9):
        ids = np.sort(rng.choice(90, 30, replace=False))  # rounds share clients
        rows = rows_of("apart", seed=seed)[ids]
        for affinity in (often, once):
            affinity.update(ids, rows)
        assert_array_equal(often.matrix(), often.matrix().T)
    assert_array_equal(once.matrix(), often.matrix())


def test_centred_affinity_is_recomputed_after_many_replacements():
    affinity = Affinity(rows_of("apart"), "rbf", 1.0)
    first = affinity.centred()
    for seed in range(8):
        assert affinity.centred() is first
        affinity.update(np.arange(90), rows_of("close", seed=seed))
    assert affinity.centred() is not first
    assert affinity.centred().centre == pytest.approx(affinity.matrix().mean(), rel=1e-3)


@pytest.mark.parametrize("kind", ["apart", "close"])
@pytest.mark.parametrize("stale", [False, True])
def test_products_match_the_normalised_affinity(kind, stale):
    """To float32's last digits of the smallest eigenvalue wanted, wherever the centre is."""
    affinity = Affinity(rows_of("apart" if stale else kind), "rbf", 1.0)
    deviations = affinity.centred()
    if stale:
        affinity.update(np.arange(90), rows_of(kind))
    exact = NormalisedAffinity(affinity.matrix())
    values, vectors = np.linalg.eigh(exact.matrix)
    block = np.ascontiguousarray(vectors[:, :-7:-1], dtype=np.float32)
    operator = ScaledCentredAffinity(deviations)
    # A centre that is far from the mean costs as many digits as it is far.
    lost = abs(deviations.centre - affinity.matrix().mean()) / np.abs(deviations.values).std()
    atol = (1 + lost) * 1e-6 * values[-6]
    assert_allclose(operator.apply(block), exact.matrix @ block, rtol=0, atol=atol)
    ids = np.array([3, 50, 51])
    rows = operator.rows_of(ids, block)  # BLAS may sum a few rows in another order than many
    assert_allclose(rows, exact.matrix[ids] @ block, rtol=0, atol=atol)
    assert_allclose(operator.mean_affinity, exact.mean_affinity, rtol=1e-6)


def test_the_known_eigenvector_is_taken_out():
    operator = ScaledCentredAffinity(CentredAffinity(naive.affinity(rows_of("close"))))
    lead = operator.lead.astype(np.float32)[:, None]
    assert np.linalg.norm(operator.apply(lead)) < 1e-6 * np.linalg.norm(lead)


def test_state_brings_back_every_bit():
    affinity = Affinity(rows_of("apart"), "rbf", 1.0)
    affinity.centred()
    played(affinity, 3, "apart")
    again = Affinity.restored(affinity.state(), "rbf", 1.0, rows_of("apart").shape)
    for one in (affinity, again):
        played(one, 3, "apart", seed=5)
    assert_array_equal(again.centred().values, affinity.centred().values)
    assert_array_equal(again.centred().degrees, affinity.centred().degrees)
    assert again.centred().replaced == affinity.centred().replaced


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("values", np.zeros((3, 90), dtype=np.float32), "values must have shape"),
        ("totals", np.full(90, -90.0), "totals must leave degrees positive"),
        ("centre", 1.5, "centre must"),
        ("replaced", -1, "replaced must"),
    ],
)
def test_a_broken_state_is_refused(name, value, message):
    affinity = Affinity(rows_of("apart"), "rbf", 1.0)
    affinity.centred()
    state = affinity.state()
    state["deviations"][name] = value
    with pytest.raises(ValueError, match=message):
        Affinity.restored(state, "rbf", 1.0, rows_of("apart").shape)
