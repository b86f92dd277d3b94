"""What a newcomer meets in Flower: mistakes of the first hour are told, and told right."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed here: run `make test-frameworks`")

from flower_fakes import (
    INITIAL,
    N_CLIENTS,
    SIZES,
    FakeGrid,
    make_app,
    make_strategy,
    picks,
    record,
    run,
)
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from cvrcore.integrations.flower import partition_id, selectable
from cvrcore.integrations.flower.client import RECORD
from cvrcore.integrations.roster import NeverReportedError


def app_without(**functions):
    """The app of a newcomer: ids and sizes, and what else is given."""
    app = make_app(introduced=False)
    selectable(app, size=lambda context: SIZES[partition_id(context)], **functions)
    return app


def test_power_of_choice_without_a_loss_function_says_so_in_the_first_round():
    strategy = make_strategy("power-of-choice")
    with pytest.raises(NeverReportedError, match=r"selectable\(app, \.\.\., loss=f\)"):
        run(strategy, FakeGrid(app_without()), rounds=8)
    assert strategy.rounds == []


def test_fedcbs_without_label_counts_says_so():
    with pytest.raises(NeverReportedError, match=r"selectable\(app, \.\.\., label_counts=f\)"):
        run(make_strategy("fedcbs"), FakeGrid(app_without()), rounds=1)


def mute(k, message, reply):
    """An app that reports metrics of its own, and no loss to the policy."""
    if RECORD in reply.content:
        del reply.content[RECORD]
    return reply


def test_oort_takes_a_metric_only_by_name(caplog):
    """`train_loss` is the loss of the last mini-batch in many apps: it is not guessed."""
    strategy = make_strategy("oort")
    with pytest.raises(NeverReportedError, match=r"\(the rms\).*report_loss\(reply, value\)"):
        run(strategy, FakeGrid(make_app(change=mute)), rounds=1)
    named = make_strategy("oort", loss_key="train_loss")
    with caplog.at_level("INFO", "flwr.cvrcore"):
        run(named, FakeGrid(make_app(change=mute)), rounds=2)
    assert all(not one.failed for one in named.rounds)
    assert "the root mean square over a client's training samples" in caplog.text
    assert "metric 'train_loss'" in caplog.text


def test_slow_introductions_name_the_wait_its_value_and_who_answered(caplog):
    grid = FakeGrid()
    grid.dead = {1, 4}
    run(make_strategy("uniform", wait=0.3), grid, rounds=1)
    assert "10 of 12 nodes introduced themselves within wait=0.3 s;" in caplog.text
    grid.dead = set(range(N_CLIENTS))
    with pytest.raises(RuntimeError, match=r"12 did not introduce .* within wait=0.3 s .*wait=600"):
        run(make_strategy("uniform", wait=0.3), grid, rounds=1)
    lost = FakeGrid(make_app(introduced=False))
    with pytest.raises(RuntimeError, match="12 answered and were refused: does the .*selectable"):
        run(make_strategy("uniform", wait=0.3), lost, rounds=1)


def test_one_line_a_round_in_the_log_of_flower(caplog):
    strategy = make_strategy("fedcvr-bolt", warmup=1)
    with caplog.at_level("INFO", "flwr.cvrcore"):
        run(strategy, rounds=2)
    lines = [r.getMessage() for r in caplog.records if r.name == "flwr.cvrcore"]
    assert len(lines) == 2
    names = ", ".join(map(str, picks(strategy)[0]))
    assert lines[0] == (
        f"selection 1 by fedcvr-bolt, warm-up round 1 of 1: 4 of {N_CLIENTS} clients: {names}"
    )
    assert re.match(r"selection 2 by fedcvr-bolt: 4 of 12 clients: ", lines[1])


def test_rounds_are_announced_to_the_policy(caplog):
    strategy = make_strategy("fedcvr-bolt", warmup="auto")
    run(strategy, rounds=6)
    assert strategy.roster.selector.warmup == 2
    run(make_strategy("fedcvr-bolt", warmup=5), rounds=5)
    assert "fedcvr-bolt will not act: all 5 announced rounds are warm-up" in caplog.text


def test_a_claimed_duration_does_not_beat_the_clock_of_the_server():
    def hasty(k, message, reply):
        if RECORD not in reply.content:
            reply.content[RECORD] = MetricRecord()
        reply.content[RECORD]["seconds"] = 1e-9 if k < 6 else float("nan")
        return reply

    told = {}
    strategy = make_strategy("oort", durations=True, n_select=N_CLIENTS)
    grid = FakeGrid(make_app(change=hasty))
    grid.delay = dict.fromkeys(range(N_CLIENTS), 0.2)
    run(strategy, grid, rounds=1)
    learn = strategy.roster.selector._learn

    def listening(report):
        told.update(zip(report.clients.tolist(), report.durations, strict=True))
        learn(report)

    strategy.roster.selector._learn = listening
    strategy.start(grid, record(INITIAL), 1, timeout=20)
    assert len(told) == N_CLIENTS
    assert all(0.15 < seconds < 20 for seconds in told.values())


def test_policies_of_random_size_pick_nobody_now_and_then():
    strategy = make_strategy("optimal", n_select=1, design="poisson", seed=1)
    result = run(strategy, rounds=25)
    sizes = [len(one.selected) for one in strategy.rounds]
    assert len(sizes) == 25
    assert 0 in sizes
    assert max(sizes) > 1
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


@pytest.mark.parametrize("private", [False, True])
def test_norms_are_computed_or_revealed_where_the_policy_needs_them(private):
    from cvrcore.integrations.flower import Reveal

    strategy = make_strategy("k-vib", private=private)
    run(strategy, FakeGrid(make_app(mods=[Reveal()])), rounds=3)
    assert all(not one.failed and one.reported for one in strategy.rounds)


def test_utilities_come_from_a_function_of_the_server():
    def worth(model):
        return -sum(float(np.square(array).sum()) for array in model.values())

    strategy = make_strategy("shapley", utility=worth)
    run(strategy, rounds=4)
    assert all(sorted(one.reported) == sorted(one.selected) for one in strategy.rounds)


def test_guards_bound_the_weight_in_the_mean_of_the_strategy():
    seen = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            seen.extend(r.content["metrics"]["num-examples"] for r in replies)
            return super().aggregate_train(server_round, replies)

    def boasting(k, message, reply):
        if k == 3:
            reply.content["metrics"]["num-examples"] = 9_000_000_000_000_000
        return reply

    strategy = make_strategy("uniform", Watching(), n_select=N_CLIENTS, guards="recommended")
    run(strategy, FakeGrid(make_app(change=boasting)), rounds=1)
    assert len(seen) == N_CLIENTS
    assert max(seen) <= np.median(SIZES[:N_CLIENTS])


def test_a_client_can_be_forgotten_between_runs():
    strategy = make_strategy("fedcvr-bolt", aggregator="memory")
    grid = FakeGrid()
    run(strategy, grid, rounds=3)
    strategy.forget(5)
    assert 5 not in strategy.roster.ids
    grid.leave(5)
    run(strategy, grid, rounds=3)
    assert all(5 not in one.selected for one in strategy.rounds)
    grid.join(5)
    run(strategy, grid, rounds=1)
    assert strategy.roster.ids.slot(5) == N_CLIENTS
