"""Simulated devices: laws of speeds and drop-outs, times in closed form, clock, resume."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tiny import tiny_config, tiny_federation

from fl.config import ConfigError, FleetConfig
from fl.fleet import Fleet, FleetError, OnlineTrace
from fl.loop import run
from fl.server import Server
from fl.streams import Streams

NOBODY = np.empty(0, dtype=np.int64)


def make_fleet(n_clients=2000, seed=0, sizes=None, epochs=2, model_bytes=1000, **settings):
    counts = np.full(n_clients, 50.0) if sizes is None else np.array(sizes, dtype=np.float64)
    return Fleet(FleetConfig(enabled=True, **settings), counts, epochs, model_bytes, Streams(seed))


# -- laws ---------------------------------------------------------------------------------


def test_speeds_and_bandwidths_are_lognormal():
    fleet = make_fleet(speed_spread=0.8, bandwidth=2e5, bandwidth_spread=0.3)
    for logarithms, spread in (
        (np.log(fleet.speed), 0.8),
        (np.log(fleet.bandwidth / 2e5), 0.3),
    ):
        assert stats.kstest(logarithms / spread, "norm").pvalue > 0.01
    assert abs(np.corrcoef(fleet.speed, fleet.bandwidth)[0, 1]) < 4 / 2000**0.5


def test_devices_depend_on_the_seed_alone():
    first, again, other = make_fleet(seed=1), make_fleet(seed=1, epochs=7), make_fleet(seed=2)
    assert_array_equal(first.speed, again.speed)
    assert not np.array_equal(first.speed, other.speed)
    # A wider spread scales the same draws.
    wide = make_fleet(seed=1, speed_spread=1.0)
    assert_allclose(np.log(wide.speed), 2 * np.log(first.speed), rtol=1e-12)


@pytest.mark.parametrize("slope", [0.0, 1.0, 2.0])
def test_slow_devices_drop_out_as_the_odds_say(slope):
    fleet = make_fleet(300, loss=0.2, loss_slope=slope)
    everyone = np.arange(300)
    n_rounds = 300
    lost = np.mean([fleet.round(t, everyone, NOBODY).lost for t in range(n_rounds)], axis=0)
    odds = 0.25 * fleet.speed**-slope
    expected = odds / (1 + odds)
    assert np.abs(lost - expected).max() < 5 * 0.5 / n_rounds**0.5
    assert abs(lost.mean() - expected.mean()) < 4 * 0.5 / (300 * n_rounds) ** 0.5
    correlation = np.corrcoef(lost, np.log(fleet.speed))[0, 1]
    assert correlation < -0.8 if slope else abs(correlation) < 0.25


def test_all_devices_drop_out_at_loss_one():
    times = make_fleet(10, loss=1.0).round(0, np.arange(10), NOBODY)
    assert times.lost.all()
    assert 0 < times.seconds < times.durations.max()


# -- times ----------------------------------------------------------------------------------


def test_a_round_takes_transfer_and_training_of_the_slowest():
    fleet = make_fleet(
        3, sizes=[10, 20, 40], epochs=3, model_bytes=5000,
        seconds_per_sample=0.1, upload_share=0.5, latency=0.2,
    )  # fmt: skip
    picked = np.array([2, 0])
    times = fleet.round(0, picked, NOBODY, models_sent=2, models_returned=3)
    expected = [
        2 * 5000 / fleet.bandwidth[k]
        + 3 * n * 0.1 / fleet.speed[k]
        + 3 * 5000 / (0.5 * fleet.bandwidth[k])
        + 0.4
        for k, n in ((2, 40), (0, 10))
    ]
    assert_allclose(times.durations, expected, rtol=1e-12)
    assert times.seconds == max(expected)
    assert not times.lost.any()


def test_probed_clients_are_waited_for_and_have_the_model():
    fleet = make_fleet(3, sizes=[30, 30, 30], epochs=1, seconds_per_sample=0.1)
    plain = fleet.round(0, np.array([0, 1]), NOBODY)
    probed = fleet.round(0, np.array([0, 1]), np.array([1, 2]))
    download = 1000 / fleet.bandwidth
    assert_allclose(probed.durations, plain.durations - [0, download[1]], rtol=1e-12)
    asked = (30 * 0.1 / fleet.speed / 3 + download + 0.1)[[1, 2]].max()
    assert_allclose(probed.seconds, probed.durations.max() + asked, rtol=1e-12)


def test_a_deadline_ends_the_round_and_loses_the_late():
    fleet = make_fleet(50, speed_spread=1.0, seconds_per_sample=0.1)
    free = fleet.round(0, np.arange(50), NOBODY)
    limit = float(np.median(free.durations))
    bound = make_fleet(50, speed_spread=1.0, seconds_per_sample=0.1, deadline=limit)
    times = bound.round(0, np.arange(50), NOBODY)
    assert_array_equal(times.lost, free.durations > limit)
    assert times.seconds == limit


def test_jitter_changes_rounds_and_repeats_by_seed():
    fleet = make_fleet(20, jitter=0.3)
    first, second = (fleet.round(t, np.arange(20), NOBODY).durations for t in (0, 1))
    assert not np.array_equal(first, second)
    assert_array_equal(first, make_fleet(20, jitter=0.3).round(0, np.arange(20), NOBODY).durations)


# -- online ---------------------------------------------------------------------------------


def test_devices_are_online_for_their_share_of_the_day():
    fleet = make_fleet(400, online_share=0.3, day=1000.0)
    clocks = np.arange(0.0, 3000.0, 5.0)
    masks = np.array([fleet.online(clock) for clock in clocks])
    assert_allclose(masks.mean(axis=0), 0.3, atol=0.01)  # each device, whole days
    assert np.abs(masks.mean(axis=1) - 0.3).max() < 5 * 0.5 / 400**0.5  # at any hour
    assert_array_equal(masks[:200], masks[200:400])  # the same every day


def test_without_spread_all_devices_share_their_hours():
    fleet = make_fleet(9, online_share=0.25, online_spread=0.0, day=1000.0)
    assert fleet.online(100.0).all()
    assert not fleet.online(300.0).any()


def test_a_trace_says_who_is_online_and_repeats(tmp_path):
    path = tmp_path / "online.csv"
    path.write_text("0,0,10\n2, 5, 20\n\n0,15,20\n")
    trace = OnlineTrace.read(str(path), 3)
    for clock, online in ((0, [0]), (7, [0, 2]), (12, [2]), (16, [0, 2]), (20, [0]), (47, [0, 2])):
        assert_array_equal(np.flatnonzero(trace.at(clock)), online)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have at least one line, got none"),
        ("0,1", "line 1: must be client,begin,end, got '0,1'"),
        ("0,0,5\n3,0,5", r"line 2: client must lie in 0..2, got 3"),
        ("0,a,5", "line 1: must hold three numbers"),
        ("0,5,5", "line 1: must have 0 <= begin < end, got 5 and 5"),
        ("0,0,inf", "line 1: must have 0 <= begin < end"),
    ],
)
def test_bad_traces_are_named(tmp_path, text, message):
    path = tmp_path / "online.csv"
    path.write_text(text)
    with pytest.raises(FleetError, match=message):
        OnlineTrace.read(str(path), 3)
    with pytest.raises(FleetError, match="cannot be read"):
        OnlineTrace.read(str(tmp_path / "missing.csv"), 3)


# -- in a run ---------------------------------------------------------------------------------

FULL = {
    "fleet__enabled": True,
    "fleet__loss": 0.2,
    "fleet__jitter": 0.2,
    "fleet__online_share": 0.5,
    "fleet__day": 1.0,
    "fleet__idle": 0.1,
}


def test_devices_alone_change_no_model():
    plain = run(tiny_config(), federation=tiny_federation())
    timed = run(tiny_config(fleet__enabled=True), federation=tiny_federation())
    for a, b in zip(plain, timed, strict=True):
        assert a["accuracy"] == b["accuracy"]
        assert a["picked"] == b["picked"]
        assert b["simulated_seconds"] > 0
        assert "simulated_seconds" not in a
    seconds = [record["simulated_seconds"] for record in timed]
    assert_allclose([r["simulated_clock"] for r in timed], np.cumsum(seconds), rtol=1e-12)
    assert timed.summary()["simulated_seconds"] == timed.rounds[-1]["simulated_clock"]
    assert plain.summary()["simulated_seconds"] is None


def test_seconds_to_a_target():
    history = run(tiny_config(fleet__enabled=True), federation=tiny_federation())
    reached = history.rounds_to(history.best())
    assert history.seconds_to(history.best()) == history.rounds[reached - 1]["simulated_clock"]
    assert history.seconds_to(2.0) is None
    plain = run(tiny_config(rounds=1), federation=tiny_federation())
    assert plain.seconds_to(0.0) is None


@pytest.mark.parametrize("policy", ["uniform", "oort"])
def test_a_killed_run_continues_to_the_bit(tmp_path, policy):
    config = tiny_config(rounds=9, selection__policy=policy, **FULL)
    whole = run(config, federation=tiny_federation())
    assert any(record["failed"] for record in whole if "failed" in record)

    def stop(record):
        if record["round"] == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop, federation=tiny_federation())
    assert run(config, tmp_path, resume=True, federation=tiny_federation()) == whole


def test_policies_are_told_the_durations(monkeypatch):
    config = tiny_config(selection__policy="oort", fleet__enabled=True, fleet__loss=0.3)
    told = []
    with Server(config, tiny_federation()) as server:
        selector, fleet = server.policy.in_round(), server.fleet
        observe = selector.observe

        def listen(clients, **report):
            told.append((clients, report["durations"]))
            observe(clients, **report)

        monkeypatch.setattr(selector, "observe", listen)
        for t in range(4):
            record = server.round(t)
            picked = np.array(record["picked"])
            times = fleet.round(t, picked, NOBODY)
            clients, durations = told[-1]
            assert clients.tolist() == record["reported"]
            assert_array_equal(durations, times.durations[~times.lost])
            assert record["failed"] == sorted(picked[times.lost])
            assert record["simulated_seconds"] == times.seconds


def test_oort_prefers_fast_devices():
    changes = {"rounds": 40, "eval_every": 40, "selection__policy": "oort", "fleet__enabled": True}
    config = tiny_config(fleet__speed_spread=1.5, fleet__seconds_per_sample=1.0, **changes)
    oort = run(config, federation=tiny_federation())
    uniform = run(config.replace(selection__policy="uniform"), federation=tiny_federation())
    assert oort.final("simulated_clock") < uniform.final("simulated_clock")


def test_the_clock_goes_on_while_nobody_is_online(tmp_path):
    path = tmp_path / "online.csv"
    path.write_text("\n".join(f"{k},100,200" for k in range(12)))
    changes = {"fleet__enabled": True, "fleet__online_trace": str(path), "fleet__idle": 60.0}
    history = run(tiny_config(**changes), federation=tiny_federation())
    assert [r.get("skipped", False) for r in history][:3] == [True, True, False]
    assert history.rounds[1]["simulated_clock"] == 120.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bandwidth": 0.0}, "fleet.bandwidth must be above 0, got 0"),
        ({"speed_spread": -1.0}, "fleet.speed_spread must be at least 0, got -1"),
        ({"loss": 1.5}, r"fleet.loss must lie in \[0, 1\], got 1.5"),
        ({"online_share": 0.0}, "fleet.online_share must be above 0, got 0"),
        ({"deadline": 0.0}, "fleet.deadline must be above 0, got 0"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        FleetConfig(**changes)
