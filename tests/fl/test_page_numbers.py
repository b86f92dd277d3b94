"""Numbers of a report, against SciPy and by hand."""

import json

import numpy as np
from numpy.testing import assert_allclose
from report_runs import DOWN, LATE, PAPER, ROUNDS, UP, make_run, read_csv, read_table
from scipy import stats

from fl.experiments import build
from fl.experiments.statistics import default_target, paired_difference, spread, spreads
from fl.store import read_history, write_json


def test_results_are_means_and_two_std_beside_the_paper(page, rtol):
    table = read_table(page, "classification-results")
    for method, late in LATE.items():
        row = table["Digits", method]
        means = 100 * np.mean(late, axis=1)
        finals = 100 * np.array([values[-1] for values in late])
        assert_allclose(float(row["last_five_percent"]), means.mean(), rtol=rtol)
        assert_allclose(float(row["last_five_2std_percent"]), 2 * means.std(ddof=1), rtol=rtol)
        assert_allclose(float(row["final_percent"]), finals.mean(), rtol=rtol)
        assert_allclose(float(row["final_2std_percent"]), 2 * finals.std(ddof=1), rtol=rtol)
        assert_allclose(float(row["paper_percent"]), PAPER[method][0], rtol=rtol)
        assert_allclose(float(row["paper_2std_percent"]), PAPER[method][1], rtol=rtol)
        gap = means.mean() - PAPER[method][0]
        assert_allclose(float(row["gap_percent"]), gap, rtol=1e-10)  # a small difference
        assert row["seeds"] == "3"
    line = '<td class="name">oort</td><td class="n strong">89.93</td><td class="n">2.41</td>'
    assert line + '<td class="n">89.43</td><td class="n">1.49</td>' in page.read_text("utf-8")


def test_paired_differences_equal_the_paired_t_test(page):
    table = read_table(page, "classification-differences")
    assert ("Digits", "fedavg") not in table
    base = np.mean(LATE["fedavg"], axis=1)
    for method in ("oort", "fedcvr-bolt"):
        row, ours = table["Digits", method], np.mean(LATE[method], axis=1)
        expected = stats.ttest_rel(ours, base).confidence_interval(0.95)
        assert row["reference"] == "fedavg"
        assert row["pairs"] == "3"
        assert_allclose(float(row["last_five_points"]), 100 * (ours - base).mean(), rtol=1e-10)
        assert_allclose(float(row["last_five_low_points"]), 100 * expected.low, rtol=1e-10)
        assert_allclose(float(row["last_five_high_points"]), 100 * expected.high, rtol=1e-10)
    assert table["Digits", "oort"]["verdict"] == "higher"
    assert table["Digits", "fedcvr-bolt"]["verdict"] == "open"


def test_differences_pair_by_seed_and_need_three_pairs():
    three = paired_difference({0: 1.0, 1: 2.0, 2: 4.0, 7: 9.0}, {0: 0.0, 1: 0.5, 2: 1.0, 8: 0.0})
    expected = stats.ttest_rel([1.0, 2.0, 4.0], [0.0, 0.5, 1.0]).confidence_interval(0.95)
    assert three.n == 3
    assert_allclose([three.low, three.high], [expected.low, expected.high], rtol=1e-12)
    two = paired_difference({0: 1.0, 1: 2.0, 2: None}, {0: 0.0, 1: 0.5, 2: 1.0})
    assert (two.n, two.mean, two.low, two.high) == (2, 1.25, None, None)
    assert paired_difference({0: 1.0}, {1: 1.0}).mean is None


def test_two_seeds_give_no_interval_and_say_so(quick_page):
    files = quick_page.parent / "page-files" / "tables"
    rows = read_csv(files / "classification-quick-differences.csv")
    ran = [row for row in rows if row["pairs"] == "2"]
    assert len(ran) == 2
    assert all(row["verdict"] == "no interval" and not row["last_five_low_points"] for row in ran)
    assert "too few for an interval" in quick_page.read_text(encoding="utf-8")


def test_progress_counts_rounds_and_megabytes_to_the_target(page, rtol):
    table = read_table(page, "classification-progress")
    row = table["Digits", "fedavg"]
    # Mean last five 0.806: the target is 80 %, first met in rounds 4, 5 and 6.
    assert_allclose(float(row["target_percent"]), 80.0, rtol=rtol)
    assert row["reached"] == "3 of 3"
    assert_allclose(float(row["rounds_to_target"]), 5.0, rtol=rtol)
    assert_allclose(float(row["megabytes_to_target"]), 5.0 * (UP + DOWN) / 1e6, rtol=rtol)
    assert_allclose(float(row["megabytes"]), ROUNDS * (UP + DOWN) / 1e6, rtol=rtol)
    assert_allclose(float(row["best_percent"]), 100 * np.mean([0.85, 0.86, 0.82]), rtol=rtol)
    worst = 50 * np.mean([values[-1] for values in LATE["fedavg"]])
    assert_allclose(float(row["worst_decile_percent"]), worst, rtol=rtol)


def test_progress_has_simulated_seconds_where_devices_are_simulated(page, tmp_path):
    assert (
        "simulated_seconds" not in read_table(page, "classification-progress")["Digits", "fedavg"]
    )
    make_run(tmp_path / "run", "fedavg", 0, [0.1, 0.6, 0.7], target=0.5)
    rounds = tmp_path / "run" / "rounds.jsonl"
    records = [json.loads(line) for line in rounds.read_text().splitlines()]
    for record, clock in zip(records, [100.0, 250.0, 900.0], strict=True):
        record["simulated_clock"] = clock
    rounds.write_text("".join(json.dumps(record) + "\n" for record in records))
    cell = {"row": "Digits", "column": "FedAvg", "method": "fedavg", "paper": None,
            "runs": ["run"], "config": {}, "target": 0.5}  # fmt: skip
    plan = {"experiment": "one", "title": "One", "quick": False, "metric": "accuracy",
            "cells": [cell]}  # fmt: skip
    write_json(tmp_path / "experiment.json", plan)
    row = read_table(build([tmp_path], tmp_path / "out"), "one-progress")["Digits", "FedAvg"]
    assert (row["simulated_seconds_to_target"], row["simulated_seconds"]) == ("250.0", "900.0")


def test_target_of_the_plan_wins_even_if_nobody_met_it(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.1, 0.2], target=0.1)
    cell = {"row": "Digits", "column": "FedAvg", "method": "fedavg", "paper": None,
            "runs": ["run"], "config": {}, "target": 0.85}  # fmt: skip
    plan = {"experiment": "one", "title": "One", "quick": False, "metric": "accuracy",
            "cells": [cell]}  # fmt: skip
    write_json(tmp_path / "experiment.json", plan)
    row = read_table(build([tmp_path], tmp_path / "out"), "one-progress")["Digits", "FedAvg"]
    assert (row["target_percent"], row["reached"]) == ("85.0", "0 of 1")
    assert row["rounds_to_target"] == row["megabytes_to_target"] == ""


def test_target_nobody_met_costs_nothing(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.1, 0.2])
    history = read_history(tmp_path / "run")
    found = spreads([history], 100.0, 0.9)
    assert found["rounds_to_target"].n == 0
    assert found["rounds_to_target"].mean is found["megabytes_to_target"].mean is None
    assert default_target([history], "accuracy") == 0.15
    assert default_target([], "accuracy") is None
    assert spread([]).mean is None
