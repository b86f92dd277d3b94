"""Replies that are invalid, unasked for, late or double: told, and the round goes on."""

import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import (
    INITIAL,
    N_CLIENTS,
    FakeGrid,
    make_app,
    make_strategy,
    numpy_of,
    record,
    run,
)
from flwr.app import Array, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from cvrcore.integrations.flower import Reveal, Waiting


def test_extra_metrics_never_reach_the_strategy():
    """Trap 3: replies in any order; our record is stripped before metrics are averaged."""
    seen = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.append([sorted(r.content.metric_records) for r in replies])
            return super().aggregate_train(server_round, replies)

    app = make_app(mods=[Reveal()])
    strategy = make_strategy("fedcvr-bolt", Watching(), private=True)
    result = run(strategy, FakeGrid(app), rounds=3)
    assert seen == [[["metrics"]] * 4] * 3
    assert all(set(m) == {"train_loss"} for m in result.train_metrics_clientapp.values())


def test_odd_metrics_fail_their_client_only():
    def change(k, message, reply):
        if k == 3:
            reply.content["metrics"]["surprise"] = 1.0
        return reply

    strategy = make_strategy("uniform", n_select=N_CLIENTS)
    result = run(strategy, FakeGrid(make_app(change=change)), rounds=1)
    assert list(strategy.rounds[0].failed) == [3]
    assert "other names or forms" in strategy.rounds[0].failed[3]
    assert result.arrays is not None


def test_timed_out_client_is_reported_as_failed():
    grid = FakeGrid()
    strategy = make_strategy("uniform", n_select=N_CLIENTS)
    run(strategy, grid, rounds=1)
    grid.dead = {2, 5}
    strategy.start(grid, record(INITIAL), 1, timeout=0.5)
    assert strategy.rounds[1].failed == dict.fromkeys((2, 5), "no answer in time")
    assert len(strategy.rounds[1].reported) == N_CLIENTS - 2


def test_grace_is_apart_from_how_many_are_asked():
    """Two of twelve lag: with grace the round ends without them, and all twelve were asked."""
    grid = FakeGrid()
    grid.delay = {2: 3.0, 5: 3.0}
    strategy = make_strategy(
        "uniform",
        n_select=N_CLIENTS,
        waiting=Waiting(enough=0.8, grace=0.2),
        identity="node-id",
        clients=dict.fromkeys(grid.nodes, 1.0),
    )
    began = time.monotonic()
    strategy.start(grid, record(INITIAL), 1, timeout=30)
    assert time.monotonic() - began < 2.8
    assert len(grid.trained()) == N_CLIENTS
    lagging = {node for node, k in grid.nodes.items() if k in (2, 5)}
    assert set(strategy.rounds[0].failed) == lagging


def test_two_nodes_of_one_identity(caplog):
    """The first keeps it; when it leaves, the other takes over its slot."""
    grid = FakeGrid(seed=3)
    strategy = make_strategy("uniform", n_select=N_CLIENTS)
    run(strategy, grid, rounds=1)
    holder = next(n for n, k in grid.nodes.items() if k == 6)
    twin = grid.join(6)
    run(strategy, grid, rounds=2)
    assert f"node {twin} is left out: node {holder} is client 6 already" in caplog.text
    assert len(strategy.rounds[-1].selected) == N_CLIENTS
    assert twin not in {
        m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"
    }
    del grid.nodes[holder]
    run(strategy, grid, rounds=4)
    assert 6 in strategy.rounds[-1].reported
    grid.nodes[holder] = 6  # back again: now it is the one too many
    run(strategy, grid, rounds=2)
    asked = [m.metadata.dst_node_id for m in grid.pushed if m.metadata.message_type == "train"]
    assert holder not in asked[-2 * N_CLIENTS :]
    assert twin in asked[-N_CLIENTS:]


def _with(name, value):
    def change(k, message, reply):
        if k == 3:
            arrays = numpy_of(reply.content)
            arrays[name] = value
            reply.content["arrays"] = record(arrays)
        return reply

    return change


def _metric(value):
    def change(k, message, reply):
        if k == 3:
            reply.content["metrics"]["num-examples"] = value
        return reply

    return change


