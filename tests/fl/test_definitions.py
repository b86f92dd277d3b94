"""Definitions of experiments: every policy has a column, runs are shared, slices can be run."""

import itertools
from pathlib import Path

import pytest

from cvrcore.aggregators.averaging import DECAY
from cvrcore.selectors import BUILT_IN
from fl.config import ConfigError
from fl.experiments import NAMES, Request, reproduce
from fl.experiments.definition import FULL, slug
from fl.experiments.definitions import balanced, balanced_choice, ceiling, define, devices, policies
from fl.experiments.definitions import map as regimes
from fl.experiments.documents import read_rows
from fl.presets import BALANCED, METHODS, PRESETS, STEADY, TABLE, ZOO, make_config

DOCS = Path(__file__).parents[2] / "docs"
EACH = [name for name in NAMES if name != "all"]


def cells_of(name, **request):
    return {(cell.row, cell.column): cell for cell in define(name, Request(**request)).cells}


def test_every_policy_has_a_column_with_the_merge_of_its_paper():
    found = {cell.config.selection.policy for cell in cells_of("policies").values()}
    assert found == set(BUILT_IN)
    merges = {name: make_config("mnist", name).aggregator for name in ZOO}
    assert {n for n, merge in merges.items() if merge == "importance"} == {
        "optimal", "k-vib", "pivotal",
    }  # fmt: skip
    assert {n for n, merge in merges.items() if merge == "mean"} == {"multinomial", "clustered"}
    assert (merges["divfl"], merges["drift"]) == ("coalition-mass", "memory")
    assert make_config("mnist", "shapley").selection.server_samples > 0
    assert make_config("mnist", "fedavg+optimal").aggregator == "sizes"


def test_a_folder_holds_runs_of_one_setting_whatever_table_asks():
    held = {}
    for dataset in (None, *PRESETS["paper"]):
        for name in EACH:
            if name in ("regression", "theory", "variance") and dataset:
                continue
            for cell in define(name, Request(dataset=dataset)).cells:
                place = cell.place(name, "")
                assert held.setdefault(place, cell.config) == cell.config, place
    assert len({str(place) for place in held}) == len({str(place).lower() for place in held})


def test_old_runs_of_the_classification_table_stay_valid():
    table = cells_of("classification")
    for name in TABLE:
        cell = table["mnist", name]
        assert cell.place("classification", "").as_posix() == f"classification/mnist/{name}"
        assert cell.config == make_config("mnist", name, "paper")
    assert {("mnist", STEADY), ("cifar100", "fedavg-memory")} <= table.keys()
    assert ("fashion-mnist", "fedavg") in cells_of("classification", dataset="fashion-mnist")


def test_policies_share_runs_with_other_tables():
    table = cells_of("policies")
    assert table["mnist", "oort"].home == "classification/mnist/oort"
    assert table["mnist, devices", "oort"].home == "devices/mnist/oort"
    assert table["mnist", "hics"].home == ""
    # Evaluated every fifth round: other settings than those of the classification table.
    assert {table["shakespeare", name].home for name in TABLE if name in policies.METHODS} == {""}
    orders = {row: table[row, "shapley"].config.selection.options for row in ("mnist", "cifar10")}
    assert orders == {"mnist": {}, "cifar10": {"max_permutations": 20}}
    seeds = {row: table[row, "fedavg"].seeds for row, column in table if column == "fedavg"}
    many = {"mnist, K=1000": 5, "cifar10, K=1000": 3}
    assert seeds == {"mnist": 5, "cifar10": 3, "shakespeare": 3, **many, "mnist, devices": 3}
    for row in many:
        config = table[row, "k-vib"].config
        assert (config.data.n_clients, config.selection.n_select, config.rounds) == (1000, 10, 100)
        assert (config.server.average, config.server.lr) == (DECAY, None)
    assert all(cell.config.fleet.enabled for cell in cells_of("devices").values())
    assert cells_of("devices")["mnist", "fedavg"].config.fleet.speed_spread == 1.0
    assert devices.FLEET.keys() <= {f"fleet__{n}" for n in vars(make_config("mnist").fleet)}


def test_scripts_have_their_preset_whatever_is_asked():
    experiment = define("scripts", Request(preset="paper"))
    assert {cell.config.preset for cell in experiment.cells} == {"scripts"} == {experiment.preset}
    assert {cell.config.training.batch_size for cell in experiment.cells} == {32}
    assert all(cell.paper for cell in experiment.cells)
    planned = {cell.row: len(experiment.seeds_of(cell)) for cell in experiment.cells}
    assert planned == {"mnist": 5, "cifar10": 3}
    table = define("classification", Request(seeds=2))
    assert {len(table.seeds_of(cell)) for cell in table.cells} == {2}


