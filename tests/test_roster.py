import logging
import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import cvrcore
from cvrcore.features import FeatureMap
from cvrcore.integrations.roster import (
    ClientInfo,
    NeverReportedError,
    NoEligibleClientError,
    Reply,
    Roster,
)

POLICIES = ["uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt"]
SIZES = {f"client-{k}": 10.0 + k for k in range(8)}
INITIAL = {"hidden": np.zeros((4, 3)), "out.weight": np.ones((2, 4)), "out.bias": np.zeros(2)}


def infos(names):
    return {n: ClientInfo(SIZES.get(n, 5.0), [1 + len(n), 3, hash_of(n)]) for n in names}


def hash_of(name):
    return sum(map(ord, name)) % 7 + 1


def model_of(name, t):
    rng = np.random.default_rng([hash_of(name), t])
    return {key: rng.normal(size=array.shape) for key, array in INITIAL.items()}


def make_roster(policy, **options):
    roster = Roster(policy, n_select=3, seed=4, options=options)
    roster.watch(INITIAL)
    roster.register(infos(reversed(SIZES)))
    return roster


def replies(picked, t):
    return {n: Reply(model=model_of(n, t), loss=1.0 + hash_of(n) / (t + 1)) for n in picked}


def losses(names):
    return {n: float(hash_of(n)) for n in names}


@pytest.mark.parametrize("policy", POLICIES)
def test_selects_as_the_plain_loop_does(policy):
    """The same policy driven by hand, in slots, makes the same picks."""
    options = {"warmup": 2} if policy == "fedcvr-bolt" else {}
    roster = make_roster(policy, **options)
    names = sorted(SIZES)
    facts = dict(options)
    if policy == "fedcvr-bolt":
        features = FeatureMap.last_layer(INITIAL)
        facts |= {"n_features": 10, "initial": features.extract(INITIAL)}
    if policy == "fedcbs":
        facts["label_counts"] = [infos(names)[n].label_counts for n in names]
    plain = cvrcore.make_selector(
        policy, n_clients=8, n_select=3, weights=[SIZES[n] for n in names], seed=4, **facts
    )
    for t in range(6):
        picked = roster.select(np.random.default_rng(t).permutation(names).tolist(), losses)
        asked = plain.probe()
        known = None if asked is None else [float(hash_of(names[k])) for k in asked]
        selection = plain.select(losses=known)
        assert picked == [names[k] for k in selection.clients]
        back = sorted(selection.clients[:2])
        received = replies([names[k] for k in back], t)
        roster.report(received)  # the third is silent
        models = None
        if policy == "fedcvr-bolt":
            models = [features.extract(received[names[k]].model) for k in back]
        plain.observe(
            back, models, [received[names[k]].loss for k in back], failed=[selection.clients[2]]
        )
        assert roster.rounds[-1].failed == {picked[2]: "no answer in time"}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda good: Reply(model={**good, "out.bias": np.full(2, np.nan)}), "must be finite"),
        (lambda good: Reply(model={**good, "hidden": np.full((4, 3), np.inf)}), "must be finite"),
        (lambda good: Reply(model={**good, "out.bias": np.zeros(3)}), "must have shape"),
        (lambda good: Reply(model={"hidden": good["hidden"]}), "must hold the array"),
        (lambda good: Reply(model={**good, "out.bias": np.full(2, 1e200)}), "must stay within"),
        (lambda good: Reply(), "watched coordinates are wanted"),
        (lambda good: Reply(watched=[1.0, 2.0]), r"must have shape \(10,\)"),
        (lambda good: Reply(watched=np.full(10, np.nan)), "must be finite"),
    ],
)
def test_invalid_reply_is_reported_as_failed_and_the_round_goes_on(bad, why, caplog):
    roster = make_roster("fedcvr-bolt", warmup=0)
    picked = roster.select(SIZES)
    received = replies(picked, 0)
    received[picked[1]] = bad(received[picked[1]].model)
    with caplog.at_level(logging.WARNING):
        taken = roster.report(received)
    assert set(taken) == {picked[0], picked[2]}
    assert list(roster.rounds[0].failed) == [picked[1]]
    assert re.search(why, roster.rounds[0].failed[picked[1]])
    assert picked[1] in caplog.text
    assert roster.selector.round == 1
    roster.select(SIZES)


