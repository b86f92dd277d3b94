"""Plans, landmarks, Lloyd's passes and windows: what serves when K x K is too much."""

import naive
import numpy as np
import pytest
from builds import BUILDS, load_kernels
from numpy.testing import assert_allclose, assert_array_equal
from problems import flat_models, planted_models
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import cvrcore
from cvrcore import _backend
from cvrcore.lloyd import lloyd
from cvrcore.memory import free_memory
from cvrcore.nystrom import choose_landmarks, nystrom_points
from cvrcore.spectral import spectral_points
from cvrcore.store import CovarianceStore

# -- plans ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "options", "clustering", "store"),
    [
        ((100, 300, 10), {}, "exact", "auto"),
        ((1000, 300, 50), {"memory_limit": 8e8}, "exact", "window"),
        ((10_000, 300, 100), {"dtype": "float32", "memory_limit": 6e9}, "exact", "window"),
        ((100_000, 300, 100), {"dtype": "float32", "memory_limit": 3e9}, "nystrom", "window"),
        ((1_000_000, 100, 100), {"dtype": "float32", "memory_limit": 8e9}, "nystrom", "window"),
        ((50, 2, 5), {}, "plane", "auto"),
        ((100, 300, 10), {"predictor": "cosine"}, "exact", "none"),
        ((100, 300, 10), {"clustering": "nystrom", "store": "dense"}, "nystrom", "dense"),
    ],
)
def test_a_plan_fits_the_size_and_says_what_it_is(size, options, clustering, store):
    plan = cvrcore.make_plan(*size, **options)
    assert (plan.clustering, plan.store) == (clustering, store)
    assert plan.total_bytes <= plan.limit
    text = str(plan)
    for word in (clustering, store, plan.eigensolver, "multiply-adds", "allowed"):
        assert word in text


def test_what_is_forced_is_taken():
    selector = cvrcore.CoalitionSelector(
        60, 5, 4, store="window", window=7, clustering="nystrom", n_landmarks=30, dtype="float32"
    )
    plan = selector.plan()
    assert (plan.store, plan.window, plan.clustering, plan.n_landmarks) == (
        "window",
        7,
        "nystrom",
        30,
    )


def test_the_default_limit_is_half_of_the_free_memory():
    before = free_memory()
    limit = cvrcore.make_plan(100, 10, 5).limit
    assert 0.4 * min(before, free_memory()) < limit <= 0.6 * max(before, free_memory())


@pytest.mark.parametrize(
    ("size", "options", "hint"),
    [
        ((1_000_000, 1000, 100), {"memory_limit": 1e9}, "dtype='float32'"),
        ((50_000, 100, 10), {"clustering": "exact", "memory_limit": 4e9}, "clustering='nystrom'"),
        ((20_000, 300, 10), {"store": "dense", "memory_limit": 4e9}, "store='window'"),
        ((20_000, 300, 10), {"window": 500, "memory_limit": 4e9}, "window=250"),
    ],
)
def test_what_cannot_fit_is_refused_with_advice_before_it_starts(size, options, hint):
    with pytest.raises(MemoryError, match=r"need .* memory_limit is .*; try") as refused:
        cvrcore.CoalitionSelector(*size, **options)
    assert hint in str(refused.value)
    assert f"{size[0]} clients" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clustering": "magic"}, "clustering must be one of"),
        ({"landmarks": "grid"}, "landmarks must be one of"),
        ({"n_landmarks": 3}, "n_landmarks must be at least 5, got 3"),
        ({"n_landmarks": 31}, "n_landmarks must be at most 30, got 31"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"memory_limit": 0}, "memory_limit must be positive, got 0"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        cvrcore.CoalitionSelector(30, 4, 5, **options)


def test_a_window_goes_with_its_own_store_only():
    with pytest.raises(ValueError, match="window must go with store 'window' or 'auto'"):
        cvrcore.CoalitionSelector(30, 4, 5, store="dense", window=5)


