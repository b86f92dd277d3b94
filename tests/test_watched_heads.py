"""The output layer's update as what a policy watches: maps, their states, and rosters."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.features import FeatureMap
from cvrcore.head import HeadMap, watched_map
from cvrcore.integrations.averages import DeployedModel
from cvrcore.integrations.roster import ClientInfo, Reply, Roster

SENT = {"hidden": np.zeros((4, 3)), "out.weight": np.ones((2, 4)), "out.bias": np.zeros(2)}
SIZES = {f"client-{k}": 10.0 + k for k in range(8)}


def model_of(name, t):
    rng = np.random.default_rng([*name.encode(), t])
    return {key: array + rng.normal(size=array.shape) for key, array in SENT.items()}


def make_roster(policy, **options):
    roster = Roster(policy, n_select=3, seed=4, **options)
    roster.watch(SENT)
    roster.register({name: ClientInfo(size) for name, size in SIZES.items()})
    return roster


def play(roster, rounds, change=None):
    for t in range(rounds):
        replies = {n: Reply(model=model_of(n, t)) for n in roster.select(SIZES, sent=SENT)}
        if change:
            change(replies)
        roster.report(replies, sent=SENT)
    return [one.selected for one in roster.rounds]


@pytest.mark.parametrize(
    ("policy", "options", "normalised", "told"),
    [("pivotal", {"features": "head"}, True, "models"), ("hics", {}, False, "updates")],
)
def test_rosters_report_what_a_head_map_sees(policy, options, normalised, told):
    head, names = HeadMap(SENT, normalised=normalised), list(SIZES)
    selector = cvrcore.make_selector(
        policy, len(SIZES), 3, weights=list(SIZES.values()), seed=4, n_features=2
    )
    expected = []
    for t in range(8):
        clients = selector.select().clients
        expected.append([names[k] for k in clients])
        slots = np.sort(clients)
        rows = head.updates([model_of(names[k], t) for k in slots], SENT)
        selector.observe(slots, **{told: rows})
    assert play(make_roster(policy, **options), 8) == expected


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"out.bias": np.zeros(3)}, "'out.bias' must have shape"),
        ({"out.weight": np.ones((4, 2))}, "'out.weight' must have shape"),
        ({"out.bias": np.zeros(2, dtype=complex)}, "must hold real numbers"),
        ({"out.bias": np.array([np.nan, 0.0])}, "out.bias"),
    ],
)
def test_a_head_of_another_form_fails_its_client_alone(damage, message):
    roster = make_roster("pivotal", features="head")

    def change(replies):
        first = next(iter(replies))
        replies[first] = Reply(model=model_of(first, 0) | damage)

    play(roster, 1, change)
    (why,) = roster.rounds[0].failed.values()
    assert message in why
    assert len(roster.rounds[0].reported) == 2


@pytest.mark.parametrize("model", [SENT, {"w": np.ones((3, 2))}, [np.ones((3, 2)), np.ones(2)]])
def test_a_map_from_its_state_sees_the_same(model):
    head = HeadMap(model, normalised=False)
    again = watched_map(head.state_dict())
    assert (again.state_dict(), repr(again)) == (head.state_dict(), repr(head))
    values = list(model.values()) if isinstance(model, dict) else model
    rng = np.random.default_rng(0)
    moved = [value + rng.normal(size=value.shape) for value in values]
    other = dict(zip(model, moved, strict=True)) if isinstance(model, dict) else moved
    assert_array_equal(again.updates([other], model), head.updates([other], model))
    assert isinstance(watched_map(FeatureMap.whole(model).state_dict()), FeatureMap)


@pytest.mark.parametrize(
    "damage",
    [{"head": 3}, {"bias": 3}, {"shape": [2]}, {"shape": [2, -1]}, {"shape": 5}, {"axis": 2}],
)
def test_a_damaged_state_of_a_map_is_refused(damage):
    with pytest.raises((TypeError, ValueError), match=f"{next(iter(damage))}"):
        HeadMap.from_state_dict(HeadMap(SENT).state_dict() | damage)
    with pytest.raises(ValueError, match="incomplete"):
        HeadMap.from_state_dict({"head": "w"})


def test_states_of_rosters_go_on_and_do_not_mix():
    whole = make_roster("pivotal", features="head")
    expected = play(whole, 8)
    first = make_roster("pivotal", features="head")
    play(first, 4)
    second = Roster("pivotal", n_select=3, seed=99, features="head")
    second.load_state_dict(first.state_dict())
    found = []
    for t in range(4, 8):
        picked = second.select(SIZES, sent=SENT)
        found.append(picked)
        second.report({n: Reply(model=model_of(n, t)) for n in picked}, sent=SENT)
    assert found == expected[4:]
    for features, message in ((None, "must be 'head'"), ("update", "must be 'head'|'update'")):
        with pytest.raises(ValueError, match=message):
            Roster("pivotal", n_select=3, features=features).load_state_dict(first.state_dict())
    layer = make_roster("pivotal")
    with pytest.raises(ValueError, match="must not be 'head'"):
        Roster("pivotal", n_select=3, features="head").load_state_dict(layer.state_dict())


def test_an_average_by_name_is_that_of_its_arrays():
    deployed = DeployedModel(0.5)
    assert deployed.model is None
    for value in (0.0, 4.0, 8.0):
        deployed.update({"b": np.full(2, value, np.float16), "n": np.array(int(value))})
    found = deployed.model
    assert_allclose(found["b"], [5.0, 5.0])
    assert (found["b"].dtype, found["n"]) == (np.float16, 8)
    again = DeployedModel(0.5)
    again.load_state_dict(deployed.state_dict())
    deployed.update({"n": np.array(1), "b": np.zeros(2, np.float16)})  # in any order
    again.update({"b": np.zeros(2, np.float16), "n": np.array(1)})
    assert_array_equal(again.model["b"], deployed.model["b"])
    with pytest.raises(ValueError, match="model must have the arrays b, n, got b"):
        again.update({"b": np.zeros(2)})


@pytest.mark.parametrize(
    "damage",
    [{"names": ["b", "b"]}, {"names": None}, {"dtypes": ["<f8"]}, {"dtypes": ["<f8", "?!"]},
     {"dtypes": ["<f8", "O"]}, {"means": []}, {"count": -1}],
)  # fmt: skip
def test_a_damaged_average_is_refused(damage):
    deployed = DeployedModel(0.5)
    deployed.update({"b": np.zeros(2), "n": np.ones(3)})
    before = deployed.model
    with pytest.raises(ValueError, match="names|dtype|means|count"):
        deployed.load_state_dict(deployed.state_dict() | damage)
    assert_array_equal(deployed.model["n"], before["n"])
    with pytest.raises(ValueError, match="average must be 0"):
        deployed.load_state_dict(None)


def test_features_that_no_policy_watches_are_a_warning(caplog):
    Roster("pivotal", n_select=3, features="head")
    assert not caplog.records
    Roster("uniform", n_select=3, features="head")
    assert "features does nothing with policy 'uniform'" in caplog.text
