"""Accuracy against the participation rate P/K, from 5 % to 30 %."""

from __future__ import annotations

from pathlib import Path

from .experiment import Cell, Experiment, Plan, chosen
from .results import measure, read_experiment

DATASET = "mnist"
METHOD = "fedcvr-bolt"
RATES = (5, 10, 20, 30)
USUAL = 10  # percent, the rate of the paper's tables


def make(plan: Plan) -> Experiment:
    """Return the experiment; the usual rate is the classification table's."""
    dataset = plan.dataset or DATASET
    datasets = [dataset] if plan.quick else list(dict.fromkeys(["mnist", "cifar10", dataset]))
    methods = plan.methods or (METHOD,)
    chosen(plan, (METHOD, "fedavg"), "participation")
    cells = []
    for row in datasets:
        for method in methods:
            for rate in RATES:
                config = plan.config(row, method)
                n_select = max(config.data.n_clients * rate // 100, 1)
                usual = n_select == config.selection.n_select
                cells.append(
                    Cell(
                        row if method == METHOD else f"{row} {method}",
                        f"{rate} %",
                        config.replace(selection__n_select=n_select),
                        home=f"classification/{row}/{method}" if usual else "",
                        wanted=row == dataset,
                    )
                )
    return Experiment(
        "participation",
        "Test accuracy by participation rate P/K",
        tuple(cells),
        plan.n_seeds(3),
        baseline=f"{USUAL} %",
    )


def draw(folder: Path, plan: Plan) -> list[str]:
    """Draw accuracy against the rate, mean and 2 std, and the curves by round."""
    try:
        from .drawing import COLOURS, draw_curves, new_figure, save
    except ModuleNotFoundError:  # a table needs no matplotlib
        return []
    rows = [row for row in measure(folder) if row["seeds"]]
    names = list(dict.fromkeys(row["row"] for row in rows))
    figure = new_figure(5, 3.6)
    axes = figure.add_subplot()
    for name, colour in zip(names, COLOURS, strict=False):
        points = [row for row in rows if row["row"] == name]
        rates = [int(row["column"].split()[0]) for row in points]
        means = [row["last_five"] for row in points]
        spreads = [row["last_five_2std"] or 0.0 for row in points]
        axes.errorbar(
            rates, means, yerr=spreads, label=name, color=colour, marker="o", capsize=3, lw=1.3
        )
    axes.set_xlabel("participation rate P/K, %")
    axes.set_ylabel("accuracy, mean of the last five, %")
    title = read_experiment(folder)["title"]
    axes.set_title(f"{title}: mean and 2 std", fontsize=9)
    axes.set_xticks(RATES)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    save(figure, folder / "rates.png")
    return ["rates.png", *draw_curves(folder)]
