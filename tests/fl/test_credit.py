"""Comparisons and the report: equal curves are told apart, merging is not credited to selection."""

import numpy as np
from tiny import tiny_config

from fl.experiments.bands import draw_lines
from fl.experiments.compare import Comparison
from fl.experiments.drawing import new_figure
from fl.experiments.statistics import Band
from fl.experiments.text_tables import comparison_table
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
        "both minus fedavg is +21.0 points: aggregation alone (fedavg-memory) gives +20.0, "
        "selection added to it +1.0"
    )
    del runs["fedavg-memory"]
    (line,) = Comparison(runs).credits()
    assert line.endswith("its gain does not come from selection alone")
    assert [row["merges"] for row in Comparison(runs).table()] == ["sizes", "sizes", "memory"]


def test_the_server_step_is_told():
    long = {"server__lr": 4.0, "server__average": 0.8}
    runs = {
        "plain": [made_up(0.5, server__lr=1.0)],
        "long": [made_up(0.5, **long)],
        "adaptive": [made_up(0.5, server__optimiser="adaptive", server__average=0.8)],
        "adam": [made_up(0.5, server__optimiser="adam", server__lr=0.02)],
        "momentum": [made_up(0.5, server__momentum=0.9)],
    }
    rows = Comparison(runs).table()
    assert [row["server"] for row in rows] == [
        None, "step 4, averaged", "step adapts, averaged", "adam, step 0.02", "momentum 0.9",
    ]  # fmt: skip
    (column,) = [c for c in comparison_table(rows).columns if c.header == "server"]
    assert list(column.cells)[:2] == ["-", "step 4,\naveraged"]


def test_warm_up_of_all_seeds_is_one_line():
    runs = {"a": [made_up(0.5)] * 2, "b": [made_up(0.5, 1, **OORT), made_up(0.6, 2, **OORT)]}
    assert Comparison(runs).notes() == ["b: 1 to 2 of 4 rounds were warm-up"]


def test_curves_on_top_of_each_other_are_told_apart():
    rounds = np.arange(1, 7)
    first = Band(rounds, np.array([1.0, 2, 3, 4, 5, 6]), np.zeros(6), 1)
    second = Band(rounds, np.array([1.0, 2, 3, 4, 7, 8]), np.zeros(6), 1)
    axes = new_figure(4, 3).subplots()
    draw_lines(axes, {"a": first, "b": second}, {"a": "red", "b": "blue"})
    whole, solid, dashed = axes.get_lines()
    assert whole.get_linestyle() == solid.get_linestyle() == "-"
    assert dashed.get_linestyle() == "--"
    assert np.isfinite(whole.get_ydata()).all()
    assert np.isfinite(dashed.get_ydata()).tolist() == [True] * 4 + [False] * 2
    assert np.isfinite(solid.get_ydata()).tolist() == [False] * 3 + [True] * 3
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