def test_missing_loss_fails_that_client_only():
    roster = make_roster("oort")
    picked = roster.select(SIZES)
    received = replies(picked, 0)
    received[picked[0]] = Reply(model=received[picked[0]].model)
    assert set(roster.report(received)) == set(picked[1:])
    assert "rms loss is wanted" in roster.rounds[0].failed[picked[0]]


def test_stranger_is_logged_and_left_out(caplog):
    roster = make_roster("uniform")
    picked = roster.select(SIZES)
    stranger = next(n for n in SIZES if n not in picked)
    roster.report({**replies(picked, 0), stranger: Reply(), "mallory": Reply()})
    assert set(roster.rounds[0].reported) == set(picked)
    assert stranger in caplog.text
    assert "mallory" in caplog.text


def test_slots_survive_leaving_and_returning_and_new_clients_extend_them():
    roster = make_roster("fedcvr-bolt", warmup=1)
    for t in range(4):
        present = [n for n in sorted(SIZES) if n != "client-2"] if t % 2 else sorted(SIZES)
        picked = roster.select(present)
        assert set(picked) <= set(present)
        roster.report(replies(picked, t))
    assert roster.register(infos(["zoe", "adam"])) == {}
    assert roster.ids.slots(["client-2", "client-7", "adam", "zoe"]).tolist() == [2, 7, 8, 9]
    assert roster.selector.n_clients == 10
    assert set(roster.select(["adam", "zoe"])) == {"adam", "zoe"}
    assert_array_equal(roster.selector.weights[8:], [5.0, 5.0])


def test_refuses_a_client_without_a_valid_size():
    roster = make_roster("uniform")
    refused = roster.register(
        {"a": ClientInfo(float("nan")), "b": ClientInfo(-1), "c": ClientInfo(2)}
    )
    assert set(refused) == {"a", "b"}
    assert "c" in roster.ids
    assert "a" not in roster.ids


def test_integer_ids_are_the_slots_of_a_ready_selector():
    """Even when the first one met is not number 0."""
    selector = cvrcore.make_selector("uniform", 6, 2, weights=[1, 1, 1, 1, 1, 0], seed=0)
    roster = Roster(selector)
    roster.register({5: ClientInfo(), 3: ClientInfo()})
    assert roster.select([5, 3]) == [3]  # number 5 has no samples
    roster.report({3: Reply()})
    roster.register({6: ClientInfo()})
    assert roster.ids.slot(6) == 6


def test_no_eligible_client_is_its_own_error():
    roster = Roster("uniform", n_select=1, seed=0)
    with pytest.raises(NoEligibleClientError):
        roster.select(["ann"])
    roster.register({"ann": ClientInfo(1), "bob": ClientInfo(0)})
    with pytest.raises(NoEligibleClientError):
        roster.select(["bob"])


@pytest.mark.parametrize("policy", POLICIES)
def test_restored_state_continues_to_the_same_picks(policy, tmp_path):
    from cvrcore.state import load_state, save_state

    def rounds(roster, begin, end):
        found = []
        for t in range(begin, end):
            found.append(roster.select(SIZES, losses))
            roster.report(replies(found[-1], t))
        return found

    whole = rounds(make_roster(policy), 0, 8)
    first = make_roster(policy)
    rounds(first, 0, 4)
    save_state(tmp_path / "state.npz", first.state_dict())
    second = Roster(policy, n_select=3, seed=99)
    second.load_state_dict(load_state(tmp_path / "state.npz"))
    assert rounds(second, 4, 8) == whole[4:]


