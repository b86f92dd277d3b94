"""The page, its files, and runs without a plan."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from numpy.testing import assert_allclose
from report_runs import (
    PIXEL,
    make_run,
    read_csv,
    read_table,
)

from fl.experiments import ReportError, build
from fl.experiments.drawing import inline_svg
from fl.experiments.grouping import commands
from fl.experiments.html import tag
from fl.experiments.table import Column, Table, escape_latex
from fl.presets import make_config
from fl.store import write_json

ROOT = Path(__file__).parents[2]


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


def test_latex_is_escaped_and_regular():
    columns = [Column("a_b, %", "a"), Column("± 2 std", "b", "+.2f")]
    rows = [{"a": "x & y", "b": -50.0}, {"a": "x & y", "b": None}, {"a": "z", "b": "not run"}]
    text = Table(columns, rows, "Title_1", "50 % of #1.", "t").latex()
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
