"""The stateful selector against the stateless functions: the heart of the suite."""

import copy

import naive
import numpy as np
import pytest
from builds import BUILDS, load_kernels
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from problems import flat_models, planted_models

import cvrcore
from cvrcore.draws.coalition_draw import draw_selection
from cvrcore.kernels import dispatch

N_CLIENTS, N_FEATURES, N_SELECT = 30, 7, 5  # "auto" becomes dense after fifteen main rounds


def make(seed=0, **options):
    rng = np.random.default_rng(100 + seed)
    weights = rng.integers(1, 60, size=N_CLIENTS)
    weights[4] = 0  # a client without data
    settings = {"warmup": 3, "initial": rng.normal(size=N_FEATURES), "weights": weights, **options}
    return cvrcore.CoalitionSelector(N_CLIENTS, N_FEATURES, N_SELECT, seed=seed, **settings), rng


def random_round(selector, rng):
    """Select under random availability; return what a random part of the picked reports."""
    available = rng.random(N_CLIENTS) < rng.choice([0.1, 0.5, 1.0])
    available[rng.integers(5, N_CLIENTS)] = True
    picked = selector.select(available)
    fate = rng.random(len(picked))
    reported, failed = picked.clients[fate < 0.7], picked.clients[fate > 0.85]
    reported = rng.permutation(reported)
    return available, picked, reported, failed, rng.normal(size=(reported.size, N_FEATURES))


# "auto" keeps no covariance under the cosine predictor: that has its own test below.
EXACT = [("paper", "auto"), ("paper", "dense"), ("paper", "factored")]
EXACT += [("scripts", "dense"), ("scripts", "factored")]


@pytest.mark.parametrize("score", ["raw", "zscore"])
@pytest.mark.parametrize(("preset", "store"), EXACT)
def test_a_hundred_rounds_equal_the_stateless_functions(backend, preset, store, score):
    selector, rng = make(preset=preset, store=store, score=score)
    follow_statelessly(selector, rng, score, 1e-9)
    assert selector._estimator.store.form == ("factored" if store == "factored" else "dense")


@pytest.mark.parametrize(
    ("options", "rtol"),
    [
        ({"clustering": "nystrom", "n_landmarks": 20}, 1e-9),
        ({"store": "window", "window": 200}, 1e-9),
        ({"memory_limit": 2e6}, 1e-9),
        ({"eigensolver": "direct"}, 1e-9),
        ({"store": "factored", "rate": 0.9}, 1e-9),  # the scale is renewed every sixty rounds
        ({"store": "dense", "rate": 0.9}, 1e-9),
        ({"dtype": "float32"}, 2e-4),
        ({"dtype": "float32", "store": "dense"}, 2e-4),
        ({"dtype": "float32", "store": "factored", "clustering": "nystrom"}, 2e-4),
    ],
)
def test_a_hundred_rounds_under_every_exact_plan(options, rtol):
    selector, rng = make(**options)
    follow_statelessly(selector, rng, "raw", rtol)
    assert selector.dropped == 0


def follow_statelessly(selector, rng, score, rtol):
    """Drive a selector for 103 rounds, and the stateless functions beside it."""
    exact = selector.dtype == np.float64
    predictor = selector.predictor
    weights = selector.weights
    rows = selector.rows.astype(np.float64)
    cov, n_updates = np.ones((N_FEATURES, N_CLIENTS, N_CLIENTS)), 0
    for t in range(103):
        available, picked, reported, failed, models = random_round(selector, rng)
        eligible = available & (weights > 0)
        if not picked.warmup:
            scores = cvrcore.variance_reduction(cov, weights)
            assert_allclose(picked.scores, scores, rtol=rtol)
            law = cvrcore.boltzmann(scores, picked.coalitions, available=eligible, score=score)
            assert_allclose(picked.probabilities, law, rtol=2 * rtol, atol=1e-15)
            stream = copy.deepcopy(selector._rng)
            stream.bit_generator.advance(-int(eligible.sum()))  # to just before the draw
            again = draw_selection(
                picked.coalitions, scores, eligible, N_SELECT, stream, score=score
            )
            if exact:
                assert_array_equal(picked.clients, again.clients)
        models = models.astype(selector.dtype).astype(np.float64)
        selector.observe(reported, models, failed=failed)
        previous = rows.copy()
        rows[reported] = models
        if not picked.warmup and reported.size:
            heard = [k for k in picked.clients if k in reported]
            _, first = np.unique(picked.coalitions[heard], return_index=True)
            cov = cvrcore.update_covariance(
                cov,
                rows,
                np.array(heard)[first],
                picked.coalitions,
                1 / (n_updates + 2) if selector.rule.rate == "decay" else selector.rule.rate,
                predictor,
                previous,
            )
            n_updates += 1
        assert_array_equal(selector.rows, rows)
        if t % 10 == 0:
            assert_allclose(selector.covariance(), cov, rtol=rtol, atol=1e-3 * rtol)
    assert selector.updates == n_updates > 60
    assert_allclose(selector.covariance(), cov, rtol=rtol, atol=1e-3 * rtol)


