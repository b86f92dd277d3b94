"""Warm-up as users of the loop and of the command line meet it."""

import json
import logging

import pytest
from typer.testing import CliRunner

import fl
from fl.cli import app
from fl.experiments import Request
from fl.presets import make_config, resolve

SMALL = [
    "--clients", "20", "--select", "4", "--quiet", "--engine", "serial",
    "--set", "training.epochs=1",
]  # fmt: skip
TINY = {"data__n_clients": 20, "selection__n_select": 4, "training__epochs": 1}


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize(
    ("config", "warmup"),
    [
        (make_config("mnist", "fedcvr-bolt"), "auto"),
        (make_config("mnist", "fedcvr-bolt", "paper"), 30),
        (make_config("mnist", "fedcvr-bolt", preset="scripts"), 30),
        (make_config("mnist", "cvr-steady"), "auto"),
        (make_config("mnist", "fedcvr-bolt", selection__options__warmup=7), 7),
        (resolve({}, {"method": "fedcvr-bolt"}), "auto"),
        (resolve({}, {"method": "fedcvr-bolt", "preset": "paper"}), 30),
        (resolve({"preset": "paper", "method": "fedcvr-bolt"}, {}), 30),
        (Request().config("mnist", "fedcvr-bolt"), 30),  # cvrcore reproduce
        (Request(rounds=20).config("mnist", "fedcvr-bolt"), 30),
    ],
)
def test_thirty_holds_where_it_is_asked_for(config, warmup):
    assert config.selection.options["warmup"] == warmup
    assert config.preset in ("paper", "scripts")


def test_config_of_an_earlier_run_keeps_its_thirty():
    old = make_config("digits", "fedcvr-bolt", "paper").to_dict()
    assert resolve(old, {}).selection.options["warmup"] == 30


def test_loop_announces_its_rounds():
    history = fl.run(make_config("digits", "fedcvr-bolt", rounds=6, **TINY))
    assert [record["warmup"] for record in history] == [True] * 2 + [False] * 4
    assert history.facts["warmup"] == history.summary()["warmup_rounds"] == 2
    assert history.warmup_note() == (
        "2 of 6 rounds were warm-up, drawn uniformly; fedcvr-bolt picked the clients of 4"
    )
    assert fl.run(make_config("digits", "fedavg", rounds=1, **TINY)).warmup_note() == ""


def test_log_has_a_line_per_round(caplog):
    caplog.set_level(logging.INFO, "fl")
    history = fl.run(make_config("digits", "fedcvr-bolt", rounds=3, **TINY))
    lines = [record.message for record in caplog.records if record.name == "fl"]
    picked = " ".join(map(str, history.rounds[0]["picked"]))
    assert lines[0].startswith(
        f"round 1 of 3: warm-up, 4 of 20 clients drawn uniformly ({picked}), accuracy 0."
    )
    assert "fedcvr-bolt picked 4 of 20 clients from 4 coalitions (" in lines[2]


def test_terminal_says_that_the_policy_has_not_acted():
    done = invoke("run", "--method", "fedcvr-bolt", "--preset", "paper", "--rounds", "3", *SMALL)
    assert done.exit_code == 0, done.output
    assert "3 of 3 rounds were warm-up: fedcvr-bolt has not acted yet" in done.stdout
    assert "warning: fedcvr-bolt will not act: all 3 announced rounds" in done.stderr


def test_comparison_says_why_two_methods_are_equal():
    """Twenty rounds of a named preset: equal to the digit, and the terminal says why."""
    arguments = ["compare", "--rounds", "3", "--seeds", "2", *SMALL]
    paper = invoke(*arguments, "--preset", "paper")
    assert "fedcvr-bolt: 3 of 3 rounds were warm-up: fedcvr-bolt has not" in paper.stdout
    assert "fedcvr-bolt and fedavg are equal in every evaluation" in paper.stdout
    assert paper.stderr.count("will not act") == 1  # once, not for each seed
    plain = invoke(*arguments)
    assert "fedcvr-bolt: 1 of 3 rounds were warm-up, drawn uniformly" in plain.stdout
    assert "equal" not in plain.stdout
    assert "will not act" not in plain.stderr


def test_verbose_prints_rounds_to_standard_error():
    done = invoke("run", "--rounds", "2", "--verbose", "--json", *SMALL)
    assert json.loads(done.stdout)["rounds"] == 2
    assert "round 2 of 2: uniform picked 4 of 20 clients (" in done.stderr