def test_state_of_another_policy_is_refused():
    with pytest.raises(ValueError, match="must be of policy 'oort', got 'uniform'"):
        make_roster("oort").load_state_dict(make_roster("uniform").state_dict())
    with pytest.raises(ValueError, match="incomplete or malformed"):
        make_roster("oort").load_state_dict({"ids": {"ids": []}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selector": "uniform"}, "n_select must be given"),
        ({"selector": "unifrom", "n_select": 1}, "name must be one of"),
        ({"selector": cvrcore.make_selector("uniform", 3, 1), "seed": 1}, "go with a policy's"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Roster(**arguments)


def test_features_must_fit_a_ready_selector():
    roster = Roster(cvrcore.CoalitionSelector(8, 7, 2, seed=0))
    with pytest.raises(ValueError, match="the 7 coordinates of the selector, got 10"):
        roster.watch(INITIAL)


def test_a_probing_policy_needs_a_probe_function():
    roster = make_roster("power-of-choice")
    with pytest.raises(ValueError, match="'power-of-choice' probes: ask must be given, got None"):
        roster.select(SIZES)
    assert roster.selector.round == 0
    assert len(roster.select(SIZES, losses)) == 3  # nothing was spoilt


def test_a_report_without_a_round_is_refused():
    roster = make_roster("uniform")
    with pytest.raises(ValueError, match="report must follow select"):
        roster.report({})
    picked = roster.select(SIZES)
    roster.report(replies(picked, 0))
    with pytest.raises(ValueError, match="report must follow select"):
        roster.report(replies(picked, 0))


def test_watched_updates_are_differences_from_the_model_sent():
    """The same picks as by hand, with rows less those of the model sent."""
    features = FeatureMap.last_layer(INITIAL)
    roster = Roster("fedcvr-bolt", n_select=3, seed=4, features="update", options={"warmup": 1})
    roster.watch(INITIAL)
    roster.register(infos(SIZES))
    names = sorted(SIZES)
    plain = cvrcore.CoalitionSelector(8, 10, 3, weights=[SIZES[n] for n in names], warmup=1, seed=4)
    for t in range(4):
        sent, picked, selection = model_of("server", t), roster.select(names), plain.select()
        assert picked == [names[k] for k in selection.clients]
        received = replies(picked, t)
        roster.report(received, sent=sent)
        clients = np.sort(selection.clients)
        plain.observe(clients, features.updates([received[names[k]].model for k in clients], sent))
    assert_array_equal(roster.selector.rows, plain.rows)
    other = Roster("fedcvr-bolt", n_select=3, seed=4)
    with pytest.raises(ValueError, match="features must be 'update', as in the saved state"):
        other.load_state_dict(roster.state_dict())


def test_label_counts_are_wanted_and_passed_on_as_clients_join(caplog):
    roster = make_roster("fedcbs")
    with caplog.at_level(logging.WARNING):
        roster.register({"blank": ClientInfo(3.0, None)})
    assert "'fedcbs' wants its label counts" in caplog.text
    roster.register({"late": ClientInfo(3.0, [9, 0, 1])})
    assert roster.selector.n_clients == 9
    assert_array_equal(roster.selector.label_counts[-1], [9, 0, 1])


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_a_client_of_no_valid_size_is_not_taken_in(weight, caplog):
    roster = make_roster("uniform")
    with caplog.at_level(logging.WARNING):
        roster.register({"odd": ClientInfo(weight, None)})
    assert "its number of samples must be" in caplog.text
    assert "odd" not in roster.ids
    assert "odd" not in {id for t in range(20) for id in _round(roster, [*SIZES, "odd"])}


def _round(roster, names):
    picked = roster.select(names)
    roster.report({id: Reply() for id in picked})
    return picked


def test_label_counts_are_judged_client_by_client():
    roster = Roster("fedcbs", n_select=2, seed=0)
    good = {f"g{k}": ClientInfo(5.0, [1, 2, 2 + k]) for k in range(3)}
    bad = {
        "short": [1, 2], "negative": [1, -2, 3], "nan": [1, np.nan, 2], "text": ["a", "b", "c"],
        "zero": [0, 0, 0], "deep": [[1, 2, 3]], "none": None, "complex": [1j, 2, 3],
    }  # fmt: skip
    refused = roster.register({**{n: ClientInfo(5.0, c) for n, c in bad.items()}, **good})
    assert set(refused) == set(bad)
    assert set(roster.select([*bad, *good])) <= set(good)
    later = roster.register({n: ClientInfo(5.0, c) for n, c in bad.items()})
    assert set(later) == set(bad)
    assert roster.selector.n_clients == 3


@pytest.mark.parametrize("weight", ["12", None, [3], 10**400, 9.1e18, True, 1j, np.array([1, 2])])
def test_number_of_samples_of_another_kind_refuses_that_client_only(weight):
    roster = Roster("uniform", n_select=2, seed=0)
    refused = roster.register({"bad": ClientInfo(weight), "a": ClientInfo(1), "b": ClientInfo(2)})
    assert list(refused) == ["bad"]
    assert sorted(roster.select(["bad", "a", "b"])) == ["a", "b"]


def test_newcomers_beyond_the_memory_limit_are_refused(caplog):
    options = {"memory_limit": 2e5, "warmup": 0, "n_features": 10}
    roster = Roster("fedcvr-bolt", n_select=3, seed=0, options=options)
    roster.register({f"c{k:04d}": ClientInfo(1.0) for k in range(8)})
    crowd = {f"n{k:04d}": ClientInfo(1.0) for k in range(4000)}
    refused = roster.register(crowd)
    n_joined = roster.selector.n_clients - 8
    assert 0 < len(refused) == len(crowd) - n_joined
    assert "no memory for another client" in caplog.text
    assert set(refused) == set(sorted(crowd)[n_joined:])  # the last ones, in the order of ids
    picked = roster.select([*crowd, "c0001"])
    assert not set(picked) & set(refused)


def test_fewer_clients_than_places_are_all_taken_until_more_connect(caplog):
    roster = Roster("uniform", n_select=3, seed=0)
    assert roster.register({"zero": ClientInfo(0)})  # no client with samples yet
    roster.register({"b": ClientInfo(1), "a": ClientInfo(1)})
    assert "2 clients are registered and n_select is 3" in caplog.text
    assert sorted(_round(roster, ["a", "b"])) == ["a", "b"]
    roster.register({"c": ClientInfo(1), "d": ClientInfo(1)})
    assert roster.ids.slots(["a", "b", "c", "d"]).tolist() == [0, 1, 2, 3]
    assert len(_round(roster, ["a", "b", "c", "d"])) == 3


def test_durations_are_judged_one_by_one():
    """An invalid one fails its client; an unknown one counts as the slowest."""
    told = {}

    class Listening(type(cvrcore.make_selector("oort", 3, 1))):
        name = "oort"

        def _learn(self, report):
            told.update(zip(report.clients.tolist(), report.durations, strict=True))
            super()._learn(report)

    roster = Roster(Listening(4, 4, seed=0))
    roster.register({k: ClientInfo() for k in range(4)})
    roster.select(range(4))
    seconds = {0: 2.0, 1: float("nan"), 2: None, 3: 5.0}
    roster.report({k: Reply(loss=1.0, seconds=s) for k, s in seconds.items()})
    assert told == {0: 2.0, 2: 5.0, 3: 5.0}
    assert list(roster.rounds[0].failed) == [1]


def test_losses_that_nobody_sends_are_an_error_that_says_what_to_send():
    hints = {"losses": "call report_loss", "probe": "give loss=f"}
    roster = Roster("oort", n_select=3, seed=4, hints=hints)
    roster.register(infos(SIZES))
    picked = roster.select(SIZES)
    with pytest.raises(NeverReportedError, match=r"the rms.*none of 3 clients.*call report_loss"):
        roster.report({id: Reply() for id in picked})
    roster = Roster("power-of-choice", n_select=3, seed=4, hints=hints)
    roster.register(infos(SIZES))
    with pytest.raises(NeverReportedError, match="none of 6 clients sent one: give loss=f"):
        roster.select(SIZES, lambda ids: {})
    assert roster.select(SIZES, lambda ids: {ids[0]: 1.0})  # one is enough to go on
    roster.report({})
    assert roster.select(SIZES, lambda ids: {ids[0]: "text"})  # a bad day of everybody


def test_one_line_a_round_says_who_was_picked_by_whom_and_in_which_phase():
    lines = []
    roster = Roster("fedcvr-bolt", n_select=2, seed=0, options={"warmup": 1}, log=lines.append)
    roster.watch(INITIAL)
    roster.register(infos(SIZES))
    for t in range(2):
        roster.report(replies(roster.select(SIZES), t))
    assert re.fullmatch(
        r"selection 1 by fedcvr-bolt, warm-up round 1 of 1: 2 of 8 clients: client-\d, client-\d",
        lines[0],
    )
    assert lines[1].startswith("selection 2 by fedcvr-bolt: 2 of 8 clients: client-")


def test_warm_up_that_leaves_no_round_is_a_warning(caplog):
    roster = Roster("fedcvr-bolt", n_select=2, seed=0, options={"warmup": 5})
    roster.watch(INITIAL)
    roster.announce(5)
    roster.register(infos(SIZES))
    assert "will not act: all 5 announced rounds are warm-up" in caplog.text
    caplog.clear()
    ready = Roster(cvrcore.CoalitionSelector(8, 10, 2, warmup=9, seed=0))
    ready.announce(9)
    assert "fedcvr-bolt will not act: all 9 rounds are warm-up" in caplog.text
    auto = Roster("fedcvr-bolt", n_select=2, seed=0)
    auto.watch(INITIAL)
    auto.announce(6)
    auto.register(infos(SIZES))
    assert auto.selector.warmup == 2


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("optimal", {"design": "poisson"}),
        ("k-vib", {}),
        ("drift", {}),
        ("divfl", {}),
        ("multinomial", {}),
        ("clustered", {}),
        ("shapley", {}),
        ("fedcor", {}),
        ("hics", {}),
        ("pivotal", {}),
    ],
)
def test_what_a_policy_needs_is_read_from_the_replies(policy, options):
    utility = (
        (lambda model: -float(np.square(model["out.bias"]).sum())) if policy == "shapley" else None
    )
    roster = Roster(policy, n_select=3, seed=4, options=options, utility=utility)
    roster.watch(INITIAL)
    roster.register(infos(SIZES))
    roster.watch(INITIAL)
    for t in range(8):
        sent = model_of("server", t)
        picked = roster.select(SIZES, losses, sent)
        assert set(roster.report(replies(picked, t), sent=sent)) == set(picked)
    assert roster.selector.round == 8


def test_rounds_without_anybody_are_closed():
    roster = Roster("optimal", n_select=1, seed=1, options={"design": "poisson"})
    roster.register(infos(SIZES))
    sizes = []
    for t in range(30):
        picked = roster.select(SIZES, sent=INITIAL)
        roster.report(replies(picked, t), sent=INITIAL)
        sizes.append(len(picked))
    assert 0 in sizes
    assert len(set(sizes)) > 1
    assert len(roster.rounds) == 30


def test_utilities_need_a_function_and_probed_norms_are_refused():
    with pytest.raises(ValueError, match="utility must be given to policy 'shapley'"):
        Roster("shapley", n_select=2)
    roster = Roster("optimal", n_select=2, options={"norms": "probed"})
    with pytest.raises(ValueError, match="use norms='remembered'"):
        roster.register(infos(SIZES))


def test_a_forgotten_client_leaves_no_trace_and_joins_as_a_new_one():
    roster = Roster("fedcvr-bolt", n_select=8, seed=0, options={"warmup": 0}, aggregator="memory")
    roster.watch(INITIAL)
    roster.register(infos(SIZES))
    for t in range(2):
        picked = roster.select(SIZES)
        read = replies(picked, t)
        roster.report(read, sent=INITIAL)
        roster.merge(INITIAL, read)
    roster.forget("client-3")
    assert "client-3" not in roster.ids
    assert "client-3" not in str([one.plain() for one in roster.rounds])
    assert "client-3" not in str(roster.state_dict()["ids"])
    assert "client-3" not in roster.select(SIZES)
    roster.register(infos(["client-3"]))
    assert roster.ids.slot("client-3") == 8
    with pytest.raises(ValueError, match="client must be registered, got 'nobody'"):
        roster.forget("nobody")


def test_recommended_guards_bound_what_clients_claim_to_weigh():
    roster = Roster("uniform", n_select=3, seed=0, guards="recommended", aggregator="memory")
    roster.register({k: ClientInfo(w) for k, w in enumerate([10, 10, 10, 10, 9e15])})
    assert roster.selector.guards.max_share == 1.25
    assert roster.bounded_weights({0: 4.0, 4: 9e15}) == {0: 4.0, 4: 10.0}
    free = Roster("uniform", n_select=3, seed=0)
    free.register({k: ClientInfo(1.0) for k in range(5)})
    assert free.bounded_weights({4: 9e15}) == {4: 9e15}