def test_scripts_need_no_covariance_for_their_scores():
    """store="auto" keeps none under the cosine predictor, and selects the same."""
    (lean, rng), (full, _) = make(preset="scripts"), make(preset="scripts", store="factored")
    for _ in range(40):
        available = rng.random(N_CLIENTS) < 0.5
        available[7] = True
        picked = lean.select(available)
        assert_array_equal(picked.clients, full.select(available).clients)
        models = rng.normal(size=(len(picked), N_FEATURES))
        lean.observe(picked.clients, models)
        full.observe(picked.clients, models)
        assert_array_equal(lean.scores, full.scores)
    with pytest.raises(ValueError, match="covariance is not stored"):
        lean.covariance()


@pytest.mark.parametrize("store", ["dense", "factored"])
def test_same_selections_on_every_backend_and_any_number_of_threads(monkeypatch, store):
    """Tasks made small, so that every chunked loop really is in chunks."""
    monkeypatch.setattr("cvrcore.covariance.packed._TASK", 2000)
    monkeypatch.setattr("cvrcore.covariance.estimator.Estimator._chunk", lambda self: 16)
    monkeypatch.setattr("cvrcore.clustering.operators._CHUNK", 32)
    monkeypatch.setattr("cvrcore.clustering.affinity._CHUNK", 32)

    def run(build, threads):
        monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
        for name, kernel in load_kernels(build).items():
            monkeypatch.setitem(dispatch.__dict__, name, kernel)
        rng = np.random.default_rng(5)
        selector = cvrcore.CoalitionSelector(
            150, 40, 12, warmup=2, seed=1, initial=flat_models(150, 40, rng), store=store
        )
        clients = []
        for _ in range(20):
            picked = selector.select()
            selector.observe(picked.clients, flat_models(len(picked), 40, rng))
            clients.append(picked.clients)
        return np.array(clients), selector.scores

    expected, scores = run("numba", "1")
    for build in BUILDS:
        try:
            results = [run(build, threads) for threads in ("1", "2", "3")]
        except pytest.skip.Exception:
            continue  # not built here; its own tests say so
        for clients, other in results:
            assert_array_equal(clients, expected)
            assert_array_equal(other, scores)  # to the last bit


def test_first_main_round_scores_every_client_d():
    selector, rng = make(warmup=0)
    assert_array_equal(selector.select().scores, np.full(N_CLIENTS, N_FEATURES))
    warm, _ = make(warmup=2)
    for _ in range(2):
        picked = warm.select()
        assert picked.warmup
        assert picked.coalitions is None
        warm.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))
    assert_array_equal(warm.select().scores, np.full(N_CLIENTS, N_FEATURES))


def drive(selector, draw_models, n_rounds):
    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients, draw_models(picked.clients))
    return selector.select()


def test_coalitions_of_separated_models_are_the_stateless_ones(backend):
    rng = np.random.default_rng(8)
    models, groups = planted_models(80, 40, 8, rng)
    centres = np.array([models[groups == g].mean(axis=0) for g in range(8)])
    selector = cvrcore.CoalitionSelector(80, 40, 8, warmup=0, seed=0, initial=models)
    for _ in range(30):
        picked = drive(
            selector, lambda ids: centres[groups[ids]] + 0.2 * rng.normal(size=(8, 40)), 1
        )
        assert naive.same_partition(picked.coalitions, groups)
        expected = cvrcore.coalitions(selector.rows, 8, seed=0)
        assert naive.same_partition(picked.coalitions, expected)


