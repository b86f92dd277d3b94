"""Erasure: after `forget` no number of the client is left, and other clients keep theirs."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from siege import N_CLIENTS, N_FEATURES, N_SELECT, make

import cvrcore
from cvrcore.aggregators import AGGREGATORS, make_aggregator
from cvrcore.erasure import forget_in_file, forget_in_log, forget_in_state
from cvrcore.selectors import BUILT_IN
from cvrcore.state import load_state, save_state


@pytest.fixture(params=list(BUILT_IN))
def policy(request):
    """Return the name of each policy in turn, those that came later too."""
    return request.param


CLIENT = 7
MARK = 3.7182818284590453  # in everything that CLIENT reports, and nowhere else


def numbers(value):
    """Yield every number of a state, and the numbers inside its texts."""
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, np.ndarray):
        yield from np.asarray(value, dtype=np.float64).ravel()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield float(value)


def report(selector, clients, rng):
    size = clients.size
    told = {
        "models": rng.normal(size=(size, N_FEATURES)),
        "losses": 1.0 + rng.random(size),
        "durations": 1.0 + rng.random(size),
        "updates": rng.normal(size=(size, N_FEATURES)),
        "norms": 1.0 + rng.random(size),
        "utilities": rng.random(size),
    }
    for value in told.values():
        value[clients == CLIENT] = MARK
    wanted = {"models", "losses", "durations"} | selector.needs
    return {name: value for name, value in told.items() if name in wanted}


def played(policy, rounds=40, **options):
    weights = np.linspace(40.0, 60.0, N_CLIENTS)
    weights[CLIENT] = MARK * 10
    selector = make(policy, weights=weights, **options)
    rng, seen = np.random.default_rng(3), 0
    for t in range(400):
        if t >= rounds and seen:
            break
        asked = selector.probe()
        known = {}
        if asked is not None:
            known["losses"] = np.where(asked == CLIENT, MARK, 1.0 + rng.random(asked.size))
        if "sent" in selector.needs:
            known["sent"] = rng.normal(size=N_FEATURES)
        picked = selector.select(**known)
        selector.observe(picked.clients, **report(selector, picked.clients, rng))
        seen += CLIENT in picked.clients
    assert seen, "the client was never picked: nothing would be tested"
    return selector


def traces(selector):
    """Return the numbers of a state that only CLIENT can have put there."""
    weight = MARK * 10
    marks = [MARK, weight, np.sqrt(weight) * MARK, weight * MARK, np.log(weight), -MARK]
    held = np.array(list(numbers(selector.state_dict())))
    return [mark for mark in marks if np.isclose(held, mark, rtol=1e-9, atol=0.0).any()]


@pytest.mark.parametrize("guards", [None, "recommended"])
def test_no_number_of_the_client_is_left(policy, guards, tmp_path):
    selector = played(policy, guards=guards)
    assert traces(selector), "the marks are not found even before"
    selector.forget(CLIENT)
    assert traces(selector) == []
    assert all(incident.client != CLIENT for incident in selector.incidents)
    selector.save(tmp_path / "state.npz")
    again = cvrcore.Selector.load(tmp_path / "state.npz")
    assert traces(again) == []
    assert MARK.hex().encode() not in (tmp_path / "state.npz").read_bytes()
    assert np.float64(MARK).tobytes() not in (tmp_path / "state.npz").read_bytes()


def test_other_clients_keep_their_state(policy):
    """Every array with a row for each client is the same elsewhere; C alpha of FedCVR-Bolt is a
    sum over clients, tested below."""
    selector = played(policy, guards="recommended")
    before = selector.state_dict()
    selector.forget(CLIENT)
    after = selector.state_dict()
    others = np.delete(np.arange(N_CLIENTS), CLIENT)
    compared = 0
    for part in ("config", "learned", "guards"):
        for name, value in before[part].items():
            rows = isinstance(value, np.ndarray) and value.shape[:1] == (N_CLIENTS,)
            # DivFL and HiCS keep rows of the clients seen: now there is one less.
            rows = rows and after[part][name] is not None and len(after[part][name]) == N_CLIENTS
            if rows and name not in ("moment", "scores", "labels", "stale", "history"):
                assert_array_equal(after[part][name][others], value[others], err_msg=name)
                compared += 1
    assert compared >= 3


def test_a_forgotten_client_is_never_picked_again(policy):
    selector = played(policy, guards="recommended")
    selector.forget(CLIENT)
    rng = np.random.default_rng(4)
    for _ in range(40):
        asked = selector.probe()
        known = {} if asked is None else {"losses": 1.0 + rng.random(asked.size)}
        if "sent" in selector.needs:
            known["sent"] = rng.normal(size=N_FEATURES)
        picked = selector.select(**known)
        assert CLIENT not in picked.clients
        assert CLIENT not in (() if asked is None else asked)
        selector.observe(picked.clients, **report(selector, picked.clients, rng))


@pytest.mark.parametrize("store", ["dense", "factored"])
def test_covariance_is_that_of_a_client_without_residuals(store):
    """Oracle: the dense C with the client's entries at the level of C(1), times the new alpha."""
    selector = played("fedcvr-bolt", store=store)
    weights, dense = selector.weights.copy(), selector.covariance()
    moment = selector._estimator.moment
    assert_allclose(moment.T, dense @ (weights / weights.sum()), rtol=1e-9)
    selector.forget(CLIENT)
    estimator = selector._estimator
    dense[:, CLIENT] = dense[:, :, CLIENT] = estimator.ones
    weights[CLIENT] = 0.0
    assert_allclose(selector.covariance(), dense, rtol=1e-12)
    moment = dense @ (weights / weights.sum())
    assert_allclose(estimator.moment.T, moment, rtol=1e-9, atol=1e-12)
    diagonal = np.einsum("dkk->kd", dense)
    assert_allclose(estimator.diagonal, diagonal, rtol=1e-12)
    assert_array_equal(selector.rows[CLIENT], np.zeros(N_FEATURES))


