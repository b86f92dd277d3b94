"""The share of the gap that is closed, equal samples and costs: numbers worked out by hand."""

import dataclasses
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from report_runs import make_run
from scipy import stats

from fl.experiments.measures import measure
from fl.experiments.results import read_results
from fl.experiments.shares import (
    at_equal_samples,
    extra_megabytes,
    is_full,
    is_plain,
    plain_runs,
    ratio_of_means,
    share_closed,
)
from fl.experiments.statistics import band, comparable, readers
from fl.store import read_history, write_json

K = 12


def history(folder, method="fedavg", seed=0, values=(0.5,), sizes=None, **changes):
    make_run(folder, method, seed, list(values), **changes)
    if sizes is not None:
        path = folder / "rounds.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record, own in zip(records, sizes, strict=True):
            record["sizes"] = own
            record["accuracy_weighted"] = record["accuracy"] + 0.1
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_history(folder)


def test_the_ratio_is_that_of_the_means_and_its_ends_are_where_t_decides():
    a, b = np.array([1.0, 2.0, 2.5, 1.5]), np.array([4.0, 3.0, 5.0, 4.5])
    found = ratio_of_means(a, b)
    assert found.share == pytest.approx(7.0 / 16.5)
    assert found.low < found.share < found.high
    for end in (found.low, found.high):  # a - x b differs from 0 by exactly t standard errors
        left = a - end * b
        t = abs(left.mean()) / (left.std(ddof=1) / 2.0)
        assert t == pytest.approx(stats.t.ppf(0.975, 3), rel=1e-9)


def test_the_interval_covers_nineteen_of_twenty():
    rng = np.random.default_rng(3)
    hits, trials = 0, 2000
    for _ in range(trials):
        common = rng.normal(size=5)
        a, b = 3.0 + common + rng.normal(size=5), 10.0 + common
        found = ratio_of_means(a, b)
        hits += found.low <= 0.3 <= found.high
    assert abs(hits / trials - 0.95) < 4 * np.sqrt(0.95 * 0.05 / trials)


def test_no_share_where_the_gap_may_be_nothing_or_seeds_are_few():
    assert ratio_of_means([1.0, 2.0], [4.0, 4.0]).share is None
    unsure = ratio_of_means([1.0, 1.0, 1.0], [-1.0, 2.0, 5.0])  # mean 2, its interval holds 0
    assert (unsure.n, unsure.share, unsure.low) == (3, None, None)
    # Half the gap is closed where it is 4 points; a negative gap would flip the sign.
    assert ratio_of_means([2.0] * 3, [4.0] * 3).share == 0.5


def test_sides_are_read_after_equal_rounds_and_the_best_step_is_the_ceiling(tmp_path):
    base, ours, one, two = {}, {}, {}, {}
    for seed, shift in enumerate((0.0, 0.02, 0.05)):
        part = {"seed": seed, "selection__n_select": 3}
        base[seed] = history(tmp_path / f"b{seed}", values=[0.5 + shift] * 6, **part)
        ours[seed] = history(tmp_path / f"o{seed}", "oort", values=[0.56 + shift] * 6, **part)
        full = {"seed": seed, "selection__n_select": K}
        # After six rounds 0.6; what comes later must not count.
        values = [0.6 + shift] * 6 + [0.99] * 6
        one[seed] = history(tmp_path / f"f{seed}", values=values, **full)
        values = [0.7 + shift] * 6 + [0.1] * 6
        two[seed] = history(tmp_path / f"g{seed}", values=values, server__lr=2.0, **full)
    assert_allclose(share_closed(ours, base, [one]).share, 0.06 / 0.10)
    found = share_closed(ours, base, [one, two])
    assert_allclose([found.share, found.n], [0.06 / 0.20, 3])
    assert share_closed(ours, base, []).share is None
    # A ceiling below FedAvg has no share to give; one with fewer seeds does not replace another.
    below = {s: history(tmp_path / f"w{s}", values=[0.3] * 6, **(full | {"seed": s})) for s in base}
    assert share_closed(ours, base, [below]).share is None
    assert share_closed(ours, base, [one, {0: two[0]}]).n == 3
    assert [is_full(runs[0].config) for runs in (base, ours, one, two)] == [
        False,
        False,
        True,
        True,
    ]
    assert [is_plain(runs[0].config) for runs in (base, ours, two)] == [True, False, False]
    other = {s: history(tmp_path / f"x{s}", "oort", s, [0.9] * 6, training__lr=0.5) for s in (0, 1)}
    assert share_closed(other, base, [one]).n == 0  # another protocol