def test_coalitions_of_flat_models_are_as_good_by_mean_inertia(backend):
    """Of six federations: of a single one it is luck."""
    ratios = []
    for problem in range(9, 15):
        rng = np.random.default_rng(problem)
        common, offsets = rng.normal(size=50), 0.05 * rng.normal(size=(100, 50))

        def draw_models(ids, rng=rng, common=common, offsets=offsets):
            return common + offsets[ids] + 0.05 * rng.normal(size=(ids.size, 50))

        selector = cvrcore.CoalitionSelector(
            100, 50, 10, warmup=0, seed=0, initial=draw_models(np.arange(100))
        )
        for t in range(40):
            picked = drive(selector, draw_models, 1)
            points = naive.embedding(naive.affinity(selector.rows), 10)
            stateless = naive.inertia(points, cvrcore.coalitions(selector.rows, 10, seed=t))
            ratios.append(naive.inertia(points, picked.coalitions) / stateless)
    assert np.mean(ratios) <= 1.0
    assert np.max(ratios) <= 1.05


def test_a_basis_that_needs_no_filter_is_restored():
    rng = np.random.default_rng(10)
    models, groups = planted_models(200, 40, 8, rng)
    selector = cvrcore.CoalitionSelector(200, 40, 8, warmup=0, seed=0, initial=models)
    drive(selector, lambda ids: models[ids] + 0.02 * rng.normal(size=(ids.size, 40)), 12)
    assert selector._partition.basis.degree == 0
    twin = type(selector).from_state_dict(selector.state_dict())
    assert_array_equal(twin.select().clients, selector.select().clients)


def test_coalitions_are_kept_between_reclusterings():
    selector, rng = make(warmup=0, recluster_every=4)
    seen = []
    for _ in range(9):
        picked = selector.select()
        seen.append(picked.coalitions)
        selector.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))
    for t in (1, 2, 3, 5, 6, 7):
        assert_array_equal(seen[t], seen[t - 1])
    assert not naive.same_partition(seen[4], seen[3])


@pytest.mark.parametrize(
    ("n_clients", "n_features", "n_select"),
    [
        (1, 1, 1),
        (1, 5, 1),
        (6, 1, 2),
        (6, 2, 3),
        (6, 4, 6),
        (6, 4, 1),
        (40, 3, 39),
    ],
)
def test_small_and_extreme_sizes(backend, n_clients, n_features, n_select):
    rng = np.random.default_rng(10)
    selector = cvrcore.CoalitionSelector(n_clients, n_features, n_select, warmup=1, seed=0)
    for _ in range(25):
        available = rng.random(n_clients) < 0.6
        available[rng.integers(n_clients)] = True
        picked = selector.select(available)
        assert len(set(picked.clients)) == len(picked) == min(n_select, available.sum())
        assert available[picked.clients].all()
        if picked.coalitions is not None:
            assert set(picked.coalitions) == set(range(n_select))
        selector.observe(picked.clients, rng.normal(size=(len(picked), n_features)))
        assert np.isfinite(selector.scores).all()


@pytest.mark.parametrize("rows", ["identical", "zero"])
def test_degenerate_reports_do_no_harm(backend, rows):
    selector, _ = make(warmup=0)
    value = 0.0 if rows == "zero" else 2.0
    for _ in range(40):
        picked = selector.select()
        assert set(picked.coalitions) == set(range(N_SELECT))
        selector.observe(picked.clients, np.full((len(picked), N_FEATURES), value))
        assert np.isfinite(selector.scores).all()


def test_one_sided_availability_still_fills_every_place():
    selector, rng = make(warmup=0)
    for _ in range(10):
        picked = selector.select(np.arange(10, 16))
        assert len(set(picked.clients)) == N_SELECT
        assert set(picked.clients) <= set(range(10, 16))
        selector.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))


def test_a_round_without_reports_leaves_the_estimator_unchanged():
    selector, rng = make(warmup=0)
    drive(selector, lambda ids: rng.normal(size=(ids.size, N_FEATURES)), 3)
    before, updates = selector.covariance(), selector.updates
    picked = selector.select()
    selector.observe([], failed=picked.clients)
    assert_array_equal(selector.covariance(), before)
    assert selector.updates == updates


def test_select_again_abandons_the_pending_round():
    selector, rng = make(warmup=0)
    selector.select()
    picked = selector.select()
    assert picked.round == 0
    selector.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))
    with pytest.raises(ValueError, match="observe must follow select"):
        selector.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))


