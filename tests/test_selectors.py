"""What every policy promises, whatever it is."""

import copy

import numpy as np
import pytest
from first_policies import FIRST_POLICIES
from numpy.testing import assert_allclose, assert_array_equal

from cvrcore import make_selector
from cvrcore.selectors import policy_class

N_CLIENTS, N_SELECT, N_FEATURES, N_CLASSES = 40, 5, 6, 4
WEIGHTS = np.random.default_rng(99).integers(1, 200, N_CLIENTS).astype(float)
WEIGHTS[[3, 17, 30]] = 0.0
COUNTS = np.random.default_rng(98).integers(1, 50, (N_CLIENTS, N_CLASSES)) * (WEIGHTS > 0)[:, None]

REQUIRED = {
    "fedcbs": {"label_counts": COUNTS},
    "fedcvr-bolt": {"n_features": N_FEATURES, "warmup": 5},
}
VARIANTS = {
    "power-of-choice": [{}, {"candidates": "uniform", "n_candidates": N_SELECT}],
    "active": [{}, {"preset": "goetz"}, {"preset": "scripts"}, {"alpha3": 1.0}],
    "oort": [{}, {"preset": "repo"}, {"preset": "fedscale"}],
    "fedcbs": [{}, {"beta": 0.0, "exploration": 0.0}],
    "fedcvr-bolt": [
        {},
        {"store": "dense"},
        {"preset": "scripts", "recluster_every": 3},
        {"within": "neyman", "places": "neyman", "n_coalitions": "eigengap"},
        {"within": "size", "n_coalitions": 3},
        {"within": "size", "n_coalitions": 3, "balance": "within"},
        {"balance": "across"},
    ],
}
GUARDED = {"max_share": 1.3, "min_share": 0.3, "max_norm": "median", "max_loss": "median"}


def cases():
    for name in FIRST_POLICIES:
        for options in [*VARIANTS.get(name, [{}]), GUARDED]:
            label = "-".join([name, *(f"{key}={value}" for key, value in options.items())])
            yield pytest.param((name, options), id=label)


@pytest.fixture(params=cases())
def make(request):
    name, options = request.param
    common = {"weights": WEIGHTS, **REQUIRED.get(name, {}), **options}

    def build(seed=0):
        return make_selector(name, n_clients=N_CLIENTS, n_select=N_SELECT, seed=seed, **common)

    return build


class World:
    """Clients that come and go, fail, answer or keep silent, by its own random stream."""

    def __init__(self, selector, seed):
        self.selector, self.rng = selector, np.random.default_rng(seed)
        self.available, self.answers, self.picked = None, None, None

    def probe(self):
        eligible = np.flatnonzero(self.selector.weights > 0)
        if self.rng.random() < 0.2:
            self.available = None
        else:
            self.available = self.rng.random(self.selector.n_clients) < self.rng.random()
            self.available[self.rng.choice(eligible)] = True
        asked = self.selector.probe(self.available)
        self.answers = None
        if asked is not None:
            silent = self.rng.random(asked.size) < 0.2
            self.answers = np.where(silent, np.nan, self.rng.gamma(2.0, size=asked.size))

    def select(self):
        self.picked = self.selector.select(self.available, losses=self.answers)
        return self.picked

    def observe(self):
        clients = self.rng.permutation(self.picked.clients)
        n_reported, n_failed = self.rng.multinomial(clients.size, [0.7, 0.2, 0.1])[:2]
        reported = clients[:n_reported]
        self.selector.observe(
            reported,
            models=self.rng.normal(size=(n_reported, N_FEATURES)),
            losses=self.rng.gamma(2.0, size=n_reported),
            durations=self.rng.gamma(2.0, size=n_reported) if self.rng.random() < 0.8 else None,
            failed=clients[n_reported : n_reported + n_failed],
        )

    def round(self):
        self.probe()
        picked = self.select()
        self.observe()
        return picked

    def continued(self, selector):
        """Return this world with another selector in the same place."""
        other = World(selector, 0)
        other.available, other.answers, other.picked = self.available, self.answers, self.picked
        other.rng.bit_generator.state = self.rng.bit_generator.state
        return other


