"""Trackers and the live page of the Flower adapters, both APIs."""

import csv
import json
import logging
import re
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'cvrcore[flower]'")

from flower_fakes import FakeGrid, make_app, make_strategy, picks, run  # noqa: E402
from flwr.app import MetricRecord  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from test_flower_legacy import FedAvg as LegacyFedAvg  # noqa: E402
from test_flower_legacy import LegacySelectingStrategy, make_manager  # noqa: E402
from test_flower_legacy import run as run_legacy  # noqa: E402

from cvrcore.integrations.flower import SelectingStrategy, Tracking  # noqa: E402
from cvrcore.tracking import Tracker  # noqa: E402


class Memory(Tracker):
    name, map_every = "memory", 1

    def __init__(self):
        self.facts, self.records, self.ends = [], [], []

    def start(self, facts):
        self.facts.append(facts)

    def round(self, record):
        self.records.append(record)

    def finish(self, summary):
        self.ends.append(summary)


def test_a_tracker_gets_every_round_with_its_evaluation():
    memory, grid = Memory(), FakeGrid()
    grid.broken = {2}
    strategy = make_strategy(
        inner=FedAvg(fraction_evaluate=1.0), trackers=[memory], guards="recommended"
    )
    run(strategy, grid, rounds=8, evaluate_fn=lambda t, arrays: MetricRecord({"accuracy": t / 10}))
    assert [r.round for r in memory.records] == list(range(1, 9))
    assert [[p.name for p in r.picks] for r in memory.records] == [
        [str(client) for client in selected] for selected in picks(strategy)
    ]
    for record, done in zip(memory.records, strategy.rounds, strict=True):
        assert record.metrics["accuracy"] == record.round / 10
        assert {"eval_loss", "train_loss"} <= set(record.metrics)
        assert set(record.seconds) == {
            "connect", "select", "train", "aggregate", "evaluate", "round",
        }  # fmt: skip
        assert min(record.seconds.values()) > 0
        failed = {p.name: p.reason for p in record.picks if not p.reported}
        assert failed == {str(client): why for client, why in done.failed.items()}
        assert record.warmup == done.selection.warmup
        assert (record.snapshot is not None) == (not record.warmup)
    assert any(not p.reported for r in memory.records for p in r.picks)
    (facts,) = memory.facts
    assert (facts.policy, facts.n_rounds, facts.done) == ("fedcvr-bolt", 8, 0)
    assert len(memory.ends) == 1


def test_tracking_changes_no_selection():
    plain, tracked = make_strategy(), make_strategy(trackers=[Memory()])
    for strategy in (plain, tracked):
        run(strategy, FakeGrid(seed=1), rounds=8)
    assert picks(plain) == picks(tracked)


def test_a_failing_tracker_ends_no_run(caplog):
    class Failing(Memory):
        name = "failing"

        def round(self, record):
            raise ConnectionError("no server")

    strategy = make_strategy(trackers=[Failing()])
    run(strategy, rounds=4)
    assert len(strategy.rounds) == 4
    told = [one for one in caplog.records if "'failing' failed" in one.getMessage()]
    assert len(told) == 1


def test_names_write_files(tmp_path):
    tracking = Tracking(trackers=("csv", "details"), folder=str(tmp_path))
    strategy = make_strategy(tracking=tracking)
    run(strategy, rounds=5)
    with open(tmp_path / "csv" / "picks.csv", newline="") as file:
        found = [(int(row["round"]), row["name"]) for row in csv.DictReader(file)]
    wanted = [(t, str(k)) for t, names in enumerate(picks(strategy), 1) for k in names]
    assert found == wanted
    lines = (tmp_path / "details" / "details.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]


def test_a_restored_run_goes_on_counting(tmp_path):
    state = tmp_path / "state.npz"
    run(
        make_strategy(checkpoint=str(state), trackers=["csv"], track_folder=str(tmp_path)), rounds=3
    )
    again = make_strategy(restore=str(state), trackers=["csv"], track_folder=str(tmp_path))
    run(again, rounds=2)
    with open(tmp_path / "csv" / "rounds.csv", newline="") as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == [1, 2, 3, 4, 5]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="tracker must be one of csv"):
        make_strategy(trackers=["nosuch"])
    with pytest.raises(TypeError, match="trackers must be a list"):
        make_strategy(trackers="csv")
    with pytest.raises(TypeError, match="tracking and watch must not both be given"):
        SelectingStrategy(
            FedAvg(), "uniform", n_select=2, tracking=Tracking(watch=True), watch=True
        )