@pytest.mark.parametrize("rate", ["decay", 0.1])
@pytest.mark.parametrize("store", ["factored", "dense"])
def test_newcomers_count_as_residual_zero_so_far(store, rate):
    """Their row of C is what is left of the first ones; scores follow from C as ever."""
    selector, rng = make(warmup=0, store=store, rate=rate)
    for _ in range(12):
        _, picked, reported, failed, models = random_round(selector, rng)
        selector.observe(reported, models, failed=failed)
    cov, rows = selector.covariance(), selector.rows
    selector.resize(N_CLIENTS + 3, [5, 0, 40])
    weights = selector.weights
    grown = selector.covariance()
    assert_array_equal(grown[:, :N_CLIENTS, :N_CLIENTS], cov)
    ones = (1 / (selector.updates + 1)) if rate == "decay" else 0.9**selector.updates
    assert_allclose(grown[:, N_CLIENTS:, :], ones, rtol=1e-12)
    assert_allclose(selector.scores, cvrcore.variance_reduction(grown, weights), rtol=1e-9)
    assert_array_equal(selector.rows[:N_CLIENTS], rows)
    for _ in range(12):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), N_FEATURES)))
    scores = cvrcore.variance_reduction(selector.covariance(), weights)
    assert_allclose(selector.scores, scores, rtol=1e-9)


def test_scores_follow_c_however_small_it_becomes():
    """Everybody reports the same: C fades to 2^-60, and the floor under its diagonal with it."""
    selector, _ = make(warmup=0, rate=0.5, initial=np.zeros(N_FEATURES))
    for _ in range(60):
        picked = selector.select()
        selector.observe(picked.clients, np.zeros((len(picked), N_FEATURES)))
    cov = selector.covariance()
    assert 0 < cov.max() < 1e-17
    scores = naive.variance_reduction(cov, selector.weights)
    assert scores.min() > 0
    assert_allclose(selector.scores, scores, rtol=1e-9)


def test_float32_stays_near_float64():
    """One trajectory of reports: the scores of both, to float32's digits."""
    exact, rng = make(warmup=0)
    single, _ = make(warmup=0, dtype="float32")
    for _ in range(60):
        picked = exact.select()
        single.select()
        single._pending = picked
        models = rng.normal(size=(len(picked), N_FEATURES)).astype(np.float32)
        exact.observe(picked.clients, models)
        single.observe(picked.clients, models)
        # Coefficients feed back into residuals: errors add up over rounds.
        assert_allclose(single.scores, exact.scores, rtol=2e-4)


@pytest.mark.parametrize(
    "option",
    [
        {"kernel": "cosine"},
        {"kernel": "laplacian"},
        {"kernel": "sigmoid"},
        {"gamma": "median"},
        {"score": "log"},
        {"within": "argmax"},
        {"within": "uniform"},
        {"temperature": 0.01},
        {"rate": 0.05},
        {"recluster_every": 3},
        {"dtype": "float32"},
        {"preset": "scripts"},
    ],
)
def test_state_survives_a_file_with_every_option(tmp_path, option):
    """Saved in mid-round, loaded, and continued: the same selections and scores, bit for bit."""
    selector, rng = make(warmup=2, **option)
    for _ in range(20):
        _, picked, reported, failed, models = random_round(selector, rng)
        selector.observe(reported, models, failed=failed)
    pending = selector.select()
    selector.save(tmp_path / "state.npz")
    twin = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    for _ in range(15):
        models = rng.normal(size=(len(pending), N_FEATURES))
        selector.observe(pending.clients, models)
        twin.observe(pending.clients, models)
        pending, other = selector.select(), twin.select()
        assert_array_equal(pending.clients, other.clients)
        assert_array_equal(pending.coalitions, other.coalitions)
        assert_array_equal(pending.scores, other.scores)


@pytest.mark.parametrize(("options", "n_rounds"), [({"recluster_every": 12}, 26), ({}, 60)])
def test_an_outdated_or_random_partition_does_no_lasting_harm(options, n_rounds):
    """Nobody is seen at first, so that the first partitions are dealt at random."""
    rng = np.random.default_rng(14)
    models, groups = planted_models(120, 40, 12, rng)
    selector = cvrcore.CoalitionSelector(120, 40, 12, warmup=0, seed=0, **options)
    order = np.resize(rng.permutation(120), 12 * n_rounds)
    for t in range(n_rounds):
        picked = selector.select(order[12 * t : 12 * t + 12])
        selector.observe(picked.clients, models[picked.clients])
    assert naive.same_partition(selector.select().coalitions, groups)


def test_changed_n_select_forms_as_many_coalitions():
    selector, rng = make(warmup=0)
    for n_select in (N_SELECT, 3, 9):
        selector.n_select = n_select
        picked = drive(selector, lambda ids: rng.normal(size=(ids.size, N_FEATURES)), 3)
        assert set(picked.coalitions) == set(range(n_select))