def test_averaged_models_are_compared_with_averaged_ones_alone(tmp_path):
    part = {"selection__n_select": 3}
    base = {s: history(tmp_path / f"b{s}", seed=s, values=[0.5] * 5, **part) for s in range(3)}
    ours = {s: history(tmp_path / f"o{s}", "oort", s, [0.6] * 5, **part) for s in range(3)}
    top = {"selection__n_select": K, "server__average": 0.9}
    full = {s: history(tmp_path / f"f{s}", seed=s, values=[0.9] * 5, **top) for s in range(3)}
    for run in full.values():
        for record in run.rounds:
            record["sent_accuracy"] = 0.7
    assert_allclose(share_closed(ours, base, [full]).share, 0.1 / 0.2)
    averaged = [
        {
            s: dataclasses.replace(r, config=r.config.replace(server__average=0.9))
            for s, r in d.items()
        }
        for d in (ours, base)
    ]
    assert_allclose(share_closed(*averaged, [full]).share, 0.1 / 0.4)


def test_the_baseline_of_the_row_is_fedavg_at_its_best_step(tmp_path):
    def cell(column, **changes):
        history(tmp_path / column, values=[0.5], **changes)
        return column

    columns = [cell("fedavg, step 1"), cell("fedavg", server__lr=4.0)]
    columns += [cell("full", selection__n_select=K, server__lr=4.0)]
    plan(tmp_path, "table", {c: [c] for c in columns}, baseline="fedavg")
    cells = read_results(tmp_path).cells
    assert plain_runs(cells, "fedavg")[0].config.server.lr == 4.0
    assert plain_runs(cells)[0].config.server.lr is None
    assert plain_runs(cells, "full")[0].config.server.lr is None


def test_a_row_s_baseline_has_no_share_and_fedavg_at_another_step_has_one(tmp_path):
    levels = {"fedavg, step 1": (3, 1.0, 0.8), "fedavg": (3, 4.0, 0.9), "full": (K, 8.0, 0.95)}
    runs = {column: [f"{column}-{seed}" for seed in range(3)] for column in levels}
    for column, (n_select, lr, level) in levels.items():
        settings = {"selection__n_select": n_select, "server__lr": lr}
        for seed, place in enumerate(runs[column]):
            values = [level + seed / 1000] * 5
            history(tmp_path / place, "fedavg", seed, values, **settings)
    plan(tmp_path, "table", runs, baseline="fedavg")
    rows = {row["column"]: row for row in measure(read_results(tmp_path))}
    assert [rows[name]["gap_share"] for name in ("fedavg", "full")] == [None, None]
    assert [rows[name]["gap_pairs"] for name in ("fedavg", "full")] == [0, 0]
    assert_allclose(rows["fedavg, step 1"]["gap_share"], -100 * 0.1 / 0.05)


def test_the_servers_step_belongs_to_the_method(tmp_path):
    plain = {0: history(tmp_path / "a", values=[0.5])}
    long = {0: history(tmp_path / "b", values=[0.6], server__lr=2.0)}
    adaptive = {0: history(tmp_path / "c", values=[0.6], server__optimiser="adaptive")}
    other = {0: history(tmp_path / "d", values=[0.6], training__lr=0.5)}
    assert comparable(plain, long) == comparable(plain, adaptive) == [0]
    assert comparable(plain, other) == []