def test_growing_beyond_the_limit_is_refused_and_changes_nothing():
    selector = cvrcore.CoalitionSelector(60, 20, 5, warmup=0, seed=0, memory_limit=3e6)
    before = selector.state_dict()
    with pytest.raises(MemoryError, match="20000 clients need"):
        selector.resize(20_000, np.ones(19_940))
    np.testing.assert_equal(selector.state_dict(), before)


def play(selector, rng, n_rounds):
    clients = []
    for _ in range(n_rounds):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), selector.n_features)))
        clients.append(picked.clients)
    return clients


def assert_goes_on_alike(first, second):
    np.testing.assert_equal(
        *(play(selector, np.random.default_rng(12), 5) for selector in (first, second))
    )
    assert_array_equal(first.scores, second.scores)


def test_a_state_goes_on_where_there_is_less_memory(tmp_path, monkeypatch):
    selector = cvrcore.CoalitionSelector(400, 8, 5, warmup=0, seed=0, memory_limit=6e7)
    play(selector, np.random.default_rng(11), 40)
    selector.save(tmp_path / "state.npz")
    monkeypatch.setattr("cvrcore.plan.free_memory", lambda: 4_000_000)
    other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert (other.plan().store, other.memory_limit) == (selector.plan().store, 6e7)
    assert_goes_on_alike(selector, other)


def test_landmarks_stay_as_many_after_clients_joined(tmp_path):
    rng = np.random.default_rng(13)
    selector = cvrcore.CoalitionSelector(
        300, 6, 5, warmup=0, seed=0, initial=rng.normal(size=(300, 6)), clustering="nystrom"
    )
    play(selector, rng, 2)
    selector.resize(900, np.ones(600))
    selector.save(tmp_path / "state.npz")
    assert_goes_on_alike(selector, cvrcore.CoalitionSelector.load(tmp_path / "state.npz"))


def test_places_changed_in_mid_life_survive_a_file(tmp_path):
    selector = cvrcore.CoalitionSelector(
        60, 6, 4, warmup=0, seed=0, n_coalitions=4, initial=np.random.default_rng(1).normal(size=6)
    )
    play(selector, np.random.default_rng(14), 4)
    for n_select in (3, 1, 6):
        selector.n_select = n_select
        selector.save(tmp_path / "state.npz")
        other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
        assert len(other.select()) == len(selector.select()) == n_select
        assert_goes_on_alike(selector, other)


# -- landmarks ------------------------------------------------------------------


@pytest.mark.parametrize("landmarks", ["uniform", "kmeans++"])
@pytest.mark.parametrize("kernel", ["rbf", "cosine", "laplacian", "sigmoid"])
def test_every_client_as_a_landmark_gives_the_exact_embedding(kernel, landmarks):
    rng = np.random.default_rng(0)
    rows, _ = planted_models(120, 30, 6, rng)
    gamma = 0.2 if kernel == "laplacian" else 1.0
    affinity = naive.affinity(rows, kernel, gamma)
    exact, _ = spectral_points(affinity, 6, positive=kernel != "sigmoid")
    points = nystrom_points(rows, 6, rng, kernel, gamma, 120, landmarks)
    # Equal up to signs and rotations inside equal eigenvalues: compare all distances.
    for found in (points[:, None] - points, exact[:, None] - exact):
        assert np.isfinite(found).all()
    ours = np.linalg.norm(points[:, None] - points, axis=2)
    theirs = np.linalg.norm(exact[:, None] - exact, axis=2)
    assert_allclose(ours, theirs, rtol=0.02, atol=0.02 * theirs.max())


def test_few_landmarks_find_planted_coalitions():
    rng = np.random.default_rng(1)
    rows, groups = planted_models(3000, 60, 12, rng)
    points = nystrom_points(rows, 12, rng, n_landmarks=100)
    assert adjusted_rand_score(groups, lloyd(points, 12, rng)) > 0.999


