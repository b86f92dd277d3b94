"""Quotas, budgets and asynchronous servers."""

import heapq

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import cvrcore
from cvrcore.selectors import BUILT_IN, policy_class

SITES = ["north"] * 6 + ["south"] * 4 + [None] * 2


def test_quotas_are_kept_with_exact_inclusion():
    weights = np.arange(1.0, 13.0)
    selector = cvrcore.make_selector("multinomial", 12, 4, weights=weights, tags=SITES, seed=0)
    picked = selector.select(quotas={"north": 3, "south": 2})
    assert picked.counts.sum() == 5
    expected = np.zeros(12)
    expected[:6] = 3 * weights[:6] / weights[:6].sum()
    expected[6:10] = 2 * weights[6:10] / weights[6:10].sum()
    assert_allclose(picked.expected, expected)
    assert_allclose(picked.probabilities.sum(), 1.0)


def test_quotas_of_a_uniform_draw():
    selector = cvrcore.make_selector("uniform", 12, 4, tags=SITES, seed=0)
    picked = selector.select(quotas={"north": 3, "south": 9})
    assert_allclose(picked.inclusion, [0.5] * 6 + [1.0] * 4 + [0.0] * 2)
    assert (picked.clients < 6).sum() == 3
    assert len(picked) == 7
    selector.observe(picked.clients)
    assert len(selector.select()) == 4


def test_fedcvr_bolt_thins_its_draw():
    selector = cvrcore.make_selector("fedcvr-bolt", 12, 4, n_features=2, warmup=0, seed=0)
    selector.set_tags(SITES)
    rng = np.random.default_rng(0)
    for _ in range(5):
        picked = selector.select(quotas={"north": 2, "south": 1})
        assert (picked.clients < 6).sum() == 2
        assert_allclose(picked.inclusion.sum(), 3.0)
        selector.observe(picked.clients, rng.normal(size=(3, 2)))
    with pytest.raises(ValueError, match="n must be at most n_select, 4"):
        selector.select(n=5)
    with pytest.raises(ValueError, match="concurrent must be False with fedcvr-bolt"):
        selector.select(n=1, concurrent=True)


@pytest.mark.parametrize(
    ("quotas", "error", "message"),
    [
        ({"west": 1}, ValueError, "tags that clients have .'north', 'south'.*got 'west'"),
        ({"north": -1}, ValueError, r"quotas\['north'\] must be at least 0"),
        ({"north": 0}, ValueError, "quotas must leave a client to pick"),
        ({}, TypeError, "quotas must map at least one tag"),
    ],
)
def test_bad_quotas_are_refused(quotas, error, message):
    selector = cvrcore.make_selector("uniform", 12, 4, tags=SITES, seed=0)
    before = selector.state_dict()
    with pytest.raises(error, match=message):
        selector.select(quotas=quotas)
    np.testing.assert_equal(selector.state_dict(), before)


def test_tags_are_checked():
    selector = cvrcore.make_selector("uniform", 3, 1, seed=0)
    with pytest.raises(ValueError, match="quotas need tags"):
        selector.select(quotas={"a": 1})
    with pytest.raises(ValueError, match="tags must name the tag of 3 clients"):
        selector.set_tags(["a"])
    with pytest.raises(TypeError, match="tags must be strings or None, got 3"):
        selector.set_tags(["a", "b", 3])
    selector.set_tags(["a", "b", "a"])
    selector.resize(4, [1.0])
    assert selector.tags == ["a", "b", "a", None]


# -- budgets ------------------------------------------------------------------


def test_a_client_without_budget_is_absent():
    selector = cvrcore.make_selector("uniform", 4, 2, seed=0)
    limits = np.array([10.0, 10.0, 10.0, 100.0])
    selector.set_budgets({"joules": limits})
    spent = np.zeros(4)
    for _ in range(8):
        picked = selector.select()
        assert (spent[picked.clients] < limits[picked.clients]).all()
        selector.observe(picked.clients, costs={"joules": np.full(len(picked), 6.0)})
        spent[picked.clients] += 6.0
    assert_allclose(selector.budget_left()["joules"], np.maximum(limits - spent, 0))
    assert_array_equal(spent[:3], [12.0, 12.0, 12.0])
    with pytest.raises(ValueError, match="that is idle and has budget left"):
        selector.select([0, 1, 2])


def test_prices_are_charged_to_whoever_was_picked_and_a_horizon_refills():
    selector = cvrcore.make_selector("uniform", 6, 2, seed=0)
    selector.set_budgets({"bytes": 10.0}, prices={"bytes": 5.0}, horizon=6)
    times = np.zeros(6)
    for _ in range(6):
        picked = selector.select()
        selector.observe(picked.clients[:1], failed=picked.clients[1:])
        times[picked.clients] += 1
    assert_array_equal(times, np.full(6, 2))  # all could afford two rounds, failed or not
    assert_array_equal(selector.budget_left()["bytes"], np.full(6, 10.0))
    selector.select()