def test_pending_rounds_are_dropped_and_bad_ids_refused(policy):
    selector = played(policy)
    with pytest.raises(ValueError, match=f"client must be ids in 0..{N_CLIENTS - 1}, got 99"):
        selector.forget(99)
    asked = selector.probe()
    known = {} if asked is None else {"losses": np.ones(asked.size)}
    if "sent" in selector.needs:
        known["sent"] = np.ones(N_FEATURES)
    selector.select(**known)
    selector.forget(CLIENT)
    with pytest.raises(ValueError, match="no round is pending"):
        selector.observe([])


def test_fixed_features_and_scores_are_erased():
    rng = np.random.default_rng(0)
    features, law = rng.normal(size=(12, 3)), 1.0 + rng.random(12)
    features[CLIENT], law[CLIENT] = MARK, MARK
    selector = cvrcore.make_selector("pivotal", 12, 3, features=features, law=law, seed=0)
    selector.observe(selector.select().clients)
    selector.forget(CLIENT)
    assert not np.isclose(list(numbers(selector.state_dict())), MARK).any()
    assert CLIENT not in selector.select().clients


def test_changes_of_losses_are_erased():
    selector = played("fedcor")
    selector._changes[:, CLIENT] = 1.5
    assert selector.state_dict()["learned"]["changes"].size
    selector.forget(CLIENT)
    assert not selector.state_dict()["learned"]["changes"][:, CLIENT].any()


def test_a_policy_that_scores_by_a_function_forgets():
    rng = np.random.default_rng(0)
    selector = played("learned", scorer=lambda features: rng.random(len(features)))
    selector.forget(CLIENT)
    assert not selector.state_dict()["learned"]["reports"][CLIENT]


def test_the_last_client_cannot_be_forgotten():
    selector = cvrcore.make_selector("uniform", 2, 1, weights=[1.0, 0.0])
    with pytest.raises(ValueError, match="only one of positive weight"):
        selector.forget(0)


# -- aggregators ----------------------------------------------------------------


def merged(name, rounds=6, marked=True, **options):
    aggregator = make_aggregator(name, **options)
    rng, n_clients = np.random.default_rng(5), 12
    weights = np.arange(1.0, n_clients + 1)
    model = [np.zeros((6, 4), np.float32), np.zeros(4, np.float32)]
    for t in range(rounds):
        clients = (np.arange(3) + 2 * t) % n_clients
        received = [[rng.normal(size=a.shape).astype(a.dtype) for a in model] for _ in clients]
        for update in (u for k, u in zip(clients, received, strict=True) if k == CLIENT):
            for array in update:
                array[:] = MARK
        selection = cvrcore.Selection(
            clients=clients,
            coalitions=np.arange(n_clients) % 3,
            inclusion=np.full(n_clients, 0.25),
        )
        aggregator.aggregate(model, received, clients, weights, selection)
    return aggregator


@pytest.mark.parametrize("guards", [None, "recommended"])
@pytest.mark.parametrize("name", [n for n in AGGREGATORS if n != "factor-memory"])
def test_no_update_of_the_client_is_left(name, guards):
    aggregator = merged(name, guards=guards)
    aggregator.forget(CLIENT)
    held = np.array(list(numbers(aggregator.state_dict())) + [0.0])
    assert not np.isclose(held, MARK, rtol=1e-6).any()
    assert not np.isclose(held, MARK * np.sqrt(28), rtol=1e-6).any()  # the length of its update
    aggregator.forget(10_000)  # nobody: nothing to erase
    aggregator.load_state_dict(aggregator.state_dict())


