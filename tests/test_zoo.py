"""Policies from sampling theory, against oracles that share no code with them."""

import copy
import itertools
import math

import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.optimize
import scipy.spatial.distance
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.aggregators import make_aggregator
from cvrcore.selectors.clustered import angles, similar_groups
from cvrcore.selectors.optimal import approximate_inclusion, optimal_inclusion
from cvrcore.testing.policy_under_test import PolicyUnderTest

NEW = {
    "pivotal": [{}],
    "drift": [{}, {"design": "poisson"}, {"design": "pivotal"}],
    "optimal": [{}, {"design": "poisson"}, {"form": "approximate"}],
    "k-vib": [{}, {"design": "poisson"}],
    "multinomial": [{}, {"design": "systematic"}],
    "clustered": [{}, {"form": "similarity"}],
    "reshuffle": [{}],
}
CASES = [
    pytest.param(name, options, id="-".join([name, *options.values()]))
    for name, variants in NEW.items()
    for options in variants
]


# -- optimal -------------------------------------------------------------------


def published_ocs(scores, m):
    """The closed form of the article, l found by trying every one."""
    n, order = scores.size, np.argsort(scores)
    up = scores[order]
    fitting = [
        size
        for size in range(1, n + 1)
        if up[size - 1] > 0 and 0 < m + size - n <= up[:size].sum() / up[size - 1] + 1e-12
    ]
    best = max(fitting)
    inclusion = np.ones(n)
    inclusion[order[:best]] = (m + best - n) * up[:best] / up[:best].sum()
    return inclusion


