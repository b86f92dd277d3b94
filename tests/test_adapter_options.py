"""Option objects of the adapters, single keywords in their place, and guards."""

import dataclasses
import math

import pytest

import cvrcore
from cvrcore import Guards
from cvrcore.integrations.options import (
    REPORTS,
    WAITING,
    Reports,
    Waiting,
    adapter_keywords,
    join_options,
    take_group,
)
from cvrcore.integrations.roster import ClientInfo, Roster


def test_single_keywords_become_the_object():
    keywords = {"enough": 0.8, "wait": 5, "warmup": 3}
    assert take_group("waiting", WAITING, WAITING, keywords) == Waiting(enough=0.8, connect=5)
    assert keywords == {"warmup": 3}  # left for the policy
    assert take_group("reports", REPORTS, REPORTS, keywords) is REPORTS


def test_object_and_single_keyword_are_not_both_taken():
    message = r"waiting and wait must not both be given: use waiting=Waiting\(connect=...\)"
    with pytest.raises(TypeError, match=message):
        take_group("waiting", Waiting(), WAITING, {"wait": 5})
    with pytest.raises(TypeError, match="max_share must not be given both in options and by its"):
        join_options({"max_share": 2}, {"max_share": 3})


@pytest.mark.parametrize("value", [None, 5, {"grace": 3}])
def test_object_of_another_type_is_refused(value):
    with pytest.raises(TypeError, match="waiting must be a Waiting, got"):
        take_group("waiting", value, WAITING, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be positive, got 0"),
        ({"enough": 1.5}, "enough must be at most 1, got 1.5"),
        ({"enough": 0}, "enough must be positive, got 0"),
        ({"grace": math.nan}, "grace must be at least 0 seconds, got nan"),
        ({"connect": 0}, r"connect \(keyword: wait\) must be positive, got 0"),
    ],
)
def test_bad_waits_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Waiting(**options)


def test_a_timeout_is_only_ever_shortened():
    assert Waiting().at_most(9).timeout == 9
    assert Waiting(timeout=5).at_most(9).timeout == 5
    assert Waiting(timeout=12, grace=1).at_most(9) == Waiting(timeout=9, grace=1)
    assert Waiting(timeout=12).at_most(None).timeout == 12


def test_options_cannot_be_changed():
    for option in (Waiting(), Reports()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            option.timeout = 3


def make_roster(selector="uniform", **options):
    roster = Roster(selector, n_select=2, seed=0, **options)
    roster.register({k: ClientInfo() for k in range(9)})
    return roster


def test_guards_are_passed_on_to_the_selector():
    guards = Guards(max_share=1.25, on_invalid="skip")
    assert make_roster(guards=guards).selector.guards == guards
    single = {"max_share": 1.25, "on_invalid": "skip"}
    assert make_roster(options=single).selector.guards == guards
    assert make_roster().selector.guards == Guards()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"guards": Guards(max_share=2), "options": {"max_norm": 2.0}},
            r"guards and max_norm must not both be given: use guards=Guards\(max_norm=...\)",
        ),
        ({"guards": {"max_share": 2}}, "guards must be a Guards object or None, got {'max"),
        ({"options": {"max_shar": 2}}, "unknown option 'max_shar' with policy 'uniform'; did you "),
    ],
)
def test_bad_guards_are_refused_before_any_client_connects(arguments, message):
    with pytest.raises(TypeError, match=message):
        Roster("uniform", n_select=2, **arguments)
    with pytest.raises(ValueError, match="max_share must be above 1"):
        Roster("uniform", n_select=2, options={"max_share": 0.5})


def test_ready_selector_keeps_its_own_guards():
    ready = cvrcore.make_selector("uniform", 9, 2, max_share=1.5)
    with pytest.raises(ValueError, match="guards and options must go with a policy's name"):
        Roster(ready, guards=Guards(max_share=2))
    assert Roster(ready).selector.guards.max_share == 1.5


class Adapter:
    def __init__(self, selector, *, n_clients=None, **options):
        pass


@pytest.mark.parametrize(
    ("option", "similar"),
    [("warmpu", "warmup"), ("n_client", "n_clients"), ("los_key", "loss_key"), ("waits", "wait")],
)
def test_unknown_option_names_the_most_similar_one(option, similar):
    keywords = adapter_keywords(Adapter, REPORTS, WAITING)
    message = f"unknown option '{option}' with policy 'fedcvr-bolt'; did you mean '{similar}'?"
    with pytest.raises(TypeError, match=message):
        Roster("fedcvr-bolt", n_select=2, options={option: 1}, keywords=keywords)
    with pytest.raises(TypeError, match="unknown option 'xyzzy' with policy 'uniform'$"):
        Roster("uniform", n_select=2, options={"xyzzy": 1}, keywords=keywords)