def test_flat_models_keep_their_leading_subspace():
    """Stated bound: 500 landmarks of 1500 lose under 2 % of the subspace of P = 20."""
    rng = np.random.default_rng(2)
    rows = flat_models(1500, 100, rng)
    exact, _ = spectral_points(naive.affinity(rows), 20)
    points = nystrom_points(rows, 20, rng, n_landmarks=500)
    left, right = (np.linalg.qr(x - x.mean(axis=0))[0] for x in (exact, points))
    assert np.linalg.svd(left.T @ right, compute_uv=False).mean() > 0.98


def test_landmarks_are_distinct_and_seeded():
    rows = np.random.default_rng(3).normal(size=(400, 5))
    for how in ("uniform", "kmeans++"):
        first, again, other = (
            choose_landmarks(rows, 50, how, np.random.default_rng(seed)) for seed in (7, 7, 8)
        )
        assert np.unique(first).size == 50
        assert_array_equal(first, again)
        assert (first != other).any()


def test_identical_models_are_dealt_at_random():
    selector = cvrcore.CoalitionSelector(
        200, 6, 8, warmup=0, seed=0, initial=np.ones(6), clustering="nystrom", n_landmarks=40
    )
    sizes = np.bincount(selector.select().coalitions)
    assert (sizes == 25).all()


def test_too_few_distinct_models_are_dealt_at_random_as_on_the_exact_path():
    rows = np.repeat(np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]]), 150, axis=0)
    for clustering in ("exact", "nystrom"):
        selector = cvrcore.CoalitionSelector(
            300, 4, 5, warmup=0, seed=0, initial=rows, clustering=clustering
        )
        assert (np.bincount(selector.select().coalitions) == 60).all()


@pytest.mark.parametrize("seed", range(30))
def test_landmarks_among_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    rows = np.abs(rng.normal(size=(9, 9)))[rng.integers(9, size=400)]
    chosen = choose_landmarks(rows, 50, "kmeans++", rng)
    assert np.unique(chosen).size == 50
    assert np.unique(rows[chosen], axis=0).shape[0] == 9  # each kind is among them


def test_the_scale_of_models_does_not_matter():
    rng = np.random.default_rng(15)
    rows, groups = planted_models(200, 20, 5, rng)
    points = nystrom_points(1e-50 * rows, 5, rng, n_landmarks=60)
    assert naive.same_partition(lloyd(points, 5, rng), groups)


# -- Lloyd ----------------------------------------------------------------------


def test_lloyd_is_as_good_as_scikit_learn():
    rng = np.random.default_rng(4)
    points = rng.normal(size=(5000, 8)).astype(np.float32)
    ours = lloyd(points, 20, rng, max_passes=50)
    theirs = KMeans(20, n_init=1, random_state=0).fit(points)
    assert naive.inertia(points, ours) <= 1.02 * theirs.inertia_


def test_lloyd_goes_on_from_a_partition_and_leaves_no_cluster_empty():
    rng = np.random.default_rng(5)
    centres = 5 * rng.normal(size=(10, 4))
    groups = rng.integers(10, size=3000)
    points = (centres[groups] + 0.1 * rng.normal(size=(3000, 4))).astype(np.float32)
    start = np.where(rng.random(3000) < 0.2, rng.integers(10, size=3000), groups)
    assert naive.same_partition(lloyd(points, 10, rng, start, max_passes=3), groups)
    twice = np.repeat(points[:3], 20, axis=0)  # three places, five clusters
    labels = lloyd(twice, 5, rng)
    assert set(labels) == set(range(5))