@pytest.mark.parametrize("seed", range(40))
def test_ocs_is_the_article_s_closed_form(seed):
    rng = np.random.default_rng(seed)
    scores = rng.lognormal(sigma=rng.choice([0.3, 1.0, 2.0]), size=20)
    m = int(rng.integers(1, 20))
    inclusion = optimal_inclusion(scores, m)
    assert inclusion.max() <= 1.0  # a solver that takes i <= l passes 1
    assert_allclose(inclusion, published_ocs(scores, m), rtol=1e-10)
    assert_allclose(inclusion.sum(), m, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_ocs_is_what_a_convex_solver_finds(seed):
    rng = np.random.default_rng(100 - seed)
    scores, m = rng.lognormal(sigma=1.0, size=8), 3
    found = scipy.optimize.minimize(
        lambda pi: (scores**2 / pi).sum(),
        np.full(8, m / 8),
        jac=lambda pi: -(scores**2) / pi**2,
        bounds=[(1e-6, 1.0)] * 8,
        constraints={"type": "eq", "fun": lambda pi: pi.sum() - m, "jac": lambda pi: np.ones(8)},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert_allclose(optimal_inclusion(scores, m), found.x, atol=2e-5)


def test_ocs_without_norms_is_uniform():
    assert_array_equal(optimal_inclusion(np.zeros(5), 2), np.full(5, 0.4))
    assert_array_equal(approximate_inclusion(np.zeros(5), 2), np.full(5, 0.4))


@pytest.mark.parametrize("seed", range(10))
def test_aocs_reaches_ocs(seed):
    rng = np.random.default_rng(seed)
    scores = rng.lognormal(sigma=1.5, size=30)
    exact = optimal_inclusion(scores, 8)
    errors = [np.abs(approximate_inclusion(scores, 8, j) - exact).sum() for j in (0, 1, 2, 4, 30)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(errors))
    assert errors[-1] < 1e-6
    for j in (0, 1, 4):
        rescaled = approximate_inclusion(scores, 8, j)
        assert rescaled.max() <= 1
        assert rescaled.sum() <= 8 + 1e-9


def test_optimal_remembers_norms_and_keeps_a_floor():
    selector = cvrcore.make_selector("optimal", 6, 2, seed=0, floor=0.2)
    picked = selector.select()
    assert_allclose(picked.inclusion, np.full(6, 1 / 3))  # nothing is known: by size
    selector.observe(picked.clients, norms=[0.0, 3.0])
    inclusion = selector.select().inclusion
    scores = np.full(6, 1.5)
    scores[picked.clients] = [0.0, 3.0]
    assert_allclose(inclusion, 0.8 * published_ocs(scores, 2) + 0.2 * 2 / 6, rtol=1e-12)


def test_optimal_by_probe_needs_all_norms_first():
    selector = cvrcore.make_selector("optimal", 5, 2, seed=0, norms="probed")
    assert selector.needs == {"probed_norms"}
    assert_array_equal(selector.probe([0, 1, 4]), [0, 1, 4])
    picked = selector.select([0, 1, 4], losses=[1.0, 2.0, 1.0])
    assert_allclose(picked.inclusion, [0.5, 1.0, 0, 0, 0.5])
    with pytest.raises(ValueError, match="call probe"):
        selector.select()


# -- k-vib -----------------------------------------------------------------------


def test_k_vib_follows_its_rule():
    n, p, t = 12, 3, 50
    weights = np.arange(1.0, n + 1)
    selector = cvrcore.make_selector("k-vib", n, p, weights=weights, seed=0, n_rounds=t, gamma=0.5)
    theta = (n / (t * p)) ** (1 / 3)
    omega = np.zeros(n)
    rng = np.random.default_rng(1)
    for _ in range(30):
        law = np.sqrt(omega + 0.5)  # one public copy leaves the root out
        capped = published_ocs(law, p)
        picked = selector.select()
        assert_allclose(picked.inclusion, (1 - theta) * capped + theta * p / n, rtol=1e-9)
        norms = rng.gamma(2.0, size=p) * 20
        selector.observe(picked.clients, norms=norms)
        share = weights[picked.clients] / weights.sum()
        omega[picked.clients] += (share * norms) ** 2 / picked.inclusion[picked.clients]
    assert picked.inclusion.std() > 0.01


def test_k_vib_learns_who_is_large_at_any_scale():
    for scale in (1e-9, 1.0, 1e9):
        selector = cvrcore.make_selector("k-vib", 20, 4, seed=0, n_rounds=100)
        for _ in range(100):
            picked = selector.select()
            norms = np.where(picked.clients < 3, 10.0, 1.0) * scale
            selector.observe(picked.clients, norms=norms)
        inclusion = selector.select().inclusion
        assert inclusion[:3].min() > 2 * inclusion[3:].max()


# -- drift -----------------------------------------------------------------------


def test_drift_follows_its_rule():
    rng = np.random.default_rng(3)
    n, p, width = 10, 3, 4
    weights = rng.integers(10, 100, n).astype(float)
    selector = cvrcore.make_selector("drift", n, p, weights=weights, n_features=width, seed=0)
    memory, model, slope = {}, {}, {}
    x = rng.normal(size=width)
    for _ in range(40):
        drift = {k: np.linalg.norm(x - model[k]) for k in memory}
        middle = np.median(list(slope.values())) if slope else 1.0
        far = max(drift.values(), default=1.0)
        scores = np.array([
            weights[k] * slope.get(k, middle) * drift.get(k, far) for k in range(n)
        ])  # fmt: skip
        picked = selector.select(sent=x)
        expected = 0.8 * published_ocs(scores, p) + 0.2 * p / n
        assert_allclose(picked.inclusion, expected, rtol=1e-9)
        updates = rng.normal(size=(p, width)) * np.linspace(1, 3, n)[picked.clients, None]
        selector.observe(picked.clients, updates=updates)
        for k, u in zip(picked.clients.tolist(), updates, strict=True):
            if k in memory:
                ratio = np.linalg.norm(u - memory[k]) / np.linalg.norm(x - model[k])
                slope[k] = ratio if k not in slope else (slope[k] + ratio) / 2
            memory[k], model[k] = u, x
        x = x + rng.normal(size=width)
    assert len(slope) == n


def test_drift_asks_for_what_it_needs():
    selector = cvrcore.make_selector("drift", 5, 2, n_features=3, seed=0)
    with pytest.raises(ValueError, match="sent must be given to drift: the watched coordinates"):
        selector.select()
    picked = selector.select(sent=np.zeros(3))
    with pytest.raises(ValueError, match="updates must be given to drift"):
        selector.observe(picked.clients)


# -- draws with replacement ---------------------------------------------------


def test_multinomial_counts_follow_its_law():
    weights = np.array([1.0, 2.0, 3.0, 4.0, 0.0])
    selector = cvrcore.make_selector("multinomial", 5, 3, weights=weights, seed=0)
    law, seen = weights / 10, np.zeros(5)
    outcomes = {}
    for _ in range(6000):
        picked = selector.select()
        counts = np.zeros(5, dtype=int)
        counts[picked.clients] = picked.counts
        seen += counts > 0
        outcomes[tuple(counts)] = outcomes.get(tuple(counts), 0) + 1
    assert_allclose(picked.expected, 3 * law)
    assert_allclose(picked.inclusion, 1 - (1 - law) ** 3)
    assert (np.abs(seen / 6000 - picked.inclusion) <= 4 * 0.5 / 6000**0.5).all()
    cells = [c for c in itertools.product(range(4), repeat=4) if sum(c) == 3]
    expected = [6000 * scipy.stats.multinomial.pmf(c, 3, law[:4]) for c in cells]
    observed = [outcomes.get((*c, 0), 0) for c in cells]
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-4


def test_systematic_counts_stay_next_to_their_expectation():
    weights = np.array([60.0, 10, 10, 10, 5, 5])
    selector = cvrcore.make_selector(
        "multinomial", 6, 5, weights=weights, seed=0, design="systematic"
    )
    total = np.zeros(6)
    for _ in range(3000):
        picked = selector.select()
        counts = np.zeros(6)
        counts[picked.clients] = picked.counts
        assert counts.sum() == 5
        assert (np.abs(counts - picked.expected) < 1).all()
        total += counts
    assert (np.abs(total / 3000 - picked.expected) <= 4 * 0.5 / 3000**0.5).all()


LOADS = {
    "even": np.ones(20),
    "lognormal": np.random.default_rng(0).lognormal(sigma=1.0, size=20),
    "one above 1/m": np.array([200.0, *range(1, 20)]),
    "two far above 1/m": np.array([900.0, 700.0, *range(1, 19)]),
    "one alone": np.array([5.0, *np.zeros(19)]),
    "exactly 1/m": np.array([25.0] * 2 + [25.0 / 9] * 18),
}


@pytest.mark.parametrize("form", ["size", "similarity"])
@pytest.mark.parametrize("load", LOADS)
def test_laws_of_clustered_sampling_are_unbiased_whatever_the_sizes(form, load):
    weights, m = LOADS[load], 4
    selector = cvrcore.make_selector(
        "clustered", 20, m, weights=weights, form=form, n_features=3, seed=0
    )
    rng = np.random.default_rng(1)
    for _ in range(6):
        laws = selector.laws(weights > 0)
        table = np.zeros((m, 20))
        for row, (clients, chances) in zip(table, laws, strict=True):
            np.add.at(row, clients, chances)
        assert_allclose(table.sum(axis=1), np.ones(m), rtol=1e-12)
        assert_allclose(table.sum(axis=0), m * weights / weights.sum(), rtol=1e-12, atol=1e-12)
        picked = selector.select()
        assert_allclose(picked.expected, m * weights / weights.sum(), rtol=1e-12, atol=1e-12)
        assert_allclose(picked.inclusion, 1 - np.prod(1 - table, axis=0), atol=1e-12)
        signals = {"updates": rng.normal(size=(len(picked), 3))} if form == "similarity" else {}
        selector.observe(picked.clients, **signals)


def test_clustered_inclusion_by_enumeration():
    weights = np.array([5.0, 3, 2, 2, 1, 1])
    selector = cvrcore.make_selector("clustered", 6, 3, weights=weights, seed=0)
    laws = selector.laws(weights > 0)
    expected, included = np.zeros(6), np.zeros(6)
    for drawn in itertools.product(*(range(len(c)) for c, _ in laws)):
        chance = math.prod(law[1][i] for law, i in zip(laws, drawn, strict=True))
        clients = [int(law[0][i]) for law, i in zip(laws, drawn, strict=True)]
        for k in clients:
            expected[k] += chance
        for k in set(clients):
            included[k] += chance
    picked = selector.select()
    assert_allclose(picked.expected, expected, rtol=1e-12)
    assert_allclose(picked.inclusion, included, rtol=1e-12)
    seen = np.zeros(6)
    for _ in range(4000):
        picked = selector.select()
        seen[picked.clients] += picked.counts
    assert (np.abs(seen / 4000 - expected) <= 4 * 0.7 / 4000**0.5).all()


def test_angles_are_angles():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(7, 3))
    rows[3] = rows[2] * (1 + 1e-16)  # the cosine rounds above 1
    rows[5:] = 0.0
    table = scipy.spatial.distance.squareform(angles(rows))
    for i, j in itertools.combinations(range(5), 2):
        cosine = rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j])
        assert_allclose(table[i, j], math.acos(max(-1.0, min(1.0, cosine))), atol=2e-8)
    assert_allclose(table[:5, 5:], np.pi / 2)
    assert table[5, 6] == 0.0
    assert np.isfinite(table).all()


