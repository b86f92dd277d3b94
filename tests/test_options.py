"""Options of selectors: in frozen objects, or one by one as before."""

import dataclasses

import numpy as np
import pytest
from first_policies import FIRST_POLICIES

import cvrcore


def bolt(**options):
    return cvrcore.CoalitionSelector(20, 5, 4, seed=0, **options)


def test_an_object_and_its_fields_one_by_one_are_the_same():
    flat = bolt(temperature=0.5, kernel="cosine", store="dense", recluster_every=3, max_share=1.5)
    grouped = bolt(
        rule=cvrcore.Rule(temperature=0.5, kernel="cosine"),
        solver=cvrcore.Solver(store="dense", recluster_every=3),
        guards=cvrcore.Guards(max_share=1.5),
    )
    assert (flat.rule, flat.solver, flat.guards) == (grouped.rule, grouped.solver, grouped.guards)
    assert (flat.kernel, flat.recluster_every) == ("cosine", 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": cvrcore.Rule(), "kernel": "rbf"}, "kernel must be given once: in rule="),
        ({"solver": cvrcore.Solver(), "store": "dense"}, "store must be given once: in solver="),
        ({"guards": cvrcore.Guards(), "max_norm": 1.0}, "max_norm must be given once: in guards="),
        ({"rule": {"kernel": "rbf"}}, "rule must be a cvrcore.Rule"),
        ({"temprature": 1.0}, "temprature is not an option of fedcvr-bolt; did you mean 'temp"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(TypeError, match=message):
        bolt(**options)
    with pytest.raises(TypeError, match=message):
        cvrcore.make_selector("fedcvr-bolt", 20, 4, n_features=5, **options)


@pytest.mark.parametrize("kind", [cvrcore.Rule, cvrcore.Solver])
def test_options_are_frozen_and_checked(kind):
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().kernel = kind().store = "other"
    name = "kernel" if kind is cvrcore.Rule else "store"
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        kind(**{name: "other"})


@pytest.mark.parametrize("policy", FIRST_POLICIES)
def test_every_policy_takes_guards(policy):
    options = {"fedcvr-bolt": {"n_features": 3}, "fedcbs": {"label_counts": np.ones((9, 2))}}
    guards = cvrcore.Guards(max_share=1.25, on_invalid="skip")
    own = options.get(policy, {})
    selector = cvrcore.make_selector(policy, 9, 3, guards=guards, seed=0, **own)
    assert selector.guards == guards
    direct = type(selector)(n_clients=9, n_select=3, guards=guards, **own)
    assert direct.guards == guards
    with pytest.raises(TypeError, match="guards must be a cvrcore.Guards"):
        type(selector)(n_clients=9, n_select=3, guards={"max_share": 2.0}, **own)
    restored = type(selector).from_state_dict(selector.state_dict())
    assert restored.guards == guards


def test_a_missing_option_is_named():
    for name, option in (("fedcvr-bolt", "n_features"), ("hics", "n_features")):
        with pytest.raises(TypeError, match=f"{option} must be given to {name}"):
            cvrcore.make_selector(name, n_clients=8, n_select=2)
    with pytest.raises(ValueError, match="n_features must be the columns of features, 2, got 3"):
        cvrcore.make_selector("pivotal", 4, 2, features=np.ones((4, 2)), n_features=3)