def test_budgets_are_part_of_the_state_and_checked():
    selector = cvrcore.make_selector("uniform", 3, 1, seed=0)
    selector.set_budgets({"bytes": 7.0}, prices={"bytes": 3.0}, horizon=9)
    picked = selector.select()
    with pytest.raises(ValueError, match="costs must be of resources with a budget .'bytes'"):
        selector.observe(picked.clients, costs={"time": [1.0]})
    with pytest.raises(ValueError, match="must be non-negative"):
        selector.observe(picked.clients, costs={"bytes": [-1.0]})
    selector.observe(picked.clients, costs={"bytes": [1.0]})
    twin = type(selector).from_state_dict(selector.state_dict())
    assert_array_equal(twin.budget_left()["bytes"], selector.budget_left()["bytes"])
    assert twin.budget_left()["bytes"].min() == 3.0
    with pytest.raises(ValueError, match="prices must be of resources with a limit"):
        selector.set_budgets({"bytes": 1.0}, prices={"time": 1.0})
    with pytest.raises(ValueError, match=r"limits\['bytes'\] must be non-negative"):
        selector.set_budgets({"bytes": -1.0})
    state = selector.state_dict()
    state["budgets"]["resources"]["bytes"]["spent"] = np.full(3, -1.0)
    with pytest.raises(ValueError, match="spent"):
        type(selector).from_state_dict(state)


# -- asynchronous servers --------------------------------------------------------


ASYNCHRONOUS = [name for name in BUILT_IN if policy_class(name).asynchronous]


def test_all_policies_but_one_serve_an_asynchronous_server():
    assert set(BUILT_IN) - set(ASYNCHRONOUS) == {"fedcvr-bolt"}


@pytest.mark.parametrize("policy", ASYNCHRONOUS)
def test_fedbuff_with_a_simulated_clock(policy):
    """Ten clients train at all times; the server steps after every five reports."""
    n, concurrency, buffer, width = 60, 10, 5, 3
    rng = np.random.default_rng(1)
    seconds = rng.lognormal(0.0, 1.0, n)
    centres = rng.normal(size=(n, width))
    watching = ("drift", "pivotal", "divfl", "hics")
    options = {"n_features": width} if policy in watching else {}
    if policy == "fedcbs":
        options["label_counts"] = rng.integers(1, 9, (n, 4))
    selector = cvrcore.make_selector(policy, n, concurrency, seed=0, **options)
    model, steps, received = np.zeros(width), 0, []
    training: list = []  # (time of the report, round, client, model it started from)

    def start(now):
        context = {"sent": model} if "sent" in selector.needs else {}
        asked = selector.probe() if "probe" in selector.needs else None
        if asked is not None:
            context["losses"] = np.linalg.norm(centres[asked] - model, axis=1)
        picked = selector.select(n=1, concurrent=True, **context)
        for client in picked.clients:
            heapq.heappush(training, (now + seconds[client], picked.round, client, model))

    for _ in range(concurrency):
        start(0.0)
    closed = []
    for _ in range(400):
        now, number, client, sent = heapq.heappop(training)
        update = 0.2 * (centres[client] - sent)
        report = {
            "losses": [np.linalg.norm(update)],
            "durations": [seconds[client]],
            "norms": [np.linalg.norm(update)],
            "updates": update[None],
            "models": update[None],
            "utilities": [-np.linalg.norm(update)],
        }
        wanted = selector.needs | {"durations"}
        selector.observe([client], round=number, **{k: report[k] for k in wanted & report.keys()})
        closed.append(number)
        received.append(update)
        if len(received) == buffer:  # FedBuff: the mean of a full buffer
            model, steps, received = model + np.mean(received, axis=0), steps + 1, []
        start(now)
        assert len({client for _, _, client, _ in training}) == concurrency  # nobody twice
    assert selector.round == 400
    assert steps == 80
    assert len(set(closed)) == 400
    assert closed != sorted(closed)  # reports did arrive out of order
    assert len(selector.open_rounds) == concurrency
    # Near the mean of those that report: the fast ones report more often.
    assert np.linalg.norm(model - centres.mean(axis=0)) < 1.0


def test_open_rounds_are_named_and_survive():
    selector = cvrcore.make_selector("pivotal", 8, 3, n_features=2, seed=0)
    first = selector.select(n=2, concurrent=True)
    second = selector.select(n=1, concurrent=True)
    assert not set(first.clients) & set(second.clients)
    with pytest.raises(ValueError, match="round must be given while rounds overlap: one of .0, 1"):
        selector.observe(second.clients, models=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="round must be of a selection that is open, got 7"):
        selector.observe(second.clients, models=[[1.0, 2.0]], round=7)
    with pytest.raises(ValueError, match="clients must have been selected this round"):
        selector.observe(first.clients, models=np.ones((2, 2)), round=second.round)
    selector.resize(9, [1.0])
    selector = type(selector).from_state_dict(selector.state_dict())
    selector.observe(second.clients, models=[[1.0, 2.0]], round=second.round)
    third = selector.select(n=1, concurrent=True)
    assert third.round == 2
    selector.observe([], failed=first.clients, round=first.round)
    selector.observe(third.clients, models=[[0.0, 0.0]], round=third.round)
    assert selector.round == 3
    with pytest.raises(ValueError, match="no round is pending"):
        selector.observe([])


def test_all_clients_busy_is_an_error():
    selector = cvrcore.make_selector("uniform", 2, 1, seed=0)
    for _ in range(2):
        selector.select(concurrent=True)
    with pytest.raises(ValueError, match="that is idle and has budget left"):
        selector.select(concurrent=True)


def test_a_plain_round_beside_open_ones_has_a_number_of_its_own():
    selector = cvrcore.make_selector("uniform", 6, 2, seed=0)
    early = selector.select(concurrent=True)
    plain = selector.select()
    assert plain.round != early.round
    selector.observe(plain.clients, round=plain.round)
    selector.observe(early.clients, round=early.round)
    assert selector.open_rounds == []
    assert selector.select().round == selector.round == 2


def test_budgets_must_be_a_mapping():
    with pytest.raises(TypeError, match="limits must map resources to amounts, got 5"):
        cvrcore.make_selector("uniform", 3, 1, seed=0).set_budgets(5)