def test_groups_are_nodes_of_scipy_s_ward_tree():
    rng = np.random.default_rng(4)
    rows = np.concatenate([rng.normal(c, 0.2, (6, 3)) for c in ([3, 0, 0], [0, 3, 0], [0, 0, 3])])
    mass = np.full(18, 1 / 6)
    groups = similar_groups(rows, mass)
    unit = rows / np.linalg.norm(rows, axis=1)[:, None]
    tree = scipy.cluster.hierarchy.linkage(
        np.arccos(np.clip(1 - scipy.spatial.distance.pdist(unit, "cosine"), -1, 1)), "ward"
    )
    labels = scipy.cluster.hierarchy.fcluster(tree, 3, "maxclust")
    ours = {frozenset(group.tolist()) for group in groups}
    theirs = {frozenset(np.flatnonzero(labels == c).tolist()) for c in np.unique(labels)}
    assert ours == theirs  # masses of 1: the cut at three groups


# -- reshuffle -------------------------------------------------------------------


def test_reshuffle_covers_everybody_before_anyone_twice():
    selector = cvrcore.make_selector("reshuffle", 10, 3, seed=0)
    times = np.zeros(10, dtype=int)
    orders = []
    for _ in range(40):
        picked = selector.select()
        assert len(set(picked.clients.tolist())) == 3
        orders += picked.clients.tolist()
        times[picked.clients] += 1
        selector.observe(picked.clients[:2], failed=picked.clients[2:])
        assert times.max() - times.min() <= 1
        assert selector.epoch == times.min()
    assert orders[:10] != orders[10:20]  # a fresh order each epoch


