import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tiny import tiny_config, tiny_federation

from fl.availability import Availability, TraceError, read_trace
from fl.config import AvailabilityConfig
from fl.loop import run
from fl.streams import Streams


def test_probability_is_met_and_rounds_differ():
    model = Availability(AvailabilityConfig(probability=0.3, dropout=0.6), 1000, Streams(0))
    here = np.array([model.reachable(t) for t in range(20)])
    gone = np.array([model.dropped(t) for t in range(20)])
    error = 4 * 0.5 / np.sqrt(20_000)  # four standard errors at worst
    assert abs(here.mean() - 0.3) < error
    assert abs(gone.mean() - 0.6) < error
    assert not np.array_equal(here[0], here[1])
    assert_array_equal(here[5], model.reachable(5))


def test_trace_is_followed_and_begins_again(tmp_path):
    lines, table = tmp_path / "trace.jsonl", tmp_path / "trace.csv"
    lines.write_text("[0, 2]\n[]\n\n[1]\n")
    table.write_text("1,0,1\n0,0,0\n0,1,0\n")
    assert_array_equal(read_trace(str(lines), 3), read_trace(str(table), 3))
    model = Availability(AvailabilityConfig(trace=str(lines)), 3, Streams(0))
    assert_array_equal(model.reachable(0), [True, False, True])
    assert_array_equal(model.reachable(5), [False, True, False])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.jsonl", "", "must have at least one round, got none"),
        ("t.jsonl", "[0]\n[0,", "line 2: must be a JSON array of client ids"),
        ("t.jsonl", '{"a": 1}', "line 1: must be a JSON array of client ids, got"),
        ("t.jsonl", "[true]", "line 1: must be a JSON array"),
        ("t.jsonl", "[3]", "line 1: client ids must lie in 0..2, got 3"),
        ("t.csv", "1,0", "line 1: must have 3 columns, got 2"),
        ("t.csv", "1,0,x", "line 1: cells must be 0 or 1, got 'x'"),
    ],
)
def test_bad_trace_names_the_line(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(str(path), 3)


def test_missing_and_binary_traces_are_named(tmp_path):
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(str(tmp_path / "none.csv"), 3)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(str(tmp_path / "b.csv"), 3)


def test_round_without_anybody_is_recorded_and_skipped(tmp_path):
    path = tmp_path / "trace.jsonl"
    # Client 3 holds no samples: a round with only him is a round with nobody.
    path.write_text("\n".join(json.dumps(ids) for ids in ([0, 1], [], [3], [2])))
    config = tiny_config(availability__trace=str(path), rounds=4)
    history = run(config, federation=tiny_federation())
    assert [r.get("skipped", False) for r in history] == [False, True, True, False]
    assert history.rounds[1]["accuracy"] == history.rounds[0]["accuracy"]
    assert history.rounds[3]["picked"] == [2]


def test_everybody_dropping_out_leaves_the_model_unchanged():
    history = run(tiny_config(availability__dropout=1.0), federation=tiny_federation())
    assert len({r["accuracy"] for r in history}) == 1
    assert all(r["reported"] == [] and len(r["failed"]) == 4 for r in history)
    assert history.total("uplink") == 0
    assert history.total("downlink") > 0
