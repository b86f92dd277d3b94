import base64
import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from fl.data import load_federation
from fl.presets import make_config
from fl.report import ReportError, build
from fl.report.drawing import inline_svg
from fl.report.grouping import commands
from fl.report.markup import tag
from fl.report.statistics import default_target, paired_difference, reach, spread
from fl.report.tables import Column, Table, escape_latex
from fl.store import read_history, write_json
from fl.streams import Streams

ROOT = Path(__file__).parents[2]
N_CLIENTS, ROUNDS, UP, DOWN = 12, 8, 3_000_000, 5_000_000
#: Accuracy of the last five of eight rounds, by method and seed.
LATE = {
    "fedavg": (
        [0.80, 0.82, 0.81, 0.85, 0.84],
        [0.78, 0.80, 0.83, 0.80, 0.86],
        [0.70, 0.75, 0.80, 0.80, 0.82],
    ),
    "oort": (
        [0.90, 0.90, 0.91, 0.92, 0.93],
        [0.88, 0.90, 0.89, 0.90, 0.92],
        [0.85, 0.90, 0.88, 0.90, 0.91],
    ),
    "fedcvr-bolt": (
        [0.81, 0.80, 0.85, 0.84, 0.90],
        [0.75, 0.80, 0.80, 0.82, 0.80],
        [0.80, 0.80, 0.80, 0.85, 0.88],
    ),
}
PAPER = {"fedavg": [86.30, 1.12], "oort": [89.43, 1.49], "fedcvr-bolt": [90.23, 0.82]}


def make_run(folder, method, seed, values, metric="accuracy", **changes):
    """Write a run folder by hand, as `fl.run` would."""
    settings = {"rounds": len(values), "seed": seed, "data__n_clients": N_CLIENTS,
                "selection__n_select": 3, **changes}  # fmt: skip
    config = make_config("digits" if metric == "accuracy" else "regression", method, **settings)
    data = load_federation(config.data.dataset, n_clients=N_CLIENTS,
                           seed=Streams(seed).integer("partition")).record  # fmt: skip
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.to_dict())
    facts = {"data": data, "n_clients": N_CLIENTS, "model": "mlp", "n_parameters": 100}
    write_json(folder / "facts.json", facts | {"n_classes": 10 if metric == "accuracy" else 0})
    lines = []
    for t, value in enumerate(values):
        record = {"round": t + 1, "picked": [t % 4, 5, 7], "uplink": UP, "downlink": DOWN}
        record |= {metric: value, "worst_decile": value / 2, "timing": {"round": 0.5}}
        if method.startswith("fedcvr-bolt"):
            record["warmup"] = t < 2
            if t >= 2:
                record |= {"coalition_sizes": [5, 4, 3], "ari": 0.5 + t / 20, "tv_mean": 0.1}
        lines.append(json.dumps(record) + "\n")
    (folder / "rounds.jsonl").write_text("".join(lines))


def make_experiment(folder, quick=False, seeds=3, **changes):
    """An experiment of two rows: one with three methods run and a fourth not, one without runs."""
    cells = []
    for method, late in LATE.items():
        runs = [f"runs/{method}-{seed}" for seed in range(seeds)]
        for seed, name in enumerate(runs):
            make_run(folder / name, method, seed, [0.2, 0.4, 0.6, *late[seed]])
        cells.append(
            {"row": "Digits", "column": method, "method": method, "paper": PAPER[method],
             "runs": runs, "config": {}}
        )  # fmt: skip
    for row, method in (("Digits", "fesem"), ("CIFAR-10", "fedavg")):
        cells.append(
            {"row": row, "column": method, "method": method, "paper": [52.67, 1.25],
             "runs": [f"runs/{method}-0"] if row == "Digits" else [], "config": {"rounds": 8}}
        )  # fmt: skip
    (folder / "own.png").write_bytes(PIXEL)
    plan = {
        "experiment": "classification", "title": "Nine <methods> & more", "quick": quick,
        "preset": "paper", "command": "cvrcore reproduce classification", "metric": "accuracy",
        "cells": cells, "figures": ["own.png", "not-drawn.png"],
    }  # fmt: skip
    write_json(folder / "experiment.json", plan | changes)
    return folder


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    place = tmp_path_factory.mktemp("plain")
    return build([make_experiment(place / "runs")], place / "out")


@pytest.fixture(scope="module")
def quick_page(tmp_path_factory):
    place = tmp_path_factory.mktemp("quick")
    folder = make_experiment(place / "runs", quick=True, seeds=2)
    return build([folder], place / "page.html")


