"""pfl's cohorts with one broken user: whatever its update holds, the simulation goes on."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("pfl", reason="pfl is not installed: pip install 'cvrcore[pfl]'")

import numpy as np
from fuzzing import fuzz
from hostile import COUNTS as ODD_COUNTS
from hostile import VALUES, models, same
from hypothesis import given
from hypothesis import strategies as st
from pfl.stats import MappedVectorStatistics

from cvrcore.integrations.pfl import SelectedUsers

N, P, HOSTILE, ROUNDS = 6, 4, 3, 3
SHAPES = {"weight": (3, 2), "bias": (2,)}
SIZES = {user: 10.0 + user for user in range(N)}
COUNTS = {user: [1 + user % 2, 3, user] for user in range(N)}


class Model:
    """A central model of NumPy arrays."""

    def __init__(self):
        self.arrays = {name: np.ones(shape) for name, shape in SHAPES.items()}

    def get_parameters(self):
        return MappedVectorStatistics({name: array.copy() for name, array in self.arrays.items()})


def update_of(model, user):
    rng = np.random.default_rng(user)
    steps = {n: 0.1 * rng.normal(size=a.shape) * (1 + a.sum()) for n, a in model.arrays.items()}
    return MappedVectorStatistics(steps)


@st.composite
def updates(draw):
    stats = MappedVectorStatistics(draw(models(SHAPES, VALUES)))
    stats.weight = draw(st.one_of(st.just(1.0), st.just(1.0), VALUES))
    return stats


PLANS = st.fixed_dictionaries(
    {
        "updates": st.lists(st.one_of(st.none(), updates()), min_size=ROUNDS, max_size=ROUNDS),
        "size": st.one_of(st.just(13.0), st.just(13.0), VALUES),
        "counts": st.one_of(st.just([1, 3, 3]), ODD_COUNTS),
        "losses": st.one_of(st.none(), st.none(), VALUES),
        "data": st.sampled_from([True, True, True, False]),
    }
)


def run(policy, plan, refused=None, **options):
    model = Model()
    n_trained = 0

    def make_dataset(user):
        if user == HOSTILE and not plan["data"]:
            raise OSError("its disk is broken")
        return SimpleNamespace(user_id=user)

    def losses(central, data):
        if data.user_id == HOSTILE and plan["losses"] is not None:
            return plan["losses"]
        return np.abs(np.concatenate([a.ravel() for a in model.arrays.values()])) + data.user_id

    sizes, counts = {**SIZES, HOSTILE: plan["size"]}, {**COUNTS, HOSTILE: plan["counts"]}
    if refused and refused["size"]:
        del sizes[HOSTILE]
    if policy == "fedcbs":
        options["label_counts"] = counts
    users = SelectedUsers(
        model, make_dataset, sizes, policy, n_select=P, seed=2, losses=losses, **options
    )
    for _ in range(ROUNDS):
        total = None
        for data, _seed in users.get_cohort(P):
            user = data.user_id
            stats = update_of(model, user)
            if user == HOSTILE:
                n_trained += 1
                spoilt = plan["updates"][n_trained - 1]
                if refused and refused["updates"][n_trained - 1]:
                    spoilt = MappedVectorStatistics({"weight": np.full((3, 2), np.nan)})
                stats = stats if spoilt is None else spoilt
            context = SimpleNamespace(user_id=user)
            stats, _ = users.postprocess_one_user(stats=stats, user_context=context)
            stats = stats.apply_elementwise(np.copy)
            total = stats if total is None else total + stats
        for name, step in total.items():
            model.arrays[name] = model.arrays[name] + step / total.weight
    return users, model


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@fuzz(100)
@given(
    policy=st.sampled_from(
        ["uniform", "fedcvr-bolt", "power-of-choice", "oort", "active", "fedcbs"]
    ),
    plan=PLANS,
)
def test_one_broken_user_ends_nothing_and_changes_nobody_else(policy, plan):
    options = {"warmup": 1} if policy == "fedcvr-bolt" else {}
    users, model = run(policy, plan, **options)
    assert len(users.rounds) == ROUNDS
    for one in users.rounds:
        assert set(one.failed) <= {HOSTILE}, one.failed
    trained = [one for one in users.rounds if HOSTILE in one.selected]
    refused = {
        "size": HOSTILE not in users.roster.ids,
        "updates": [bool(one.failed) for one in trained],
    }
    twin, expected = run(policy, plan, refused, **options)
    assert [one.selected for one in twin.rounds] == [one.selected for one in users.rounds]
    assert same(users.roster.state_dict(), twin.roster.state_dict())
    assert same(model.arrays, expected.arrays)
    assert all(np.isfinite(array).all() for array in model.arrays.values())