def test_hostile_metrics_reach_no_tracker():
    """A metric of clients that is no finite number is left out; its name is cleaned."""
    memory = Memory()

    def lie(k, message, reply):
        reply.content["metrics"]["=cmd\n()"] = 2.0
        reply.content["metrics"]["bad"] = float("nan")
        return reply

    strategy = make_strategy("uniform", trackers=[memory])
    run(strategy, FakeGrid(make_app(change=lie)), rounds=2)
    for record in memory.records:
        assert "bad" not in record.metrics
        assert not [name for name in record.metrics if set(name) & set("=\n()")]


def test_a_skipped_round_is_told():
    memory, grid = Memory(), FakeGrid()
    strategy = make_strategy("uniform", trackers=[memory], wait=0.1)

    def leave(t, arrays):
        if t == 1:
            grid.nodes.clear()

    run(strategy, grid, rounds=2, evaluate_fn=leave)
    assert [r.phase for r in memory.records] == ["policy", "skipped"]


# -- the live page ------------------------------------------------------------------


def read_events(url, seconds=20):
    """Return the first events of the page's stream, by name."""
    found = {}
    with urllib.request.urlopen(f"{url}events", timeout=seconds) as stream:
        name = ""
        for line in stream:
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text[7:]
            elif text.startswith("data: "):
                found.setdefault(name, []).append(json.loads(text[6:]))
                if name in ("rounds", "bye"):
                    return found
    return found


def test_watch_serves_the_run_while_it_runs(caplog):
    for module in ("starlette", "uvicorn"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install cvrcore[watch]")
    seen = {}
    with caplog.at_level(logging.INFO, "flwr.cvrcore"):
        strategy = make_strategy(watch=True)

        def look(t, arrays):
            if t == 4:
                texts = [one.getMessage() for one in caplog.records]
                (url,) = [m[0] for text in texts if (m := re.search(r"http://\S+", text))]
                seen["url"], seen["events"] = url, read_events(url)
            return MetricRecord({"accuracy": 0.5})

        logging.getLogger("flwr").propagate = True
        run(strategy, rounds=5, evaluate_fn=look)
    (facts,) = seen["events"]["facts"]
    assert facts["policy"] == "fedcvr-bolt"
    rounds = [r for batch in seen["events"]["rounds"] for r in batch]
    assert [r["round"] for r in rounds] == [1, 2, 3]  # a round is shown once it is complete
    assert [[p["name"] for p in r["picks"]] for r in rounds] == [
        [str(k) for k in selected] for selected in picks(strategy)[:3]
    ]
    with pytest.raises((urllib.error.URLError, ConnectionError)):  # it ended with the run
        urllib.request.urlopen(seen["url"], timeout=5)


# -- the legacy API -----------------------------------------------------------------


def legacy(rounds, **options):
    strategy = LegacySelectingStrategy(
        LegacyFedAvg(), "fedcvr-bolt", n_select=4, seed=7, warmup=2, **options
    )
    run_legacy(strategy, make_manager(), rounds)
    return strategy


def test_the_legacy_strategy_tracks_too():
    memory = Memory()
    strategy = legacy(4, trackers=[memory])
    assert [r.round for r in memory.records] == [1, 2, 3]  # the fourth may still be evaluated
    strategy.close()
    assert [[p.name for p in r.picks] for r in memory.records] == [
        [str(k) for k in one.selected] for one in strategy.rounds
    ]
    assert len(memory.ends) == 1
    strategy.close()
    assert len(memory.ends) == 1


def test_a_legacy_strategy_that_is_dropped_ends_its_run():
    memory = Memory()
    strategy = legacy(2, trackers=[memory])
    del strategy
    import gc

    gc.collect()
    assert len(memory.records) == 2
    assert len(memory.ends) == 1
