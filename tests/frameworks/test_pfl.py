"""Users of a pfl simulation picked by cvrcore: real rounds of its backend."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pfl", reason="pfl is not installed: pip install 'cvrcore[pfl]'")
pytest.importorskip("torch", reason="torch is not installed")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import pfl_digits as example  # noqa: E402
import softmax_digits as digits  # noqa: E402
import torch  # noqa: E402

import cvrcore  # noqa: E402
from cvrcore.features import FeatureMap  # noqa: E402
from cvrcore.integrations.pfl import SelectedUsers  # noqa: E402
from cvrcore.selectors import policy_class  # noqa: E402

N, P = example.N_USERS, example.N_SELECT
SIZES = {user: digits.size(user, N) for user in range(N)}
COUNTS = [digits.label_counts(user, N) for user in range(N)]


def own_loop(policy, rounds, seed=0):
    """The same federation by hand; the mean is plain, as in pfl."""
    model, options, watched = digits.initial_model(), {}, None
    if policy == "fedcvr-bolt":
        watched = FeatureMap.last_layer([model], 300, seed)
        options = {"warmup": 4, "n_features": 300, "initial": watched.extract([model])}
    if policy == "fedcbs":
        options = {"label_counts": COUNTS}
    weights, statistic = list(SIZES.values()), policy_class(policy).loss_statistic
    selector = cvrcore.make_selector(policy, N, P, weights=weights, seed=seed, **options)
    picks = []
    for _ in range(rounds):
        asked = selector.probe()
        losses = None if asked is None else [digits.loss(model, k, N) for k in asked]
        clients = selector.select(losses=losses).clients
        trained = [digits.train(model, k, N) for k in clients]
        news = {}
        if watched:
            news["models"] = watched.extract_all([[one] for one in trained])
        if statistic:
            news["losses"] = [digits.loss(model, k, N, statistic) for k in clients]
        selector.observe(clients, **news)
        model = np.mean(trained, axis=0)
        picks.append(clients.tolist())
    return picks, model


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def picks(users):
    return [one.selected for one in users.rounds]


@pytest.mark.parametrize(
    "policy", ["uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt"]
)
def test_picks_are_those_of_our_own_loop(policy):
    users, model = example.simulate(policy, rounds=7)
    ours, by_hand = own_loop(policy, 7)
    assert picks(users) == ours
    np.testing.assert_allclose(model, by_hand, rtol=1e-3, atol=1e-4)


def test_same_seed_same_picks_twice_another_seed_others():
    runs = [picks(example.simulate(rounds=7, seed=seed)[0]) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]


def test_the_global_random_state_decides_nothing():
    futures = []
    for state in (1, 2):
        np.random.seed(state)  # noqa: NPY002
        torch.manual_seed(state)
        futures.append(picks(example.simulate("uniform", rounds=2)[0]))
    assert futures[0] == futures[1]


def users_by_hand(policy="uniform", update=None, **settings):
    """One object and a model, without pfl's backend around them."""
    module = example.Softmax()
    model = example.PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    settings = {"n_select": P, "seed": 0, **settings}
    return SelectedUsers(model, example.user_data, SIZES, policy, **settings)


def test_an_update_of_nan_is_told_and_left_out_of_the_mean(monkeypatch):
    get = example.PyTorchModel.get_model_difference

    def spoilt(self, other, clone=False):
        stats = get(self, other, clone)
        spoilt.calls += 1
        if spoilt.calls % P == 1:  # the first of each cohort
            stats = stats.apply_elementwise(lambda tensor: tensor * float("nan"))
        return stats

    spoilt.calls = 0
    monkeypatch.setattr(example.PyTorchModel, "get_model_difference", spoilt)
    users, model = example.simulate("uniform", rounds=3)
    assert np.isfinite(model).all()
    by_hand = digits.initial_model()
    for one in users.rounds:
        assert list(one.failed) == one.selected[:1]
        assert "must be finite" in one.failed[one.selected[0]]
        sound = [digits.train(by_hand, user, N) for user in one.selected[1:]]
        by_hand = np.mean(sound, axis=0)
    np.testing.assert_allclose(model, by_hand, rtol=1e-3, atol=1e-4)


def test_a_cohort_of_nan_leaves_the_model_as_it_was(monkeypatch):
    get = example.PyTorchModel.get_model_difference

    def spoilt(self, other, clone=False):
        return get(self, other, clone).apply_elementwise(lambda tensor: tensor * float("nan"))

    monkeypatch.setattr(example.PyTorchModel, "get_model_difference", spoilt)
    users, model = example.simulate("fedcvr-bolt", rounds=2)
    np.testing.assert_array_equal(model, digits.initial_model())
    assert all(len(one.failed) == P for one in users.rounds)


def test_users_come_and_go():
    here = [range(10), range(5, 12), range(N)]
    users, _ = example.simulate("uniform", rounds=3, available=lambda t: here[t])
    assert all(set(p) <= set(h) for p, h in zip(picks(users), here, strict=True))
    assert [one.available for one in users.rounds] == [list(ids) for ids in here]


def test_state_is_saved_and_goes_on(tmp_path):
    def cohort(users):
        return [(data.user_id, seed) for data, seed in users.get_cohort(P)]

    first, second = users_by_hand(), users_by_hand(seed=5)
    cohort(first)
    first.save(tmp_path / "users.npz")
    second.load(tmp_path / "users.npz")
    assert [cohort(first) for _ in range(3)] == [cohort(second) for _ in range(3)]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="losses must be given to a policy that wants"):
        users_by_hand("oort")
    with pytest.raises(ValueError, match="losses must be given to a policy that wants"):
        next(users_by_hand("power-of-choice").get_cohort(P))
    with pytest.raises(ValueError, match=f"cohort_size must be n_select, {P}, got 3"):
        next(users_by_hand().get_cohort(3))
    with pytest.raises(ValueError, match="label_counts must be given to a policy that wants them"):
        users_by_hand("fedcbs")
    with pytest.raises(TypeError, match="SelectedUsers gives whole cohorts"):
        next(iter(users_by_hand()))
    with pytest.raises(ValueError, match="name must be one of"):
        users_by_hand("unifrom")


def test_several_workers_are_refused(monkeypatch):
    from types import SimpleNamespace

    import cvrcore.integrations.pfl as adapter

    workers = SimpleNamespace(distributed=SimpleNamespace(world_size=2))
    monkeypatch.setattr(adapter, "get_default_framework_module", lambda: workers)
    with pytest.raises(RuntimeError, match="must run in one process, got several workers"):
        next(users_by_hand().get_cohort(P))
