"""What figures of experiments say about themselves: lines, bands, targets, panels, sizes."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_compare import made_up

import cvrcore
from fl.experiments import Request, figures
from fl.experiments.bands import TOGETHER, band_text, draw_bands
from fl.experiments.compare import Comparison
from fl.experiments.definitions import overview
from fl.experiments.drawing import colours
from fl.experiments.statistics import Band


def bands(n_methods, level=80.0, n=3):
    rounds = np.arange(1, 21)
    return {
        f"m{i}": Band(rounds, np.full(20, level + i), np.ones(20) * (n > 1), n)
        for i in range(n_methods)
    }


def drawn(found, **options):
    return draw_bands(found, colours(list(found)), True, reference="m0", **options)


def test_the_grey_line_of_a_grid_is_named_in_the_figure():
    figure = drawn(bands(TOGETHER + 1), title="All")
    assert figure.get_suptitle() == "All\nthin grey line: m0"
    single = drawn(bands(2), title="Two")
    assert single.axes[0].get_title(loc="left") == "Two"  # the legend names both lines


def test_a_band_that_is_not_drawn_is_not_announced():
    assert band_text(bands(2)) == "band of 2 std"
    assert band_text(bands(3)) == "band of 2 standard errors"
    assert band_text(bands(3, n=1)) == "one seed, no band"


@pytest.mark.parametrize("n_methods", [2, TOGETHER + 1])
def test_the_target_is_a_dashed_line_inside_every_panel(n_methods):
    figure = drawn(bands(n_methods), target=97.0)
    for axes in figure.axes[:n_methods]:
        assert any(np.allclose(line.get_ydata(), 97.0) for line in axes.get_lines())
        assert axes.get_ylim()[1] > 97.0
    words = figure.get_suptitle() + figure.axes[0].get_title(loc="left")
    assert "dashed: target 97 %" in words


def test_a_comparison_draws_its_target(tmp_path, monkeypatch):
    found = {}
    monkeypatch.setattr(
        "fl.experiments.compare.draw_bands",
        lambda *given, **options: found.update(options) or draw_bands(*given, **options),
    )
    Comparison({"a": [made_up([0.4, 0.6])]}).figure(tmp_path / "curves.png")
    assert found["target"] == pytest.approx(50.0)
    assert found["title"] == "digits, one seed, no band"


@pytest.fixture
def saved(monkeypatch):
    """Give figures the rows of a test, and keep what they would write."""
    kept = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: kept.update({path.name: figure}))
    monkeypatch.setattr(figures, "draw_curves", lambda folder, request: [])

    def use(rows, columns=()):
        results = SimpleNamespace(
            heading="H", baseline="fedavg", cells=[SimpleNamespace(column=c) for c in columns]
        )
        monkeypatch.setattr(figures, "read_results", lambda folder: results)
        monkeypatch.setattr(figures, "measure", lambda results: rows)
        return kept

    return use


def part(column, late, difference=None, low=None, high=None):
    return {
        "row": "mnist", "column": column, "seeds": 1, "last_five": late, "spread": 1.0,
        "difference": difference, "low": low, "high": high,
    }  # fmt: skip


def test_dot_and_band_of_a_ladder_belong_together(tmp_path, saved):
    """The second row has fewer seeds than the baseline: its mean is not on its band's middle."""
    rows = [part("fedavg", 80.0), part("oort", 88.0, 5.0, 3.0, 7.0), part("alone", 70.0)]
    kept = saved(rows)
    figures.draw_ladder(tmp_path, Request())
    left = kept["mnist-ladder.png"].axes[0]
    lines = [line.get_xdata() for line in left.get_lines()]
    assert any(np.allclose(x, [83.0, 87.0]) for x in lines if len(x) == 2)
    assert any(np.allclose(x, [80.0, 85.0, 70.0]) for x in lines if len(x) == 3)
    assert "mean of fedavg (dashed) + paired difference" in left.get_xlabel()
    assert "band: 95 % interval" in left.get_xlabel()


def test_a_ladder_without_intervals_announces_no_band(tmp_path, saved):
    kept = saved([part("fedavg", 80.0), part("oort", 88.0, 8.0)])
    figures.draw_ladder(tmp_path, Request())
    assert "band" not in kept["mnist-ladder.png"].axes[0].get_xlabel()


def test_each_data_set_has_a_panel_of_rates(tmp_path, saved):
    points = [("mnist", 5, 83.0, 1), ("mnist", 10, 87.0, 3), ("cifar10", 10, 47.0, 1)]
    rows = [
        {"row": n, "column": f"{r} %", "seeds": s, "last_five": late, "last_five_2std": None}
        for n, r, late, s in points
    ]
    kept = saved(rows, ("5 %", "10 %"))
    assert figures.draw_rates(tmp_path, Request()) == ["rates.png"]
    mnist, cifar = kept["rates.png"].axes
    titles = [axes.get_title(loc="left") for axes in (mnist, cifar)]
    assert titles == ["mnist, 1 to 3 seeds", "cifar10, 1 seed"]
    assert mnist.get_ylim()[0] > 60 > cifar.get_ylim()[1]  # no axis is stretched by the other


def test_areas_of_the_overview_are_in_proportion_to_scores(tmp_path, monkeypatch):
    selector = cvrcore.make_selector("fedcvr-bolt", 20, 4, n_features=3, warmup=2, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(6):
        picked = selector.select()
        selector.observe(picked.clients, rng.normal(size=(len(picked), 3)))
    kept = []
    monkeypatch.setattr(overview, "save", lambda figure, path: kept.append(figure))
    overview.draw_selection(selector, tmp_path / "x.png", "T")
    dots, _ = kept[0].axes[0].collections
    areas = dots.get_sizes()
    assert selector.scores.min() > 0
    np.testing.assert_allclose(areas / areas.mean(), selector.scores / selector.scores.mean())
    assert "largest / smallest" in kept[0].axes[0].get_title(loc="left")
