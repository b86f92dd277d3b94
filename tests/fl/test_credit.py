"""Comparisons and the report: equal curves are told apart, merging is not credited to selection."""

import numpy as np
from tiny import tiny_config

from fl.experiments.compare import Comparison
from fl.experiments.drawing import new_figure
from fl.experiments.figures import _lines
from fl.experiments.statistics import Band
from fl.history import History


def made_up(value, warm=0, **changes):
    history = History(tiny_config(**changes), {"n_classes": 3})
    history.rounds = [
        {"round": i + 1, "accuracy": value, "warmup": i < warm, "picked": [0]} for i in range(4)
    ]
    return history


MEMORY = {"aggregator": "memory"}
OORT = {"selection__policy": "oort"}


def test_gain_is_split_between_merging_and_selection():
    runs = {
        "fedavg": [made_up(0.5) for _ in range(3)],
        "fedavg-memory": [made_up(0.7, **MEMORY) for _ in range(3)],
        "oort": [made_up(0.6, **OORT) for _ in range(3)],
        "both": [made_up(0.71, **OORT, **MEMORY) for _ in range(3)],
    }
    (line,) = Comparison(runs).credits()
    assert line == (
        "both picks and merges otherwise than fedavg: of +21.0, +20.0 comes with merging alone "
        "(fedavg-memory), +1.0 with selection"
    )
    del runs["fedavg-memory"]
    (line,) = Comparison(runs).credits()
    assert line.endswith("its gain is not one of selection alone")
    assert [row["merges"] for row in Comparison(runs).table()] == ["sizes", "sizes", "memory"]


def test_warm_up_of_all_seeds_is_one_line():
    runs = {"a": [made_up(0.5)] * 2, "b": [made_up(0.5, 1, **OORT), made_up(0.6, 2, **OORT)]}
    assert Comparison(runs).notes() == ["b: 1 to 2 of 4 rounds were warm-up"]


def test_curves_on_top_of_each_other_are_told_apart():
    rounds = np.arange(1, 7)
    first = Band(rounds, np.array([1.0, 2, 3, 4, 5, 6]), np.zeros(6), 1)
    second = Band(rounds, np.array([1.0, 2, 3, 4, 7, 8]), np.zeros(6), 1)
    axes = new_figure(4, 3).subplots()
    _lines(axes, {"a": first, "b": second}, {"a": "red", "b": "blue"})
    whole, solid, dashed = axes.get_lines()
    assert whole.get_linestyle() == solid.get_linestyle() == "-"
    assert dashed.get_linestyle() == "--"
    assert np.isfinite(whole.get_ydata()).all()
    assert np.isfinite(dashed.get_ydata()).tolist() == [True] * 4 + [False] * 2
    assert np.isfinite(solid.get_ydata()).tolist() == [False] * 3 + [True] * 3
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