@pytest.mark.parametrize("build", BUILDS)
def test_scale_gives_the_same_bits_on_every_build_and_any_number_of_threads(monkeypatch, build):
    monkeypatch.setattr("cvrcore.lloyd._CHUNK", 64)
    monkeypatch.setattr("cvrcore.estimator.Estimator._chunk", lambda self: 32)

    def run(kernels, threads):
        monkeypatch.setenv("CVRCORE_NUM_THREADS", threads)
        for name, kernel in kernels.items():
            monkeypatch.setitem(_backend.__dict__, name, kernel)
        rng = np.random.default_rng(6)
        selector = cvrcore.CoalitionSelector(
            700,
            12,
            9,
            warmup=0,
            seed=1,
            initial=flat_models(700, 12, rng),
            clustering="nystrom",
            n_landmarks=60,
            store="window",
            window=3,
            dtype="float32",
        )
        clients = []
        for _ in range(6):
            picked = selector.select()
            selector.observe(picked.clients, flat_models(9, 12, rng))
            clients.append(picked.clients)
        return np.array(clients), selector.scores

    kernels = load_kernels(build)
    expected, scores = run(load_kernels("numba"), "1")
    for threads in ("1", "3"):
        clients, other = run(kernels, threads)
        assert_array_equal(clients, expected)
        assert_array_equal(other, scores)


# -- the window -----------------------------------------------------------------


@pytest.mark.parametrize("rate", ["decay", 0.2])
def test_a_window_lets_its_mean_stand_for_what_it_drops(rate):
    """``C = (1 - weight kept) ...``: against the same sums written out."""
    n_clients, n_features, window = 6, 3, 4
    rng = np.random.default_rng(7)
    store = CovarianceStore(n_clients, n_features, "window", "float64", window)
    ones, weights, residuals = 1.0, [], []
    for s in range(11):
        step = 1 / (s + 2) if rate == "decay" else rate
        residuals.append(rng.normal(size=(n_clients, n_features)))
        store.append(residuals[-1], step)
        ones *= 1 - step
        weights = [w * (1 - step) for w in weights] + [step]
    kept = sum(weights[-window:])
    assert store.form == "window"
    assert store.history.dropped == pytest.approx(1 - kept / sum(weights))
    recent = sum(
        w * np.einsum("kd,jd->dkj", r, r)
        for w, r in zip(weights[-window:], residuals[-window:], strict=True)
    )
    expected = ones + recent * sum(weights) / kept
    assert_allclose(store.dense(), expected, rtol=1e-12)
    representative = np.array([-1, 0, 0, 3, 3, 5])
    entries = store.scale * store.entries(representative)
    for k, j in ((1, 0), (2, 0), (4, 3)):
        assert_allclose(entries[k], expected[:, k, j], rtol=1e-12)


@pytest.mark.parametrize("window", [1, 2, 5, 70])
def test_a_window_is_exact_until_it_drops_something(window):
    def make(**options):
        initial = np.random.default_rng(16).normal(size=(40, 6))
        return cvrcore.CoalitionSelector(40, 6, 5, warmup=0, seed=0, initial=initial, **options)

    small, whole = make(store="window", window=window), make(store="factored")
    rngs = [np.random.default_rng(17) for _ in range(2)]
    for _ in range(window + 1):  # in round window + 1 the full window is read
        for selector, rng in zip((small, whole), rngs, strict=True):
            play(selector, rng, 1)
        assert_allclose(small.scores, whole.scores, rtol=1e-12)
    play(small, rngs[0], 2)
    play(whole, rngs[1], 2)
    assert small.dropped > 0
    assert (small.scores != whole.scores).any()


def test_scores_stay_exact_whatever_the_window_drops():
    """Under the cosine predictor nothing reads C, so that only the window differs."""

    def run(**options):
        rng = np.random.default_rng(8)
        selector = cvrcore.CoalitionSelector(
            40,
            6,
            5,
            warmup=0,
            seed=0,
            initial=rng.normal(size=(40, 6)),
            preset="scripts",
            **options,
        )
        for _ in range(30):
            picked = selector.select()
            selector.observe(picked.clients, rng.normal(size=(5, 6)))
        return selector

    small, whole = run(store="window", window=3), run(store="factored")
    assert small.dropped == pytest.approx(1 - 3 / 30)
    assert_array_equal(small.scores, whole.scores)