@pytest.mark.parametrize("guards", [None, "recommended"])
def test_factor_memory_erases_the_features_of_the_client(guards):
    """Its rows of the regression are learned from all clients, and stay, as the model does."""
    aggregator = merged("factor-memory", guards=guards)
    before = aggregator.state_dict()
    assert before["seen"][CLIENT]
    assert before["features"][CLIENT].any()
    aggregator.forget(CLIENT)
    after = aggregator.state_dict()
    assert not after["seen"][CLIENT]
    assert not after["features"][CLIENT].any()
    assert after["missed"][CLIENT] == 1.0  # as a client that no draw could have picked
    others = np.delete(np.arange(12), CLIENT)
    for name in ("features", "seen", "missed"):
        assert_array_equal(after[name][others], before[name][others], err_msg=name)
    assert_array_equal(after["gram"], before["gram"])
    assert_array_equal(after["bank"]["rows"], before["bank"]["rows"])
    held = np.array(list(numbers(after.get("guard", {}))) + [0.0])
    assert not np.isclose(held, MARK * np.sqrt(28), rtol=1e-6).any()
    aggregator.forget(10_000)  # nobody: nothing to erase
    aggregator.load_state_dict(after)


def test_given_features_of_a_client_are_erased():
    features = np.random.default_rng(0).normal(size=(12, 3))
    features[CLIENT] = MARK
    aggregator = merged("factor-memory", features=features)
    aggregator.forget(CLIENT)
    state = aggregator.state_dict()
    assert not np.isclose(list(numbers(state)), MARK).any()
    again = make_aggregator("factor-memory", features=features)  # a server that starts anew
    again.load_state_dict(state)
    assert_array_equal(again.state_dict()["features"], state["features"])


def test_memory_without_a_client_is_the_sum_over_the_others():
    aggregator = merged("memory")
    before = aggregator.state_dict()
    ids = np.flatnonzero(before["bank"]["known"])
    assert CLIENT in ids
    rows = dict(zip(ids, before["bank"]["rows"].astype(np.float64), strict=True))
    aggregator.forget(CLIENT)
    after = aggregator.state_dict()
    assert_array_equal(np.flatnonzero(after["bank"]["known"]), ids[ids != CLIENT])
    expected = sum((k + 1) * row for k, row in rows.items() if k != CLIENT)
    assert_allclose(after["sum"], expected, rtol=1e-12)


def test_rows_in_a_file_are_overwritten(tmp_path):
    aggregator = merged("memory", limit=0, folder=tmp_path)
    state = aggregator.state_dict()
    assert np.float32(MARK).tobytes() * 3 in (tmp_path / "memory.rows").read_bytes()
    aggregator.forget(CLIENT)
    assert np.float32(MARK).tobytes() * 3 not in (tmp_path / "memory.rows").read_bytes()
    again = make_aggregator("memory", limit=0, folder=tmp_path)
    again.load_state_dict(aggregator.state_dict())
    assert state["bank"]["known"][CLIENT]
    assert not again.state_dict()["bank"]["known"][CLIENT]


# -- files ----------------------------------------------------------------------


def test_a_checkpoint_forgets_everywhere(tmp_path):
    selector, aggregator = played("active", guards="recommended"), merged("memory")
    ids = cvrcore.IdMap([f"client {k}" for k in range(N_CLIENTS)])
    path = tmp_path / "checkpoint.npz"
    save_state(
        path,
        {
            "roster": {"selector": selector.state_dict(), "ids": ids.state_dict()},
            "aggregators": [aggregator.state_dict()],
            "rounds": 40,
        },
    )
    forget_in_file(path, CLIENT)
    state = load_state(path)
    held = np.array(list(numbers(state)))
    assert not np.isclose(held, MARK, rtol=1e-9).any()
    again = cvrcore.Selector.load  # the parts load on their own
    save_state(tmp_path / "selector.npz", state["roster"]["selector"])
    assert again(tmp_path / "selector.npz").weights[CLIENT] == 0
    make_aggregator("memory").load_state_dict(state["aggregators"][0])
    restored = cvrcore.IdMap.from_state_dict(state["roster"]["ids"])
    assert f"client {CLIENT}" not in restored
    assert restored.slot("client 0") == 0
    assert state["rounds"] == 40
    assert forget_in_state(aggregator.state_dict(), CLIENT)["aggregator"] == "memory"


def test_a_log_forgets(tmp_path):
    path = tmp_path / "rounds.jsonl"
    lines = [{"round": 1, "picked": [3, CLIENT], "failed": []}, {"round": CLIENT, "picked": [1]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    forget_in_log(path, CLIENT)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == [{"round": 1, "picked": [3], "failed": []}, {"round": CLIENT, "picked": [1]}]
    assert list(tmp_path.iterdir()) == [path]


def test_ids_forget():
    ids = cvrcore.IdMap(["ann", "bob"])
    assert ids.forget("ann") == 0
    assert "ann" not in ids
    assert ids.slot("ann") == 2
    assert len(ids) == 3
    with pytest.raises(ValueError, match="id must be in the map, got 'eve'"):
        ids.forget("eve")


def test_n_select_is_still_reached():
    selector = played("uniform")
    selector.forget(CLIENT)
    assert len(selector.select()) == N_SELECT