def test_the_ceiling_has_all_clients_at_the_steps_of_the_methods():
    choice = cells_of("balanced-choice") | cells_of("balanced-choice", dataset="cifar10")
    found = cells_of("ceiling")
    for (row, column), cell in found.items():
        full = column.startswith(FULL)
        assert (cell.config.selection.n_select == cell.config.data.n_clients) == full
        if full:
            step = column.partition(", step ")[2] or "1"
            assert (cell.config.server.lr or 1.0) == float(step)
        assert f"K={cell.config.data.n_clients}" in row
        assert cell.config == choice[row, column].config
        assert cell.place("ceiling", "") == choice[row, column].place("balanced-choice", "")
    assert {row for row, _ in found} == {f"{d}, K={n}" for d, n, _ in ceiling.ROWS}
    steps = {column for row, column in found if row == "mnist, K=100"}
    assert {"fedavg", "full", "full, step 2", "full, step 4", "full, step 8"} == steps


def test_the_map_covers_the_plan():
    table = cells_of("map")
    assert len({row for row, _ in table}) == 2 * 5 * (3 + 2)
    assert {method for _, method in table} <= METHODS.keys()
    cell = table["K=1000, 1 %, alpha 0.1, step 4", "pivotal-factor"].config
    assert (cell.data.n_clients, cell.selection.n_select, cell.data.alpha) == (1000, 10, 0.1)
    assert (cell.server.lr, cell.rounds, cell.eval_every) == (4.0, 100, 5)
    assert regimes.name(100, 30, 0.05, 1) == "K=100, 30 %, alpha 0.05"


def test_steps_are_chosen_on_other_seeds_than_they_are_tested_on():
    choice, test = define("balanced-choice", Request()), define("balanced", Request())
    assert max(choice.first_seed + choice.seeds, 5) <= test.first_seed
    columns = {cell.column for cell in choice.cells}
    assert {"fedavg", "fedavg, step 2", "fedavg, step 4", "full, step 8"} <= columns
    assert set(balanced_choice.METHODS) == set(balanced.METHODS)
    for cell in choice.cells:  # every method is averaged, at the step it names
        step = cell.column.partition(", step ")[2] or "1"
        assert (cell.config.server.lr, cell.config.server.optimiser) == (float(step), "sgd")
    assert {c.config.server.average for c in (*choice.cells, *test.cells)} == {DECAY}


def test_fewer_steps_are_tried_on_other_data_and_ours_adapt_in_place_of_one():
    cells = cells_of("balanced-choice", dataset="cifar10")
    found = {c.column: c.config.server for (row, _), c in cells.items() if "1000" in row}
    assert {"fedavg", "fedavg, step 2", "fedavg, step 4"} <= found.keys()
    assert "fedavg, step 8" not in found
    assert (found["balanced-factor"].optimiser, found["balanced-factor"].lr) == ("adaptive", None)
    longer = found["balanced-factor, step 4"]
    assert (longer.optimiser, longer.lr, longer.average) == ("sgd", 4.0, DECAY)


def test_ours_are_run_as_the_presets_are():
    table = cells_of("balanced")
    for n_clients, method in itertools.product((100, 1000), BALANCED):
        preset = make_config("mnist", method, n_clients=n_clients).server
        assert table[f"mnist, K={n_clients}", method].config.server == preset
        other = cells_of("balanced", dataset="synthetic")["synthetic, K=100", method]
        assert other.config.server == make_config("synthetic", method).server
        assert (preset.optimiser, other.config.server.optimiser) == ("sgd", "adaptive")


def test_every_method_is_tested_at_the_step_that_was_chosen(monkeypatch):
    monkeypatch.setattr(balanced, "CHOSEN", {"mnist": {100: {"fedcbs": 2, "fedavg": 4}, 1000: {}}})
    table = cells_of("balanced")
    few = {c.column: c.config.server.lr for c in table.values() if c.row == "mnist, K=100"}
    assert (few["fedcbs"], few["oort"]) == (2.0, 1.0)
    # FedAvg as it is usually meant stays beside FedAvg at its own best step.
    assert (few["fedavg"], few["fedavg, step 1"]) == (4.0, 1.0)
    assert ("mnist, K=1000", "fedavg, step 1") not in table
    # A data set with clients of its own has one row.
    assert {row for row, _ in cells_of("balanced", dataset="shakespeare")} == {"shakespeare, K=630"}
    # A step that was chosen on one data set says nothing about another, digits aside.
    for dataset, step in {"digits": 2.0, "fashion-mnist": 1.0, "cifar10": 1.0}.items():
        cell = cells_of("balanced", dataset=dataset)[f"{dataset}, K=100", "fedcbs"]
        assert cell.config.server.lr == step


def test_the_adaptive_step_of_a_preset_stays_beside_a_chosen_one():
    cells = cells_of("balanced", dataset="fashion-mnist")
    found = {c: cell.config.server for (row, c), cell in cells.items() if "1000" in row}
    assert (found["balanced-factor"].optimiser, found["balanced-factor"].lr) == ("sgd", 4.0)
    assert (
        found["balanced-factor, adaptive"] == make_config("fashion-mnist", "balanced-factor").server
    )
    assert found["fedavg, step 1"].lr == 1.0
    assert not any("adaptive" in column for _, column in cells_of("balanced"))


