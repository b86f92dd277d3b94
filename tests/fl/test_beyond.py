"""The experiments beyond the paper: ladder, holdout, variance."""

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fl.experiments import Request, reproduce
from fl.experiments.definitions import beyond, holdout
from fl.experiments.definitions.variance import AGGREGATORS, POLICIES, is_unbiased
from fl.experiments.export import export
from fl.experiments.manifest import Manifest
from fl.experiments.measures import rows_of, selector_megabytes, versus
from fl.experiments.results import Run, read_results
from fl.experiments.text_tables import document_tables, print_experiment, terminal_tables
from fl.history import History
from fl.presets import BEYOND, METHODS, STEADY, TABLE, make_config
from fl.store import read_history

SMALL = {"quick": True, "dataset": "digits", "rounds": 6, "seeds": 1}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    plan = Request(**SMALL, methods=("fedcvr-bolt", "fedavg-memory", STEADY))
    (outcome,) = reproduce("beyond", plan, out)
    return out, outcome


def test_ladder_shows_gain_and_cost(ladder):
    _, outcome = ladder
    rows = {row["column"]: row for row in outcome.rows}
    memory, base = rows["fedavg + memory"], rows["fedcvr-bolt"]
    assert base["memory_megabytes"] == 0
    # A model of digits is 15 010 numbers; what was seen of 50 clients, and a sum in float64.
    assert 0 < memory["memory_megabytes"] <= (50 * 4 + 8) * 15_010 / 1e6
    assert rows["fedavg + memory"]["selector_megabytes"] == 50 * 8 / 1e6  # sample counts
    # Rows, C alpha and diag C of 50 clients and 2010 coordinates, and no dense C in 6 rounds.
    one = 50 * 2010 * 8 / 1e6
    assert 3 * one < base["selector_megabytes"] < 3 * one + 40 * one
    assert memory["merge_ms"] > 0
    assert memory["select_ms"] > 0
    assert memory["difference"] == pytest.approx(memory["last_five"] - base["last_five"])
    assert 0 <= memory["worst_decile"] <= memory["last_five"]
    assert rows["+ importance"]["seeds"] == 0
    assert [figure.name for figure in outcome.figures] == ["digits-ladder.png", "digits-curves.png"]
    text = document_tables(read_results(outcome.path.parent), outcome.rows, [])[""]
    assert "| digits (93 %) | cvr-steady | 1 |" in text
    assert "| digits (93 %) | + importance | 0 | not run |" in text


def test_a_run_older_than_the_record_tells_its_selectors_size(ladder, tmp_path):
    """Restored from its checkpoint: but for indices of the last round, and eigenvalues unused."""
    folder = ladder[1].path.parent / "digits" / "fedcvr-bolt" / "seed-0"
    history = read_history(folder)
    live = selector_megabytes([Run(folder, "", history)])
    assert live == max(r["selector_bytes"] for r in history) / 1e6
    older = History(history.config, history.facts, [{"round": r["round"]} for r in history])
    assert selector_megabytes([Run(folder, "", older)]) == pytest.approx(live, rel=1e-3)
    assert selector_megabytes([Run(tmp_path, "", older)]) is None
    (tmp_path / "checkpoint.npz").write_bytes(b"damaged")
    assert selector_megabytes([Run(tmp_path, "", older)]) is None


@pytest.mark.parametrize("width", [80, 140])
def test_terminal_shows_gain_and_cost_of_what_was_run(ladder, width):
    _, outcome = ladder
    (table,) = terminal_tables(read_results(outcome.path.parent), outcome.rows, width)
    lines = plain(table, width)
    rows = {row["column"]: row for row in outcome.rows if row["seeds"]}
    assert not any("+ importance" in line for line in lines)  # not run
    for part, row in rows.items():
        (line,) = [line.split() for line in lines if line.startswith(f" {part} ")]
        server = row["selector_megabytes"] + row["memory_megabytes"]
        assert line[-4:] == [f"{row['spread']:.2f}", "never", "-", f"{server:.1f}"]
        assert f"{row['last_five']:.2f}" in line
        assert (f"{row['difference'] or 0:+.2f}" in line) == (width > 80 and part != "fedcvr-bolt")
    assert "MB" in " ".join(lines)


def plain(table, width):
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue().splitlines()


def test_export_fills_the_ladder(ladder, tmp_path):
    out, _ = ladder
    (tmp_path / "results.md").write_text("<!-- table beyond-quick -->\n<!-- end beyond-quick -->\n")
    export(out, tmp_path)
    assert "| select, MB | merge, MB |" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results" / "beyond-quick.csv").exists()
    assert (tmp_path / "results" / "beyond-quick-paired.csv").exists()


def test_one_method_against_each_other_is_paired_in_every_measure(tmp_path):
    """Against NumPy and SciPy on the runs themselves."""
    plan = Request(**{**SMALL, "seeds": 3}, methods=("fedavg", "fedcvr-bolt", STEADY))
    (outcome,) = reproduce("holdout", plan, tmp_path)
    folder = outcome.path.parent
    results = read_results(folder)
    rows = {row["against"]: row for row in versus(results, STEADY)}
    assert set(rows) == {"fedavg", "fedcvr-bolt"}
    tails = {}
    for method in ("fedavg", STEADY):
        runs = [folder / "digits" / method / f"seed-{seed}" for seed in (10, 11, 12)]
        lines = [(run / "rounds.jsonl").read_text().splitlines() for run in runs]
        tails[method] = [[json.loads(line)["accuracy"] for line in some] for some in lines]
    last = {m: 100 * np.array([np.mean(t[-5:]) for t in some]) for m, some in tails.items()}
    gaps = last[STEADY] - last["fedavg"]
    row = rows["fedavg"]
    low, high = stats.t.interval(0.95, 2, gaps.mean(), stats.sem(gaps))
    found = [row[f"last_five{end}"] for end in ("", "_low", "_high")]
    assert found == pytest.approx([gaps.mean(), low, high])
    spreads = {m: 100 * np.array([np.std(t, ddof=1) for t in some]) for m, some in tails.items()}
    assert row["spread"] == pytest.approx((spreads[STEADY] - spreads["fedavg"]).mean())
    assert row["rounds_to_target_pairs"] == 0  # six rounds get nobody to 93 %
    text = document_tables(results, [], [row])["-paired"]
    assert (
        f"| digits: {STEADY} | fedavg | 3 | {gaps.mean():+.2f} [{low:+.2f}, {high:+.2f}] |" in text
    )
    assert text.rstrip().endswith("| - | - |")