def read_csv(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def read_table(page, name):
    rows = read_csv(page.parent / "tables" / f"{name}.csv")
    return {(row["row"], row["column"]): row for row in rows}


# -- numbers -----------------------------------------------------------------------


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
    assert reach([history], 0.9).reached == 0
    assert reach([history], 0.9).rounds is None
    assert default_target([history], "accuracy") == 0.15
    assert default_target([], "accuracy") is None
    assert spread([]).mean is None


# -- files and page ----------------------------------------------------------------


@pytest.mark.parametrize("which", ["page", "quick_page"])
def test_every_figure_and_table_lies_beside_the_page(which, request):
    page = request.getfixturevalue(which)
    text = page.read_text(encoding="utf-8")
    links = re.findall(r'href="([^"#][^"]*\.(?:png|svg|csv|tex))"', text)
    assert all((page.parent / link).stat().st_size > 0 for link in links)
    kinds = {link.rpartition("/")[2].rpartition(".")[0].rpartition("digits-")[2] for link in links}
    wanted = {"curves", "selection", "uniformity", "coalition-stability", "coalition-sizes"}
    assert wanted | {"partition"} <= kinds
    for name in re.findall(r'<figure id="([^"]+)"', text):
        endings = {link[-3:] for link in links if Path(link).stem == name}
        assert endings == ({"png"} if name.endswith("own") else {"png", "svg"})
    for link in links:
        if link.endswith(".csv"):
            assert link[:-3] + "tex" in links
    files = [p for p in page.parent.rglob("*") if p.parent.name in ("figures", "tables")]
    assert len(files) == len(set(links))


def test_page_needs_nothing_from_outside(page):
    text = page.read_text(encoding="utf-8")
    assert "http:" not in text
    assert "https:" not in text
    assert "<script" not in text
    assert "@import" not in text
    for source in re.findall(r'(?:src|xlink:href)="([^"]*)"', text):
        assert source.startswith("data:image/")
    assert base64.b64encode(PIXEL).decode() in text
    assert "Nine &lt;methods&gt; &amp; more" in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    anchors = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert set(anchors) <= set(ids)


def test_page_opens_in_chromium_without_an_error(page, tmp_path):
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next(filter(None, map(shutil.which, names)), None)
    if binary is None:
        pytest.skip(f"no browser here: none of {', '.join(names)} is on the path")
    done = subprocess.run(
        [
            binary, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-quic", f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--v=0",
            "--dump-dom", page.resolve().as_uri(),
        ],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    figures = re.findall(r"<figure.*?</figure>", done.stdout, flags=re.DOTALL)
    assert len(figures) == page.read_text(encoding="utf-8").count("<figure") >= 8
    assert all(re.search(r"<path|<image|<img", figure) for figure in figures)
    assert "</html>" in done.stdout


def test_quick_is_written_on_everything(quick_page, page):
    text = quick_page.read_text(encoding="utf-8")
    badge = '<span class="quick">quick</span>'
    assert badge not in page.read_text(encoding="utf-8")
    for part in re.findall(r"<h[23].*?</h[23]>|<figcaption.*?</figcaption>", text):
        if not re.search(r"Summary|Contents|Versions", part):
            assert badge in part
    files = [p for p in (quick_page.parent / "page-files").rglob("*.*")]
    assert all("-quick-" in path.name for path in files)
    for path in files:
        if path.suffix == ".csv":
            assert all(row["quick"] == "quick" for row in read_csv(path))
        elif path.suffix == ".tex":
            assert "(quick)" in path.read_text(encoding="utf-8")
        elif path.suffix == ".svg" and "partition" not in path.name:
            assert ">quick</text>" in path.read_text(encoding="utf-8")


def test_cells_without_a_finished_run_say_not_run(page):
    table = read_table(page, "classification-results")
    for cell in (("Digits", "fesem"), ("CIFAR-10", "fedavg")):
        assert table[cell]["last_five_percent"] == "not run"
        assert table[cell]["paper_percent"] == "52.67"
        assert table[cell]["gap_percent"] == ""
    assert table["Digits", "fesem"]["seeds"] == "0 of 1"
    text = page.read_text(encoding="utf-8")
    assert text.count(">not run</td>") >= 4
    assert "CIFAR-10: not run." in text
    assert "not-drawn.png is not there" in text


def test_unfinished_run_does_not_count(tmp_path):
    for seed in range(2):
        make_run(tmp_path / "runs" / f"f{seed}", "fedavg", seed, [0.5, 0.6, 0.7])
    make_run(tmp_path / "runs" / "o0", "oort", 0, [0.5, 0.6, 0.7])
    lines = (tmp_path / "runs" / "o0" / "rounds.jsonl").read_text()
    (tmp_path / "runs" / "o0" / "rounds.jsonl").write_text(lines[:-10])  # killed while writing
    page = build([tmp_path / "runs"], tmp_path / "out")
    table = read_table(page, "digits-results")
    assert table["digits", "fedavg"]["seeds"] == "2"
    assert table["digits", "oort"]["last_five_percent"] == "not run"
    assert ">2 of 3</td>" in page.read_text(encoding="utf-8")


def test_page_holds_settings_decisions_versions_and_the_command(page):
    text = page.read_text(encoding="utf-8")
    for words in ("training.lr", "Concentration of the Dirichlet law", "Clients without samples",
                  "cvrcore reproduce classification", "matplotlib", "numpy"):  # fmt: skip
        assert words in text


def test_regression_is_reported_as_an_error(tmp_path, rtol):
    errors = {"fedavg": [3.0, 1.0, 0.3, 0.2], "fedcvr-bolt": [3.0, 1.0, 0.2, 0.1]}
    for method, values in errors.items():
        make_run(tmp_path / "runs" / method, method, 0, values, "mse")
    page = build([tmp_path / "runs"], tmp_path / "out")
    table = read_table(page, "regression-results")
    assert_allclose(float(table["regression", "fedavg"]["last_five"]), 1.125, rtol=rtol)
    assert float(table["regression", "fedavg"]["final"]) == 0.2
    text = page.read_text(encoding="utf-8")
    assert "fedcvr-bolt has the best last five" in text
    assert "Test error by round" in text


def test_data_that_are_not_at_hand_cost_the_partition_map_only(tmp_path):
    make_run(tmp_path / "runs" / "a", "fedavg", 0, [0.5, 0.6])
    facts = json.loads((tmp_path / "runs" / "a" / "facts.json").read_text())
    facts["data"]["alpha"] = 7.0  # drawn from other data
    write_json(tmp_path / "runs" / "a" / "facts.json", facts)
    page = build([tmp_path / "runs"], tmp_path / "out")
    assert "the data at hand are not those of the run" in page.read_text(encoding="utf-8")
    assert not list(page.parent.rglob("*partition*"))
    assert list(page.parent.rglob("*curves.svg"))


def test_theorem_is_a_table_beside_its_figure(tmp_path):
    verdict = {"groups": "equal", "step": 0.1, "smoothness": 1.5, "second_moment": 2.0,
               "alignment": 0.5, "worst_alignment": -1.0, "mean_square": 0.2, "bound": 0.3,
               "finite_bound": 0.4}  # fmt: skip
    asked = {"rounds": 300, "seeds": 2, "steps": [0.1]}
    write_json(tmp_path / "theory.json", {"asked": asked, "verdicts": [verdict]})
    plan = {"experiment": "theory", "title": "Theorem 1", "quick": False, "metric": "mse",
            "cells": [], "figures": []}  # fmt: skip
    write_json(tmp_path / "experiment.json", plan)
    page = build([tmp_path], tmp_path / "out")
    [row] = read_csv(page.parent / "tables" / "theory-bound.csv")
    assert (row["mean_square"], row["bound"]) == ("0.2", "0.3")
    assert "<td" in page.read_text(encoding="utf-8")
    (tmp_path / "theory.json").write_text("{}")
    with pytest.raises(ReportError, match="theory.json is damaged"):
        build([tmp_path], tmp_path / "out")


# -- runs without a plan -----------------------------------------------------------


def test_runs_of_other_settings_are_columns_of_their_own(tmp_path):
    make_run(tmp_path / "runs" / "a", "fedavg", 0, [0.5, 0.6])
    make_run(tmp_path / "runs" / "b", "fedavg", 0, [0.5, 0.7], selection__n_select=4)
    shutil.copytree(tmp_path / "runs" / "b", tmp_path / "runs" / "copy-of-b")
    table = read_table(build([tmp_path / "runs"], tmp_path / "out"), "digits-results")
    assert {column for _, column in table} == {"fedavg, n_select 3", "fedavg, n_select 4"}
    assert table["digits", "fedavg, n_select 4"]["seeds"] == "1"


def test_command_of_runs_says_what_differs_from_the_preset():
    configs = [
        make_config("digits", method, seed=seed, rounds=20, training__lr=0.5)
        for method in ("fedavg", "oort")
        for seed in range(2)
    ]
    assert commands(configs) == [
        "cvrcore compare fedavg oort --dataset digits --preset paper --rounds 20 "
        "--set training.lr=0.5 --seeds 2"
    ]
    assert commands([configs[1]]) == [
        "cvrcore run --method fedavg --dataset digits --preset paper --rounds 20 "
        "--set training.lr=0.5 --seed 1"
    ]
    assert "settings of its own" in commands([configs[0].replace(method="mine")])[0]


# -- forms of a table --------------------------------------------------------------


def test_latex_is_escaped_and_regular():
    columns = [Column("a", "a_b, %"), Column("b", "± 2 std", 2, 100.0, sign=True)]
    rows = [{"a": "x & y", "b": -0.5}, {"a": "x & y", "b": None}, {"a": "z", "b": "not run"}]
    text = Table("t", "Title_1", "50 % of #1.", columns, rows).latex()
    assert r"\caption{Title\_1. 50 \% of \#1.}" in text
    assert r"x \& y & $-$50.00 \\" in text
    assert r" & -- \\" in text
    assert r"z & not run \\" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in body)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    assert escape_latex("\\{}") == r"\textbackslash{}\{\}"


def test_markup_escapes_text_and_attributes():
    assert tag("a", "<b>", tag("i", "&"), href='"x"') == (
        '<a href="&quot;x&quot;">&lt;b&gt;<i>&amp;</i></a>'
    )


def test_inline_figures_share_no_names():
    svg = (
        '<?xml?><svg width="9pt" viewBox="0 0 9 9" xmlns="http://x"><g id="a"/>'
        '<use xlink:href="#a" style="fill: #22262b; clip-path: url(#a)"/></svg>'
    )
    text = inline_svg(svg, "one")
    assert 'id="one--a"' in text
    assert 'href="#one--a"' in text
    assert "url(#one--a)" in text
    assert "fill: var(--ink)" in text
    assert "http" not in text


# -- bad input ---------------------------------------------------------------------


def broken(folder, kind):
    """Make the folder that `kind` names; return the folder that the message must name."""
    if kind == "missing":
        return folder / "nowhere"
    if kind == "empty":
        (folder / "empty").mkdir()
        return folder / "empty"
    run = folder / "runs" / "oort-1"
    make_run(run, "oort", 1, [0.1, 0.2, 0.3])
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    if kind == "torn":
        lines[1] = lines[1][:20] + "\n"
    elif kind == "reordered":
        lines[0], lines[1] = lines[1], lines[0]
    elif kind == "list":
        lines[2] = "[1, 2]\n"
    elif kind == "binary":
        (run / "rounds.jsonl").write_bytes(b"\xff\xfe\n")
        return run
    elif kind == "config":
        (run / "config.json").write_text("{")
    (run / "rounds.jsonl").write_text("".join(lines))
    return run


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "torn", "reordered", "list", "binary", "config"]
)
def test_folder_that_cannot_be_reported_is_named_in_one_line(tmp_path, kind):
    culprit = broken(tmp_path, kind)
    place = culprit if kind in ("missing", "empty") else tmp_path / "runs"
    with pytest.raises(ReportError, match=re.escape(str(culprit))) as caught:
        build([place], tmp_path / "out")
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"metric": "accuracy"}', "'experiment' is missing"),
        ('{"metric": "loss"}', "metric must be accuracy or mse, got 'loss'"),
    ],
)
def test_damaged_plan_is_named(tmp_path, text, message):
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ReportError, match=message) as caught:
        build([tmp_path], tmp_path / "out")
    assert str(tmp_path / "experiment.json") in str(caught.value)


def test_place_that_cannot_be_written_leaves_no_page(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.5])
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        build([tmp_path / "run"], tmp_path / "file" / "out")
    with pytest.raises(ReportError, match="at least one folder"):
        build([], tmp_path / "out")


def test_report_leaves_pyplot_and_torch_alone(tmp_path):
    make_run(tmp_path / "run", "fedavg", 0, [0.5])
    code = (
        "import sys; from fl.report import build; assert 'matplotlib' not in sys.modules; "
        f"build([{str(tmp_path / 'run')!r}], {str(tmp_path / 'out')!r}); "
        "assert 'matplotlib.pyplot' not in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "out" / "report.html").exists()