def test_the_best_step_is_the_highest_of_all_steps():
    def rows(method, *values, place="mnist, K=100"):
        names = (method, *(f"{method}, step {step}" for step in (2, 4, 8)))
        return [
            {"row": place, "column": name, "seeds": 5, "last_five_first": value}
            for name, value in zip(names, values, strict=False)
        ]

    found = balanced_choice.best_steps(
        rows("fedavg", 80.0, 82.0, 70.0, 60.0)
        + rows("oort", 80.0, 80.0, 80.0, 80.0)
        + rows("fedcbs", 80.0, 82.0)
        + rows("full", 80.0, 82.0, 90.0, None)
    )
    assert found == {("mnist, K=100", "fedavg"): 2, ("mnist, K=100", "oort"): 1}


def test_steps_are_compared_on_the_first_seed_alone():
    """A cell may have more seeds, which other tables asked for: those take no part."""

    def rows(*values, firsts=(None,) * 4, seeds=1):
        names = ("full", *(f"full, step {step}" for step in (2, 4, 8)))
        found = [
            {"row": "mnist, K=100", "column": name, "seeds": 1, "last_five": value,
             "last_five_first": first}
            for name, value, first in zip(names, values, firsts, strict=True)
        ]  # fmt: skip
        return [found[0] | {"seeds": seeds}, *found[1:]]

    best = balanced_choice.best_steps
    # Seeds 1 and 2 of step 1 were easier: its mean of 88 is no better than 85 on seed 0.
    assert best(rows(88.0, 85.0, 80.0, 10.0, firsts=(84.0, 85.0, 80.0, 10.0), seeds=3)) == {
        ("mnist, K=100", "full"): 2
    }
    # Files that are older than this value have it only where there was one seed.
    assert best(rows(88.0, 85.0, 80.0, 10.0)) == {("mnist, K=100", "full"): 1}
    assert best(rows(88.0, 85.0, 80.0, 10.0, seeds=3)) == {}


def test_chosen_steps_are_those_of_the_committed_choice():
    """No best step is left out, and none is named of a method that was not run."""
    rows = read_rows(DOCS / "results" / "balanced-choice.csv")
    best = balanced_choice.best_steps(rows)
    for (row, method), step in best.items():
        dataset, n_clients = row.split(", K=")
        assert balanced.chosen(dataset, int(n_clients), method) == step, (row, method)
    named = {
        (f"{dataset}, K={n_clients}", method)
        for dataset, known in balanced.CHOSEN.items()
        for n_clients, chosen in known.items()
        for method in chosen
    }
    ran = {(row["row"], row["column"].partition(", step ")[0]) for row in rows if row["seeds"]}
    assert named <= ran


def test_rows_and_columns_choose_a_slice():
    wanted = [c for c in cells_of("map", rows=("K=1000, 1 %*",)).values() if c.wanted]
    assert {(c.config.data.n_clients, c.config.selection.n_select) for c in wanted} == {(1000, 10)}
    same = [c for c in cells_of("map", rows=("k-1000-1-alpha*",)).values() if c.wanted]
    assert wanted == same
    both = cells_of("ceiling", rows=("mnist*",), columns=("full, step 2",))
    assert {c.column for c in both.values() if c.wanted} == {"full, step 2"}
    assert {c.row for c in both.values() if c.wanted} == {"mnist, K=100", "mnist, K=1000"}
    assert len(both) == len(cells_of("ceiling"))  # the others are shown still
    text = Request(rows=("K=1000*",)).command("map")
    assert text.endswith("--rows 'K=1000*'")
    assert len({slug(row) for row, _ in cells_of("map")}) == 50
    with pytest.raises(ConfigError, match=r"rows must fit one of mnist.*got 'cifar\*'"):
        define("classification", Request(rows=("cifar*",)))


def test_cells_have_seeds_of_their_own(tmp_path, monkeypatch):
    from fl.loop import run

    seen = []

    def note(config, folder, **options):
        seen.append((folder.parent.name, config.seed))
        return run(config.replace(rounds=1), None)

    monkeypatch.setattr("fl.loop.run", note)
    monkeypatch.setattr("fl.experiments.runner.draw_curves", lambda *a: [])
    monkeypatch.setattr(devices, "SEEDS", 1)
    slim = Request(dataset="mnist", rows=("mnist*",), methods=("fedavg",), rounds=1)
    experiment = define("policies", slim)
    assert {c.row: len(experiment.seeds_of(c)) for c in experiment.cells if c.wanted} == {
        "mnist": 5, "mnist, K=1000": 5, "mnist, devices": 1,
    }  # fmt: skip
    small = Request(quick=True, dataset="digits", rounds=1, seeds=2, columns=("hics",))
    reproduce("policies", small, tmp_path)
    assert seen == [("hics", 0), ("hics", 1)]