def test_holdout_shares_the_classification_tables_runs_of_cifar10():
    experiment = holdout.make(Request(dataset="cifar10"))
    places = {cell.column: cell.place("holdout", "") for cell in experiment.cells}
    assert experiment.first_seed == 0
    assert places["fedavg"].as_posix() == "classification/cifar10/fedavg"
    assert places[STEADY].as_posix() == f"holdout/cifar10/{STEADY}"


def test_holdout_begins_where_no_choice_was_made(tmp_path):
    (outcome,) = reproduce("holdout", Request(**SMALL, methods=(STEADY,)), tmp_path)
    assert (outcome.path.parent / "digits" / STEADY / "seed-10").is_dir()
    assert not (outcome.path.parent / "digits" / STEADY / "seed-0").exists()
    assert [row["seeds"] for row in rows_of(outcome.path.parent)] == [0, 0, 0, 0, 1]


def test_every_part_is_a_method_and_the_preset_has_its_own_name():
    assert set(beyond.PARTS.values()) <= set(METHODS)
    assert set(holdout.METHODS) <= set(METHODS)
    assert not set(BEYOND) & set(TABLE)
    config = make_config("mnist", STEADY)
    assert (config.method, config.selection.features) == (STEADY, "update")
    cells = beyond.make(Request()).cells
    assert {cell.target for cell in cells} == {0.88}
    assert {cell.config.rounds for cell in cells} == {200}


def test_each_part_of_the_issue_is_added_alone():
    """One setting away from FedCVR-Bolt, but for places, which need counted coalitions."""

    def settings(method):
        config = make_config("digits", method)
        chosen = {**config.selection.options, "features": config.selection.features}
        return {"aggregator": config.aggregator, **config.aggregator_options, **chosen}

    def added(method, to="fedcvr-bolt"):
        return settings(method).items() - settings(to).items()

    alone = [
        {("aggregator", "coalition-mass")},
        {("aggregator", "importance")},
        {("aggregator", "memory")},
        {("aggregator", "coalition-memory")},
        {("features", "update")},
        {("within", "neyman")},
        {("n_coalitions", "eigengap")},
        {("n_coalitions", "silhouette")},
    ]
    found = [added(method) for method in beyond.PARTS.values()]
    assert all(part in found for part in alone)
    form = added("fedcvr-bolt-importance-normalised", to="fedcvr-bolt-importance")
    assert form == {("form", "self-normalised")}
    places = added("fedcvr-bolt-counted", to="fedcvr-bolt-eigengap")
    assert places == {("places", "neyman")}


def test_a_part_newer_than_the_file_comes_in_its_place(tmp_path, monkeypatch):
    few = {"fedavg": "fedavg", "fedcvr-bolt": "fedcvr-bolt", STEADY: STEADY}
    monkeypatch.setattr(beyond, "PARTS", few)
    for dataset in ("mnist", "digits"):
        Manifest(beyond.make(Request(dataset=dataset)), Request(), tmp_path).write()
    more = {"fedavg": "fedavg", "+ memory": "fedcvr-bolt-memory", **few}
    monkeypatch.setattr(beyond, "PARTS", more)
    Manifest(beyond.make(Request(dataset="mnist")), Request(), tmp_path).write()
    cells = read_results(tmp_path / "beyond").cells
    assert [cell.column for cell in cells] == [*more, *few]
    assert [cell.row for cell in cells] == ["mnist"] * 4 + ["digits"] * 3


def test_variance_is_measured_for_every_pair(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "fl.experiments.definitions.variance.POLICIES",
        {name: POLICIES[name] for name in ("uniform", "coalitions, by size")},
    )
    (outcome,) = reproduce("variance", Request(quick=True), tmp_path)
    found = json.loads((outcome.path.parent / "variance.json").read_text())["outcomes"]
    assert len(found) == 2 * len(AGGREGATORS)
    assert found[0]["variance"] == found[0]["mean_square"] == 1.0
    for row in found:
        assert row["unbiased"] == is_unbiased(row["policy"], row["aggregator"])
        assert np.isfinite([row["bias"], row["errors"], row["variance"]]).all()
    assert outcome.figures[0].read_bytes().startswith(b"\x89PNG")
    assert outcome.rows == found
    results = read_results(outcome.path.parent)
    print_experiment(results, outcome.rows)
    lines = capsys.readouterr().out.splitlines()
    cells = {row["aggregator"]: f"{row['variance']:.3f}" for row in found[len(AGGREGATORS) :]}
    (line,) = [line for line in lines if line.startswith(" coalitions, by size")]
    biased = [name for name in AGGREGATORS if not is_unbiased("coalitions, by size", name)]
    shown = [f"({cells[name]})" if name in biased else cells[name] for name in AGGREGATORS]
    assert line.split()[3:] == shown
    assert len(list(terminal_tables(results, outcome.rows, 80))) == 3