def assert_same(a, b, path="state"):
    """Equal to the last bit, NaN included."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, path
        assert_array_equal(a, b, err_msg=path, strict=True)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]")
    else:
        assert a == b, path


def assert_same_selection(a, b):
    assert_same(a.plain(), b.plain(), "selection")


def test_policies_carry_the_name_they_are_found_by(make):
    selector = make()
    assert policy_class(selector.name) is type(selector)
    assert selector.loss_statistic in (None, "mean", "rms")


def test_picks_as_many_distinct_eligible_clients_as_there_are(make):
    selector = make()
    world = World(selector, 1)
    for _ in range(500):
        picked = world.round()
        here = np.ones(N_CLIENTS, dtype=bool) if world.available is None else world.available
        eligible = here & (WEIGHTS > 0)
        assert eligible[picked.clients].all()
        assert np.unique(picked.clients).size == len(picked)
        assert len(picked) == min(N_SELECT, eligible.sum())
    assert selector.round == 500


def test_laws_are_probabilities(make):
    world = World(make(), 2)
    for _ in range(100):
        picked = world.round()
        here = np.ones(N_CLIENTS, dtype=bool) if world.available is None else world.available
        absent = ~(here & (WEIGHTS > 0))
        if picked.probabilities is not None:
            assert (picked.probabilities >= 0).all()
            assert not picked.probabilities[absent].any()
            if picked.coalitions is None:
                assert_allclose(picked.probabilities.sum(), 1.0, rtol=1e-12)
        if picked.inclusion is not None:
            assert (picked.inclusion <= 1 + 1e-12).all()
            assert not picked.inclusion[absent].any()
            assert (picked.inclusion[picked.clients] > 0).all()
            assert_allclose(picked.inclusion.sum(), len(picked), rtol=1e-9)


def test_same_seed_same_selections(make):
    worlds = [World(make(seed=7), 3) for _ in range(2)]
    for _ in range(40):
        assert_same_selection(*(world.round() for world in worlds))


def test_other_seed_other_selections(make):
    worlds = [World(make(seed=seed), 3) for seed in (7, 8)]
    picks = [[world.round().clients.tolist() for _ in range(10)] for world in worlds]
    assert picks[0] != picks[1]


@pytest.mark.parametrize("point", ["between rounds", "after probe", "after select"])
@pytest.mark.parametrize("n_before", [0, 1, 12, 45])
def test_a_restored_selector_goes_on_bit_for_bit(make, point, n_before):
    world = World(make(seed=4), 4)
    for _ in range(n_before):
        world.round()
    if point != "between rounds":
        world.probe()
    if point == "after select":
        world.select()

    state = world.selector.state_dict()
    twin = world.continued(type(world.selector).from_state_dict(state))
    assert_same(twin.selector.state_dict(), state)

    for each in (world, twin):
        if point == "after probe":
            each.select()
        if point != "between rounds":
            each.observe()
    for _ in range(8):
        assert_same_selection(world.round(), twin.round())
    assert_same(world.selector.state_dict(), twin.selector.state_dict())


def test_a_snapshot_does_not_move_with_its_selector(make):
    world = World(make(seed=5), 5)
    for _ in range(10):
        world.round()
    world.probe()
    world.select()
    state = world.selector.state_dict()
    frozen = copy.deepcopy(state)
    twin = world.continued(type(world.selector).from_state_dict(state))
    for each in (world, twin):
        each.observe()
        for _ in range(10):
            each.round()
    assert_same(state, frozen)


def test_save_and_load_keep_everything(make, tmp_path):
    world = World(make(seed=6), 6)
    for _ in range(9):
        world.round()
    world.probe()
    world.select()
    world.selector.save(tmp_path / "state.npz")
    twin = world.continued(type(world.selector).load(tmp_path / "state.npz"))
    assert_same(twin.selector.state_dict(), world.selector.state_dict())
    for each in (world, twin):
        each.observe()
    for _ in range(8):
        assert_same_selection(world.round(), twin.round())


def test_load_state_dict_replaces_everything(make):
    world, other = World(make(seed=7), 7), World(make(seed=8), 8)
    for _ in range(5):
        world.round()
        other.round()
    other.selector.load_state_dict(world.selector.state_dict())
    assert_same(other.selector.state_dict(), world.selector.state_dict())


def join(selector, weights):
    """Add clients the way each policy needs it."""
    more = {}
    if selector.name == "fedcbs":
        more["label_counts"] = np.ones((len(weights), N_CLASSES))
    selector.resize(selector.n_clients + len(weights), weights, **more)


def test_newcomers_are_picked_and_the_old_keep_their_place(make):
    selector = make(seed=9)
    world = World(selector, 9)
    for _ in range(20):
        world.round()
    world.probe()
    join(selector, [150.0, 0.0, 150.0])
    assert_array_equal(selector.weights, [*WEIGHTS, 150.0, 0.0, 150.0])
    seen = np.zeros(N_CLIENTS + 3, dtype=bool)
    for _ in range(300):
        picked = world.round()
        assert np.unique(picked.clients).size == len(picked)
        seen[picked.clients] = True
    assert_array_equal(seen[N_CLIENTS:], [True, False, True])
    assert seen[:N_CLIENTS].any()
    twin = world.continued(type(selector).from_state_dict(selector.state_dict()))
    assert_same_selection(world.round(), twin.round())


def bad_calls(world):
    """Yield calls that break one rule each, while a round is pending."""
    selector, picked = world.selector, world.picked.clients
    stranger = int(np.setdiff1d(np.arange(N_CLIENTS), picked)[0])
    ones = np.ones(picked.size)
    models = np.ones((picked.size, N_FEATURES))
    report = {"models": models, "losses": ones}
    yield "nobody available", lambda: selector.select(np.zeros(N_CLIENTS, dtype=bool))
    yield "only weight 0", lambda: selector.select([3])
    yield "unknown id", lambda: selector.select([N_CLIENTS])
    yield "mask of another size", lambda: selector.probe(np.ones(N_CLIENTS + 1, dtype=bool))
    yield "losses of nobody", lambda: selector.select(losses=[1.0])
    yield "a stranger reports", lambda: selector.observe([stranger], models[:1], [1.0])
    yield "a stranger fails", lambda: selector.observe(picked, failed=[stranger], **report)
    yield "failed and reported", lambda: selector.observe(picked, failed=picked[:1], **report)
    yield (
        "reported twice",
        lambda: selector.observe(np.repeat(picked[:1], 2), models[:2], np.ones(2)),
    )
    for value in (np.nan, np.inf, -np.inf):
        yield f"loss {value}", lambda v=value: selector.observe(picked, models, ones * v)
    yield "too few losses", lambda: selector.observe(picked, models, ones[1:])
    yield "duration 0", lambda: selector.observe(picked, durations=ones * 0, **report)
    yield "duration NaN", lambda: selector.observe(picked, durations=ones * np.nan, **report)
    yield "shrink", lambda: selector.resize(N_CLIENTS - 1, [])
    yield "weights of another size", lambda: join_badly(selector, [1.0])
    yield "negative weight", lambda: join_badly(selector, [1.0, -1.0])
    yield "weight NaN", lambda: join_badly(selector, [1.0, np.nan])


def join_badly(selector, weights):
    more = {"label_counts": np.ones((2, N_CLASSES))} if selector.name == "fedcbs" else {}
    selector.resize(N_CLIENTS + 2, weights, **more)


def test_a_rejected_call_leaves_no_trace(make):
    world = World(make(seed=10), 10)
    for _ in range(6):
        world.round()
    while True:
        world.probe()
        if len(world.select()) >= 2:
            break
    before = world.selector.state_dict()
    for rule, call in bad_calls(world):
        with pytest.raises((ValueError, TypeError)):
            call()
        assert_same(world.selector.state_dict(), before, rule)


def test_a_round_is_observed_once(make):
    world = World(make(seed=11), 11)
    world.round()
    before = world.selector.state_dict()
    with pytest.raises(ValueError, match="observe must follow select"):
        world.observe()
    assert_same(world.selector.state_dict(), before)


def test_answers_to_a_probe_may_be_nan_but_not_infinite(make):
    selector = make(seed=12)
    asked = selector.probe()
    if asked is None:
        pytest.skip("this policy asks nobody")
    before = selector.state_dict()
    for bad in (np.full(asked.size, np.inf), np.ones(asked.size + 1), None):
        with pytest.raises(ValueError, match="losses"):
            selector.select(losses=bad)
        assert_same(selector.state_dict(), before)
    assert len(selector.select(losses=np.full(asked.size, np.nan))) == N_SELECT


def test_negative_losses_are_a_mean_but_no_root_mean_square(make):
    world = World(make(seed=13), 13)
    world.probe()
    if world.answers is not None:
        world.answers = -world.answers
    picked = world.select()
    models = np.ones((len(picked), N_FEATURES))
    before = world.selector.state_dict()
    if world.selector.loss_statistic == "rms":
        with pytest.raises(ValueError, match="losses must be non-negative"):
            world.selector.observe(picked.clients, models, -np.ones(len(picked)))
        assert_same(world.selector.state_dict(), before)
    else:
        world.selector.observe(picked.clients, models, -np.ones(len(picked)))
        assert world.selector.round == 1


def test_a_round_without_answers_can_be_closed(make):
    world = World(make(seed=14), 14)
    for _ in range(3):
        world.probe()
        world.selector.observe([], failed=world.select().clients)
    assert len(world.round()) >= 1


def test_unknown_names_and_options_are_refused(make):
    selector = make()
    options = {"weights": WEIGHTS, **REQUIRED.get(selector.name, {})}
    with pytest.raises(TypeError, match=f"no_such_option is not an option of {selector.name}"):
        make_selector(selector.name, N_CLIENTS, N_SELECT, no_such_option=1, **options)
    with pytest.raises(ValueError, match="name must be one of .*'oort'.*, got 'ort'"):
        make_selector("ort", N_CLIENTS, N_SELECT)


def test_a_state_of_another_shape_or_policy_is_refused(make):
    selector = make(seed=15)
    World(selector, 15).round()
    state = selector.state_dict()
    with pytest.raises(ValueError, match="state must be of policy"):
        type(selector).from_state_dict({**state, "policy": "other"})
    for name, value in state["learned"].items():
        if isinstance(value, np.ndarray) and value.shape == (N_CLIENTS,):
            short = {**state, "learned": {**state["learned"], name: value[:-1]}}
            with pytest.raises(ValueError, match=f"{name} must"):
                type(selector).from_state_dict(short)