def _listed(k, message, reply):
    if k == 3:
        reply.content["metrics"]["train_loss"] = [1.0, 2.0]
    return reply


def _second_arrays(k, message, reply):
    if k == 3:
        reply.content["more"] = record({"x": np.zeros(2)})
    return reply


def _second_metrics(k, message, reply):
    if k == 3:
        reply.content["more"] = MetricRecord({"x": 1.0})
    return reply


def _without_arrays(k, message, reply):
    if k == 3:
        del reply.content["arrays"]
    return reply


def _garbage(k, message, reply):
    if k == 3:
        reply.content["arrays"]["hidden"] = Array("float64", [4, 3], "numpy.ndarray", b"\x93junk")
    return reply


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_with("out.bias", np.full(2, np.nan)), "must be finite"),
        (_with("hidden", np.full((4, 3), np.inf)), "must be finite"),
        (_with("out.bias", np.zeros(5)), "must have shape (2,), got (5,)"),
        (_with("more", np.zeros(5)), "its arrays must be hidden, out.weight, out.bias; got"),
        (_metric(float("nan")), "'num-examples' must be finite, got nan"),
        (_metric(-1), "'num-examples' must be from 0"),
        (_metric(0), "'num-examples' must be a positive number, got 0"),
        (_metric(2**62), "'num-examples' must be from 0 to 9.0072e+15"),
        (_with("hidden", np.zeros((4, 3), complex)), "'hidden' must be float64, got complex128"),
        (_with("hidden", np.full((4, 3), "x")), "'hidden' must be float64, got <U1"),
        (_with("hidden", np.zeros((4, 3), "V8")), "'hidden' must be float64, got |V8"),
        (_with("hidden", np.zeros((4, 3), "M8[s]")), "'hidden' must be float64, got datetime64"),
        (_with("hidden", np.zeros((4, 300000))), "must have at most"),
        (_listed, "other names or forms than those of most"),
        (_second_arrays, "other names or forms than those of most"),
        (_second_metrics, "other names or forms than those of most"),
        (_without_arrays, "holds no arrays"),
        (_garbage, ""),
    ],
)
def test_invalid_reply_is_a_failure_and_the_round_goes_on(change, why, caplog):
    strategy = make_strategy("uniform", n_select=N_CLIENTS)
    result = run(strategy, FakeGrid(make_app(change=change)), rounds=2)
    for found in strategy.rounds:
        assert list(found.failed) == [3]
        assert why in found.failed[3]
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    assert "client 3 failed" in caplog.text


def test_unasked_and_second_replies_are_ignored(caplog):
    grid = FakeGrid(seed=1)
    strategy = make_strategy("uniform", n_select=4)
    run(strategy, grid, rounds=1)
    messages = list(strategy.configure_train(2, record(INITIAL), ConfigRecord(), grid))
    stranger = next(n for n in grid.nodes if n not in {m.metadata.dst_node_id for m in messages})
    ids = grid.push_messages(messages)
    replies = list(grid.pull_messages(ids))
    odd = Message(RecordDict(), stranger, "train")
    grid.push_messages([odd])
    replies += [grid.pull_messages([odd.metadata.message_id])[0], replies[0]]
    expected = {grid.nodes[m.metadata.dst_node_id] for m in messages}
    strategy.aggregate_train(2, replies)
    assert f"node {stranger} replied and was not asked" in caplog.text
    assert "replied twice" in caplog.text
    assert set(strategy.rounds[1].reported) == expected


def test_silent_and_failing_probes_are_left_for_last(caplog):
    """Power-of-Choice asks everybody; those without an answer are picked last."""
    strategy = make_strategy("power-of-choice", n_candidates=N_CLIENTS)
    grid = FakeGrid(seed=1)
    run(strategy, grid, rounds=1)
    best = strategy.rounds[0].selected
    grid.dead = set(best)
    strategy.start(grid, record(INITIAL), 1, timeout=0.5)
    assert not set(strategy.rounds[1].selected) & set(best)
    assert "gave no loss" in caplog.text
