"""The adapter on a grid without a runtime: the same picks, and every trap that was met."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import (
    INITIAL,
    N_CLIENTS,
    SIZES,
    FakeGrid,
    loss_of,
    make_app,
    make_strategy,
    picks,
    record,
    run,
    trained,
)
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx

import cvrcore
from cvrcore.features import FeatureMap
from cvrcore.integrations import flower
from cvrcore.integrations.flower import Guards, Reports, SelectingStrategy, Waiting
from cvrcore.integrations.roster import ClientInfo

POLICIES = ["uniform", "power-of-choice", "active", "oort", "fedcbs", "fedcvr-bolt"]


def plain_loop(policy, rounds=6):
    """FedAvg by hand with the same policy: picks, and the last model."""
    features = FeatureMap.last_layer(INITIAL)
    facts = {
        "fedcvr-bolt": {"n_features": 10, "initial": features.extract(INITIAL), "warmup": 2},
        "fedcbs": {"label_counts": [[1 + k % 3, 5, SIZES[0]] for k in range(N_CLIENTS)]},
    }
    selector = cvrcore.make_selector(
        policy, N_CLIENTS, 4, weights=SIZES[:N_CLIENTS], seed=7, **facts.get(policy, {})
    )
    model, found = INITIAL, []
    for _ in range(rounds):
        asked = selector.probe()
        losses = None if asked is None else [loss_of(model, int(k)) for k in asked]
        clients = np.sort(selection := selector.select(losses=losses).clients)
        found.append(selection.tolist())
        updates = [trained(model, int(k)) for k in clients]
        selector.observe(
            clients,
            features.extract_all(updates),
            [loss_of(model, int(k)) for k in clients],
        )
        weights = np.array([SIZES[k] for k in clients]) / sum(SIZES[k] for k in clients)
        model = {
            name: sum(w * u[name] for w, u in zip(weights, updates, strict=True)) for name in model
        }
    return found, model


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_picks_as_the_plain_loop_does(policy):
    """Trap 1: node ids and their order are random, picks are not."""
    expected, model = plain_loop(policy)
    for seed in (1, 2):
        strategy = make_strategy(policy)
        grid = FakeGrid(seed=seed)
        result = run(strategy, grid)
        assert picks(strategy) == expected
        assert grid.trained() == sum(expected, [])
        for name, array in result.arrays.items():
            assert_allclose(array.numpy(), model[name], rtol=1e-12)


def test_ready_selector_serves_too():
    selector = cvrcore.make_selector("oort", N_CLIENTS, 4, weights=SIZES[:N_CLIENTS], seed=7)
    strategy = make_strategy(selector)
    run(strategy)
    assert picks(strategy) == plain_loop("oort")[0]
    assert selector.round == 6


@pytest.mark.parametrize("inner", [FedAvg, FedProx, FedAdam, FedMedian])
def test_aggregation_stays_the_strategys(inner):
    """One round over everybody equals the strategy alone, whatever it thinks of sampling."""
    alone = inner(fraction_train=1.0)
    grid = FakeGrid(seed=1)
    messages = list(alone.configure_train(1, record(INITIAL), ConfigRecord(), grid))
    order = {node: k for node, k in grid.nodes.items()}
    messages.sort(key=lambda m: order[m.metadata.dst_node_id])
    replies = [grid.pull_messages([id])[0] for id in grid.push_messages(messages)]
    expected, _ = alone.aggregate_train(1, replies)

    strategy = make_strategy(
        "uniform", inner(fraction_train=0.1, min_available_nodes=50), n_select=N_CLIENTS
    )
    got = run(strategy, FakeGrid(seed=2), rounds=1).arrays
    for name in INITIAL:
        assert_allclose(got[name].numpy(), expected[name].numpy(), rtol=1e-12)
    assert strategy.strategy.min_available_nodes == 50  # left as it was


def test_what_the_strategy_tells_clients_still_reaches_them():
    grid = FakeGrid()
    run(make_strategy("uniform", FedProx(proximal_mu=0.25)), grid, rounds=1)
    sent = [m for m in grid.pushed if m.metadata.message_type == "train"]
    assert len(sent) == 4
    assert all(m.content["config"]["proximal-mu"] == 0.25 for m in sent)


def test_strategy_that_writes_to_one_node_has_all_picked_asked():
    class First(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return list(super().configure_train(server_round, arrays, config, grid))[:1]

    grid = FakeGrid()
    strategy = make_strategy("uniform", First())
    run(strategy, grid, rounds=2)
    assert [len(found.reported) for found in strategy.rounds] == [4, 4]


def test_client_that_always_fails_is_reported_and_loses_its_place():
    """Trap 2: Oort hears of failures and turns to others."""
    grid = FakeGrid(seed=0)
    grid.broken = {11}  # the one with most samples
    strategy = make_strategy("oort")
    run(strategy, grid, rounds=12)
    failures = [found.failed for found in strategy.rounds if found.failed]
    assert failures
    assert all(f == {11: "out of memory"} for f in failures)
    assert len(failures) < 6


def test_waits_are_bounded(caplog):
    """Trap 5: no node connects, no node replies, a strategy waits for more nodes than exist."""
    began = time.monotonic()
    strategy = make_strategy("uniform", wait=0.2)
    run(strategy, FakeGrid(partitions=()), rounds=2)
    assert strategy.rounds == []
    assert "round 1 is skipped" in caplog.text

    grid = FakeGrid()
    strategy = make_strategy("uniform", wait=0.2)
    grid.dead = set(range(N_CLIENTS))
    with pytest.raises(RuntimeError, match=r"12 did not intro.* within wait=0.2 s \(on a"):
        run(strategy, grid, rounds=1)
    assert time.monotonic() - began < 10


def test_strategy_with_a_wait_loop_of_its_own_ends_in_an_error(monkeypatch):
    class Patient(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            while len(grid.get_node_ids()) < 99:
                pass
            return super().configure_train(server_round, arrays, config, grid)

    with pytest.raises(TimeoutError, match="waits for more than the 4 nodes"):
        run(make_strategy("uniform", Patient()), rounds=1)


def test_messages_are_built_without_private_names():
    """Trap 7: `_construct_messages` and its kin may go any day."""
    import ast

    for path in sorted(Path(flower.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        private = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        }
        assert private == set(), path.name


def test_durations_are_reported_only_when_asked_for():
    told = []

    class Listening(type(cvrcore.make_selector("uniform", 2, 1))):
        def _learn(self, report):
            told.append(report.durations)

    grid = FakeGrid()
    grid.delay = {4: 0.3}
    for durations in (False, True):
        selector = Listening(N_CLIENTS, N_CLIENTS, seed=0)
        run(make_strategy(selector, durations=durations), grid, rounds=1)
    assert told[0] is None
    assert told[1].shape == (N_CLIENTS,)
    assert told[1][4] >= 0.3
    assert (told[1] > 0).all()


def test_clients_join_leave_and_come_back():
    grid = FakeGrid(seed=3)
    strategy = make_strategy("fedcvr-bolt")
    run(strategy, grid, rounds=3)
    old = grid.leave(0)
    run(strategy, grid, rounds=2)
    assert all(0 not in found.available for found in strategy.rounds[3:])
    new = grid.join(0)  # the same client on another node
    assert new != old
    grid.join(13)
    grid.join(12)
    run(strategy, grid, rounds=3)
    assert strategy.rounds[-1].available == [*range(12), 12, 13]
    assert strategy.roster.ids.slots([0, 12, 13]).tolist() == [0, 12, 13]
    assert strategy.roster.selector.weights[12:].tolist() == SIZES[12:14]


def test_probe_by_the_apps_own_evaluation():
    by_query, by_evaluation = (
        make_strategy("power-of-choice"),
        make_strategy("power-of-choice", probe="evaluate"),
    )
    run(by_query)
    grid = FakeGrid()
    run(by_evaluation, grid)
    assert picks(by_query) == picks(by_evaluation)
    assert not any(m.metadata.message_type == "query.cvrcore_loss" for m in grid.pushed)


def test_documented_snippets_run(tmp_path, monkeypatch):
    """docs/flower.md, its client, server, options and aggregator, as printed."""
    import re

    text = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    monkeypatch.chdir(tmp_path)
    server, advised, balanced, client, options, merging = re.findall(
        r"```python\n(.*?)```", text, re.DOTALL
    )
    app = make_app(introduced=False)
    exec(client, {"app": app, "load_data": lambda k: [0] * SIZES[k]})
    names = {"initial_arrays": record(INITIAL)}
    exec(server, names)
    names["server"](grid=(grid := FakeGrid(app)), context=None)
    assert len(grid.trained()) == 60 * 4
    for snippet in (advised, balanced):
        exec(snippet, names)
        run(names["strategy"], rounds=2)
        assert names["strategy"].roster.aggregator.name == "factor-memory"
    exec(options, names)
    run(names["strategy"], rounds=2)
    assert names["strategy"].waiting == Waiting(enough=0.8, grace=30, connect=120)
    assert names["strategy"].roster.selector.guards.max_share == 1.25
    exec(merging, names)
    run(names["strategy"], rounds=2)
    assert names["strategy"].roster.aggregator.name == "memory"
    assert (tmp_path / "selector-2.npz").exists()


@pytest.mark.parametrize("policy", POLICIES)
def test_restored_state_continues_to_the_same_picks(policy, tmp_path):
    whole = make_strategy(policy)
    run(whole, FakeGrid(seed=1), rounds=8)

    first = make_strategy(policy, checkpoint=tmp_path / "selector-{round}.npz")
    result = run(first, FakeGrid(seed=2), rounds=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"selector-{t}.npz" for t in (1, 2, 3, 4)]
    second = make_strategy(policy, seed=99, restore=tmp_path / "selector-4.npz")
    second.start(FakeGrid(seed=3), result.arrays, 4, timeout=20)
    assert picks(second) == picks(whole)[4:]


@pytest.mark.parametrize(
    ("identity", "expected"),
    [("name", "node-03"), ("key", "03030303"), (lambda info: info.name[-2:], "03")],
)
def test_identity_that_the_superlink_has_verified(identity, expected):
    strategy = make_strategy("uniform", identity=identity)
    run(strategy)
    assert strategy.roster.ids.slot(expected) == 3
    assert [
        [int(name[-2:], 16 if identity == "key" else 10) for name in p] for p in picks(strategy)
    ] == plain_loop("uniform")[0]


def test_node_without_a_name_is_told_how_to_get_one():
    class Nameless(FakeGrid):
        def get_nodes(self):
            for info in super().get_nodes():
                info.name = ""  # what Flower says of nodes that were not registered
                yield info

    with pytest.raises(RuntimeError, match="knows no name of it: flwr supernode register"):
        run(make_strategy("uniform", identity="name"), Nameless(), rounds=1)


def test_stated_id_never_replaces_the_one_that_the_superlink_has_verified():
    """A node that the SuperLink says nothing of cannot slip in as the client it claims to be."""

    class Forgetful(FakeGrid):
        def get_nodes(self):
            return [info for info in super().get_nodes() if info.name != "node-03"]

    strategy = make_strategy("uniform", identity="name", n_select=N_CLIENTS - 1)
    run(strategy, Forgetful(), rounds=1)
    assert 3 not in strategy.roster.ids
    assert len(strategy.rounds[0].available) == N_CLIENTS - 1


def test_late_introduction_is_asked_for_again():
    grid = FakeGrid(seed=1)
    grid.dead = {4}
    strategy = make_strategy("uniform", n_select=N_CLIENTS - 1, wait=0.3)
    run(strategy, grid, rounds=1)
    assert 4 not in strategy.rounds[0].available
    grid.dead = set()
    run(strategy, grid, rounds=1)
    assert 4 in strategy.rounds[1].available


def test_known_clients_keep_their_slots_in_any_order_of_arrival():
    sizes = {k: SIZES[k] for k in range(N_CLIENTS)}
    strategy = make_strategy("uniform", n_select=2, clients=sizes, n_clients=3)
    run(strategy, FakeGrid(partitions=(9, 3, 11)), rounds=2)
    assert strategy.roster.ids.slots([3, 9, 11]).tolist() == [3, 9, 11]
    assert {k for found in picks(strategy) for k in found} <= {3, 9, 11}


def test_global_random_state_does_not_matter():
    found = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        strategy = make_strategy("fedcvr-bolt")
        run(strategy)
        found.append(picks(strategy))
    assert found[0] == found[1]


def test_option_objects_and_single_keywords_are_the_same():
    by_object = make_strategy(
        "oort",
        reports=Reports(loss_key="nll", probe="evaluate", durations=True, same_shape=False),
        waiting=Waiting(enough=0.8, grace=3, connect=5, timeout=9),
        guards=Guards(max_share=1.25),
    )
    by_keyword = make_strategy(
        "oort", loss_key="nll", probe="evaluate", durations=True, same_shape=False,
        enough=0.8, grace=3, wait=5, timeout=9, max_share=1.25,
    )  # fmt: skip
    assert by_object.reports == by_keyword.reports
    assert by_object.waiting == by_keyword.waiting
    for strategy in (by_object, by_keyword):
        strategy.roster.register({k: ClientInfo() for k in range(9)})
        assert strategy.roster.selector.guards == Guards(max_share=1.25)


def test_the_shorter_timeout_counts():
    grid = FakeGrid()
    strategy = make_strategy("uniform", waiting=Waiting(timeout=0.3))
    run(strategy, grid, rounds=1)
    grid.dead = set(range(N_CLIENTS))
    began = time.monotonic()
    run(strategy, grid, rounds=1)  # with a timeout of 20 seconds
    assert time.monotonic() - began < 10
    assert len(strategy.rounds[1].failed) == 4


def test_earlier_import_paths_give_the_same_names():
    from cvrcore.integrations import flower_client, flower_grid, flower_legacy
    from cvrcore.integrations.flower import client, grid

    for name in flower_client.__all__:
        assert getattr(flower_client, name) is getattr(client, name)
    assert flower_legacy.LegacySelectingStrategy is flower.LegacySelectingStrategy
    assert (flower_grid.Patience, flower_grid.PatientGrid) == (Waiting, grid.TimedGrid)
    assert flower_grid.exchange is grid.exchange
    assert flower_grid.Patience(3.0).timeout == 3.0
    for name in flower.__all__:
        assert getattr(flower, name)
    with pytest.raises(AttributeError, match="has no attribute 'Strategist'"):
        flower.Strategist  # noqa: B018


def test_a_client_does_not_load_the_modules_of_the_server():
    code = (
        "import sys, cvrcore.integrations.flower_client; "
        "print([m for m in ('strategy', 'nodes', 'legacy') "
        "if f'cvrcore.integrations.flower.{m}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"strategy": object()}, TypeError, "strategy must be a strategy of flwr"),
        ({"identity": "face"}, ValueError, "identity must be one of 'query', 'name'"),
        ({"probe": "ask"}, ValueError, "probe must be one of 'query', 'evaluate'"),
        ({"enough": 1.5}, ValueError, "enough must be at most 1"),
        ({"grace": -1.0}, ValueError, "grace must be at least 0"),
        ({"wait": 0}, ValueError, r"connect \(keyword: wait\) must be positive"),
        ({"n_clients": 0}, ValueError, "n_clients must be at least 1"),
        ({"selector": "fastest"}, ValueError, "name must be one of"),
        ({"waiting": Waiting(), "grace": 3}, TypeError, "waiting and grace must not both"),
        ({"reports": Reports(), "probe": "query"}, TypeError, "reports and probe must not both"),
        ({"n_client": 3}, TypeError, "unknown option 'n_client' .* did you mean 'n_clients'"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        SelectingStrategy(**{"strategy": FedAvg(), "n_select": 2, **arguments})


def test_evaluation_does_not_wait_for_nodes_that_are_away():
    strategy = make_strategy("uniform", FedAvg(min_available_nodes=99, min_evaluate_nodes=50))
    result = run(strategy, rounds=1)
    assert "eval_loss" in result.evaluate_metrics_clientapp[1]