def test_a_window_and_a_plan_survive_a_file(tmp_path):
    rng = np.random.default_rng(9)
    options = {"store": "window", "window": 3, "clustering": "nystrom", "n_landmarks": 25}
    selector = cvrcore.CoalitionSelector(
        50, 6, 5, warmup=0, seed=0, initial=rng.normal(size=(50, 6)), **options
    )
    for _ in range(7):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(5, 6)))
    selector.save(tmp_path / "state.npz")
    other = cvrcore.CoalitionSelector.load(tmp_path / "state.npz")
    assert other.dropped == selector.dropped > 0
    for _ in range(5):
        first, second = selector.select(), other.select()
        assert_array_equal(first.clients, second.clients)
        models = rng.normal(size=(5, 6))
        selector.observe(first.clients, models)
        other.observe(second.clients, models)
    assert_array_equal(selector.scores, other.scores)


def test_little_reuse_turns_the_store_dense_early():
    """Coalitions drawn at random: hardly a pair is asked for twice."""
    rng = np.random.default_rng(10)
    store = CovarianceStore(200, 3, "auto", "float64")
    rounds = 0
    while store.form == "factored":
        representative = rng.integers(200, size=200)
        store.entries(representative)
        store.append(rng.normal(size=(200, 3)), 1 / (rounds + 2))
        rounds += 1
    assert rounds < 60  # by size alone it would be 100


def test_a_step_that_was_cut_off_is_not_built_upon(monkeypatch):
    selector = cvrcore.CoalitionSelector(40, 6, 5, warmup=0, seed=0)
    play(selector, np.random.default_rng(18), 3)
    picked = selector.select()
    models = np.zeros((5, 6))

    def fail(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(selector._estimator.store, "read", fail)
        with pytest.raises(MemoryError):
            selector.observe(picked.clients, models)
    with pytest.raises(ValueError, match="no round is pending"):
        selector.observe(picked.clients, models)
    play(selector, np.random.default_rng(19), 2)  # the covariance was not touched: it goes on
    picked = selector.select()
    with monkeypatch.context() as patch:
        patch.setitem(_backend.__dict__, "advance_moments", fail)
        with pytest.raises(MemoryError):
            selector.observe(picked.clients, models)
    with pytest.raises(RuntimeError, match="cut off in the middle: load the last saved state"):
        selector.state_dict()
    picked = selector.select()
    with pytest.raises(RuntimeError, match="cut off in the middle"):
        selector.observe(picked.clients, models)


def landmark_selector(n_clients=400, **options):
    rng = np.random.default_rng(6)
    initial = rng.normal(size=(n_clients, 8))
    options = {"warmup": 0, "seed": 0, "clustering": "nystrom", "n_landmarks": 40} | options
    return cvrcore.CoalitionSelector(n_clients, 8, 10, initial=initial, **options), rng


def test_kept_affinities_follow_the_rows():
    selector, rng = landmark_selector()
    assert selector.plan().keeps_affinities
    for _ in range(5):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(10, 8)))
    selector.select()
    near = selector._partition.near
    assert_allclose(near.kept, near.marks.affinities(selector.rows), atol=1e-6)


def test_landmarks_stay_until_a_quarter_of_the_rows_is_new():
    selector, rng = landmark_selector()
    seen = []
    for _ in range(22):
        picked = selector.select()
        seen.append(selector._partition.near.marks)
        selector.observe(picked.clients, rng.normal(size=(10, 8)))
    first = [marks is seen[0] for marks in seen]
    assert first == [True] * 10 + [False] * 12  # 100 of 400 rows were replaced in ten rounds
    assert len({id(marks) for marks in seen}) == 3


def test_coalitions_are_as_good_whether_affinities_are_kept_or_not():
    kept, _ = landmark_selector()
    lean, _ = landmark_selector(store="window", window=4, memory_limit=5.05e5)
    assert not lean.plan().keeps_affinities
    rng = np.random.default_rng(7)
    for _ in range(6):
        models = rng.normal(size=(10, 8))
        for selector in (kept, lean):
            selector.observe(selector.select().clients, models)
    points = naive.embedding(naive.affinity(kept.rows), 10)
    ratio = naive.inertia(points, kept.select().coalitions) / naive.inertia(
        points, lean.select().coalitions
    )
    assert 0.9 < ratio < 1.1