def test_reshuffle_keeps_one_turn_of_the_absent():
    selector = cvrcore.make_selector("reshuffle", 6, 2, seed=1)
    away = [0, 1, 2, 3, 4]
    for _ in range(30):
        selector.observe(selector.select(away).clients)
    back = selector.select()
    assert 5 in back.clients
    assert back.inclusion[5] == 1.0
    selector.observe(back.clients)
    again = [5 in selector.select().clients]
    for _ in range(6):
        picked = selector.select()
        selector.observe(picked.clients)
        again.append(5 in picked.clients)
    assert sum(again) <= 4  # it does not catch up on thirty rounds


def test_reshuffle_inclusion_follows_frequencies():
    counts = np.zeros(7)
    for seed in range(1500):
        selector = cvrcore.make_selector("reshuffle", 7, 3, seed=seed)
        for _ in range(2):
            selector.observe(selector.select().clients)
        picked = selector.select()  # one client is due: it and two of the six others
        due = np.flatnonzero(picked.inclusion == 1.0)
        assert due.size == 1
        assert_allclose(np.delete(picked.inclusion, due), 2 / 6)
        others = np.roll(np.arange(7), -int(due[0]))  # the due client first
        counts += np.isin(others, picked.clients)
    assert counts[0] == 1500
    assert (np.abs(counts[1:] / 1500 - 1 / 3) <= 4 * np.sqrt(2 / 9 / 1500)).all()


