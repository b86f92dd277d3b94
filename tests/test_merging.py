"""Aggregators in a roster, without any framework."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cvrcore.aggregators import make_aggregator
from cvrcore.integrations.aggregation import (
    aggregate_models,
    as_aggregator,
    check_change,
    check_no_noise,
)
from cvrcore.integrations.roster import ClientInfo, Reply, Roster
from cvrcore.selection import Selection
from cvrcore.state import load_state, save_state

SIZES = {name: 10 + 5 * k for k, name in enumerate("abcdef")}
START = {"out": np.zeros((2, 3), dtype=np.float32), "steps": np.array(3)}


def make_roster(aggregator="memory", **options):
    roster = Roster("uniform", n_select=3, seed=4, aggregator=aggregator, **options)
    roster.register({name: ClientInfo(size) for name, size in SIZES.items()})
    return roster


def trained(model, name, t):
    rng = np.random.default_rng([ord(name), t])
    out = (model["out"] + rng.normal(size=(2, 3))).astype(np.float32)
    return {"steps": model["steps"] + 4, "out": out}  # names come in any order


def go_on(roster, model, begin, end):
    for t in range(begin, end):
        replies = {name: Reply(model=trained(model, name, t)) for name in roster.select(SIZES)}
        roster.report(replies, sent=model)
        model = roster.merge(model, replies)
    return model


def test_saved_memory_continues_to_the_same_model(tmp_path):
    whole = go_on(make_roster(), START, 0, 8)
    first = make_roster()
    half = go_on(first, START, 0, 4)
    save_state(tmp_path / "state.npz", first.state_dict())
    second = make_roster()
    second.load_state_dict(load_state(tmp_path / "state.npz"))
    for name, array in go_on(second, half, 4, 8).items():
        assert_array_equal(array, whole[name])
        assert array.dtype == START[name].dtype


def test_failed_restore_leaves_the_roster_as_it_was():
    roster, other = make_roster(), make_roster("coalition-memory")
    go_on(roster, START, 0, 2)
    before = roster.ids, roster.selector
    with pytest.raises(ValueError, match="aggregator must be 'coalition-memory', as in the saved"):
        roster.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="incomplete or malformed"):
        roster.load_state_dict({**roster.state_dict(), "aggregator": "memory"})
    assert (roster.ids, roster.selector) == before


def test_state_of_before_there_were_aggregators_is_taken():
    state = make_roster(None).state_dict()
    del state["aggregator"], state["updates"]
    make_roster(None).load_state_dict(state)


def test_model_sent_must_be_given():
    roster = make_roster()
    picked = roster.select(SIZES)
    with pytest.raises(ValueError, match="sent must be given to an aggregator.*got None"):
        roster.report({name: Reply(model=START) for name in picked})
    with pytest.raises(ValueError, match="merge must follow report, with an aggregator"):
        make_roster(None).merge(START, {})


def test_reply_without_a_model_cannot_be_merged():
    roster = make_roster()
    first, *others = roster.select(SIZES)
    replies = {name: Reply(model=trained(START, name, 0)) for name in others}
    taken = roster.report({**replies, first: Reply()}, sent=START)
    assert sorted(taken) == sorted(others)
    assert roster.rounds[0].failed == {first: "its arrays must be out, steps; got none"}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([np.zeros(2)], "its arrays must be 0, 1; got 0"),
        ([np.zeros(3), np.zeros(1)], r"its array '0' must have shape \(2,\), got \(3,\)"),
        ([np.array(["a", "b"]), np.zeros(1)], "its array '0' must be float64, got <U1"),
        (
            [np.array([0.0, 1e39]), np.zeros(1)],
            r"its array '0' must stay within 1e\+17, got 1e\+39",
        ),
    ],
)
def test_model_that_would_end_the_round_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        check_change(model, [np.zeros(2), np.zeros(1)])


def test_answers_in_another_precision_leave_the_models_own():
    picked = Selection(clients=np.array([0, 1]), coalitions=None, probabilities=None, scores=None)
    sent = [np.zeros(2, dtype=np.float32)]
    back = [[np.ones(2)], [np.full(2, 3.0, dtype=np.float16)]]
    found = aggregate_models(make_aggregator("mean"), sent, back, [0, 1], [1.0, 1.0], picked)
    assert found["0"].dtype == np.float32
    assert_array_equal(found["0"], [2.0, 2.0])


def test_names_and_ready_aggregators_are_taken_and_nothing_else():
    ready = make_aggregator("sizes")
    assert as_aggregator(ready) is ready
    assert as_aggregator("sizes").name == "sizes"
    assert as_aggregator(None) is None
    with pytest.raises(TypeError, match="aggregator must be a name or an Aggregator, got 3"):
        as_aggregator(3)


def test_strategy_that_adds_noise_is_refused():
    class DPFedAvgFixed:
        pass

    check_no_noise(object())
    with pytest.raises(ValueError, match="strategy must not promise.*got DPFedAvgFixed"):
        check_no_noise(DPFedAvgFixed())


def test_updates_that_are_watched_need_the_model_sent():
    roster = Roster("fedcvr-bolt", n_select=2, seed=0, features="update", options={"warmup": 1})
    roster.watch(START)
    roster.register({name: ClientInfo() for name in SIZES})
    picked = roster.select(SIZES)
    with pytest.raises(ValueError, match="sent must be given.*to watch updates, got None"):
        roster.report({name: Reply(model=START) for name in picked})