@pytest.mark.parametrize("store", ["dense", "factored"])
def test_a_state_shares_no_memory_with_a_selector_built_from_it(store):
    selector, rng = make(warmup=0, store=store)
    drive(selector, lambda ids: rng.normal(size=(ids.size, N_FEATURES)), 11)
    state = selector.state_dict()
    before = copy.deepcopy(state)
    twin = cvrcore.CoalitionSelector.from_state_dict(state)
    drive(twin, lambda ids: rng.normal(size=(ids.size, N_FEATURES)), 20)
    assert_equal(state, before)


@pytest.mark.parametrize("store", ["dense", "factored", "auto"])
def test_float32_survives_a_constant_rate(store):
    selector, rng = make(warmup=0, dtype="float32", rate=0.5, store=store)
    drive(selector, lambda ids: rng.normal(size=(ids.size, N_FEATURES)), 300)
    assert np.isfinite(selector.covariance()).all()
    scores = cvrcore.variance_reduction(selector.covariance(), selector.weights)
    assert_allclose(selector.scores, scores, rtol=1e-3)


def test_load_finds_the_policy_of_a_file(tmp_path):
    selector, _ = make()
    selector.save(tmp_path / "s.npz")
    assert isinstance(cvrcore.Selector.load(tmp_path / "s.npz"), cvrcore.CoalitionSelector)


@pytest.mark.parametrize("rate", ["decay", 0.3])
@pytest.mark.parametrize("store", ["dense", "factored"])
def test_float32_rows_at_the_bound_leave_a_state_that_loads(rate, store):
    """Squares of residuals must not overflow: what can be saved can be loaded."""
    options = {"dtype": "float32", "rate": rate, "store": store, "warmup": 1, "seed": 0}
    selector = cvrcore.CoalitionSelector(20, 6, 4, **options)
    rng = np.random.default_rng(0)
    for t in range(40):
        picked = selector.select()
        scale = selector._largest if t % 2 else 1e-3
        rows = rng.uniform(-scale, scale, size=(len(picked), 6)).astype(np.float32)
        selector.observe(picked.clients, rows)
        assert np.isfinite(selector.scores).all()
    state = selector.state_dict()
    assert np.isfinite(state["learned"]["moment"]).all()
    cvrcore.CoalitionSelector.from_state_dict(state).select()


@pytest.mark.parametrize("n_clients", [40, 200])
def test_float32_finds_groups_of_small_spread(n_clients):
    """Rows that differ by 1e-4 of their length; affinities then differ by 1e-8."""
    rng = np.random.default_rng(0)
    base, groups = rng.normal(size=30), np.arange(n_clients) % 4
    rows = base + 1e-4 * rng.normal(size=(4, 30))[groups]
    rows += 1e-5 * rng.normal(size=rows.shape)
    selector = cvrcore.CoalitionSelector(
        n_clients, 30, 4, warmup=0, seed=0, dtype="float32", initial=rows.astype(np.float32)
    )
    labels = selector.select().coalitions
    assert len({(a, b) for a, b in zip(groups, labels, strict=True)}) == 4


@pytest.mark.parametrize(
    ("dtype", "spread", "warns"),
    [("float32", 1e-7, True), ("float32", 1e-4, False), ("float64", 1e-7, False)],
)
def test_rows_that_float32_cannot_tell_apart_are_warned_of_once(dtype, spread, warns, caplog):
    rng = np.random.default_rng(0)
    base = rng.normal(size=30)
    selector = cvrcore.CoalitionSelector(20, 30, 4, warmup=2, seed=0, dtype=dtype)
    caplog.set_level("WARNING", "cvrcore.selectors.resolution")
    for _ in range(4):
        picked = selector.select().clients
        selector.observe(picked, base + spread * rng.normal(size=(picked.size, 30)))
    found = [r.getMessage() for r in caplog.records if r.name == "cvrcore.selectors.resolution"]
    assert len(found) == warns
    if warns:
        assert "dtype='float64'" in found[0]
        assert "features='update'" in found[0]


def test_one_report_and_rows_of_zeros_are_not_warned_of(caplog):
    selector = cvrcore.CoalitionSelector(6, 3, 2, warmup=2, seed=0, dtype="float32")
    picked = selector.select().clients
    selector.observe(picked[:1], np.ones((1, 3)))
    selector.observe(selector.select().clients, np.zeros((2, 3)))
    assert not [r for r in caplog.records if r.name == "cvrcore.selectors.resolution"]