# -- all -------------------------------------------------------------------------


def world(selector, rng, width):
    """Return what select and observe must be told, for updates that stay the same."""
    updates = rng.normal(size=(selector.n_clients, width)) * np.linspace(
        1, 4, selector.n_clients
    )[:, None]  # fmt: skip

    def context():
        return {"sent": rng.normal(size=width)} if "sent" in selector.needs else {}

    def report(clients):
        told = {
            "models": updates[clients],
            "updates": updates[clients],
            "norms": np.linalg.norm(updates[clients], axis=1),
        }
        return {name: told[name] for name in selector.needs & told.keys()}

    return updates, context, report


@pytest.mark.parametrize("aggregator", ["importance", "memory"])
@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if case.values[0] != "reshuffle"]
)
def test_steps_are_unbiased(name, options, aggregator):
    n, width, n_draws = 14, 3, 1500
    rng = np.random.default_rng(5)
    weights = np.ceil(rng.lognormal(3.0, 0.8, size=n))
    facts = {} if name in ("optimal", "k-vib", "multinomial") else {"n_features": width}
    selector = cvrcore.make_selector(name, n, 5, weights=weights, seed=1, **facts, **options)
    updates, context, report = world(selector, rng, width)
    merging = make_aggregator(aggregator)
    model = np.zeros(width)
    for _ in range(12):
        picked = selector.select(**context())
        selector.observe(picked.clients, **report(picked.clients))
        noisy = [[model + updates[k] + rng.normal(size=width)] for k in picked.clients]
        merging.aggregate([model], noisy, picked.clients, weights, picked)
    state = merging.state_dict()
    now = context()
    steps = np.empty((n_draws, width))
    for i in range(n_draws):
        picked = selector.select(**now)
        models = [[model + updates[k]] for k in picked.clients]
        if aggregator == "memory":
            merging.load_state_dict(copy.deepcopy(state))
        (after,) = merging.aggregate([model], models, picked.clients, weights, picked)
        steps[i] = after - model
    full = weights / weights.sum() @ updates
    error = steps.std(axis=0) / n_draws**0.5
    assert (np.abs(steps.mean(axis=0) - full) <= 4.5 * error + 1e-6).all()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_guards_hold(name, options):
    policy = PolicyUnderTest(name, options)
    simulation = policy.simulation(seed=3)
    simulation.selector.guard(max_share=1.5, min_share=0.3, max_norm="median", on_invalid="skip")
    picks, even = np.zeros(24), np.zeros(24)
    for t in range(150):
        picked = simulation.round()
        eligible = simulation.eligible()
        assert eligible[picked.clients].all()
        assert (picked.inclusion[picked.clients] > 0).all()
        picks[picked.clients] += 1
        even[eligible] += len(picked) / eligible.sum()
        if t == 75:
            restored = type(simulation.selector).from_state_dict(simulation.selector.state_dict())
            simulation = simulation.continued(restored)
    assert (picks[simulation.selector.weights > 0] > 0).all()


LEAVES = (None, -1, 2.5, "x", [], {}, np.empty(0), np.full(24, -1.0), np.full(24, np.nan),
          np.full((24, 5), np.inf), np.arange(3))  # fmt: skip


def places(state, path=()):
    for key, value in state.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_forged_states_are_refused_or_work(name, options):
    simulation = PolicyUnderTest(name, options).simulation(seed=6, n_rounds=5)
    kind, good = type(simulation.selector), simulation.selector.state_dict()
    n_refused = 0
    for path in places(good):
        for leaf in LEAVES:
            state = copy.deepcopy(good)
            target = state
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = leaf
            try:
                forged = kind.from_state_dict(state)
                simulation.continued(forged).rounds(2)
            except ValueError:
                n_refused += 1
    assert n_refused > 50