def test_equal_samples_stop_where_fedavg_ended(tmp_path):
    # FedAvg: 2 rounds of 10 samples and as many epochs; ours takes 8 a round, then 4.
    base = {0: history(tmp_path / "a", values=[0.1, 0.2], sizes=[[4, 6], [10]])}
    values, sizes = [0.1, 0.2, 0.3, 0.4], [[8], [8], [4], [4]]
    ours = {0: history(tmp_path / "b", "oort", values=values, sizes=sizes)}
    epochs = base[0].config.training.epochs
    assert base[0].samples().tolist() == [10 * epochs, 20 * epochs]
    # 8 + 8 + 4 = 20 samples after three rounds: the mean of 0.1, 0.2 and 0.3.
    assert at_equal_samples(ours, base)[0] == pytest.approx(0.2)
    assert at_equal_samples(base, ours)[0] == pytest.approx(0.15)  # it ends before
    unknown = {0: history(tmp_path / "c", values=[0.1])}
    assert at_equal_samples(unknown, base) == {0: None}
    read = readers(100.0)
    assert read["samples"](ours[0]) == pytest.approx(24 * epochs / 1e6)
    assert read["weighted"](base[0]) == pytest.approx(25.0)
    assert read["samples"](unknown[0]) is read["weighted"](unknown[0]) is None


def test_extra_bytes_are_what_fedavg_did_not_send(tmp_path):
    base = {0: history(tmp_path / "a", values=[0.1, 0.2])}
    ours = {0: history(tmp_path / "b", "oort", values=[0.1, 0.2, 0.3])}
    assert extra_megabytes(ours, base) == pytest.approx(8.0)  # a round is 3 + 5 MB
    assert extra_megabytes(ours, {}) is None


def plan(folder, name, cells, **extra):
    folder.mkdir(parents=True, exist_ok=True)
    found = [
        {"row": "Digits", "column": column, "method": "fedavg", "paper": None, "runs": runs,
         "config": {}} for column, runs in cells.items()
    ]  # fmt: skip
    about = {"experiment": name, "title": name, "quick": False, "metric": "accuracy"}
    write_json(folder / "experiment.json", {**about, "cells": found, **extra})


def test_tables_find_the_ceiling_beside_them(tmp_path):
    mine, ceiling = {"fedavg": [], "oort": []}, {"fedavg": [], "full, step 1": []}
    for seed in range(3):
        for method, level in {"fedavg": 0.5, "oort": 0.6 + seed / 100}.items():
            history(tmp_path / "table" / f"{method}-{seed}", method, seed, [level] * 5)
            mine[method].append(f"{method}-{seed}")
        name = f"full-{seed}"
        top = {"selection__n_select": K, "rounds": 5}
        history(tmp_path / "ceiling" / name, "fedavg", seed, [0.7] * 5, **top)
        ceiling["full, step 1"].append(name)
    plan(tmp_path / "table", "table", mine, baseline="fedavg")
    rows = {row["column"]: row for row in measure(read_results(tmp_path / "table"))}
    assert rows["oort"]["gap_share"] is None
    plan(tmp_path / "ceiling", "ceiling", ceiling, baseline="fedavg")
    rows = {row["column"]: row for row in measure(read_results(tmp_path / "table"))}
    # Gains of 10, 11 and 12 points of a gap of 20, which does not vary: t's interval over 20.
    half = stats.t.ppf(0.975, 2) * 1.0 / np.sqrt(3) / 20
    found = [rows["oort"][f"gap_{name}"] for name in ("share", "low", "high")]
    assert_allclose(found, [55.0, 100 * (0.55 - half), 100 * (0.55 + half)], rtol=1e-9)
    assert rows["oort"]["gap_pairs"] == 3
    assert rows["fedavg"]["gap_share"] is None


def test_a_running_mean_counts_rounds_and_not_evaluations(tmp_path):
    run = history(tmp_path / "a", values=[0.0, 0.2, 0.4, 0.6])
    assert_allclose(band([run], "accuracy", width=2).mean, [0.0, 0.1, 0.3, 0.5])
    for record in run.rounds:
        record["round"] *= 5  # as if it was evaluated every fifth round
    assert_allclose(band([run], "accuracy", width=10).mean, [0.0, 0.1, 0.3, 0.5])
    assert_allclose(band([run], "accuracy", width=2).mean, [0.0, 0.2, 0.4, 0.6])
